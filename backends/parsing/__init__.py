"""From the text that a model writes to thoughts, words and tool calls: state machines over pieces of text, without an
engine and without events of ours.

    text ─> ThoughtSplitter ─┬─> Thought
                             └─> CallReader ─> Text, CallBegin, CallArguments, CallEnd

Each holds back what may still become a marker and nothing else, so no part of a marker is ever taken for text, and the
joined pieces are the same however the text was cut.
"""
