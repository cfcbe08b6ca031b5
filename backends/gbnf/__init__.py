"""llama.cpp's grammars (GBNF) as Lark texts for llguidance.

    text ─syntax─> rules ─shape─> rules that can be met ─lexemes─> what the lexer may take at once ─lark─> text

Runs in the process where grammars are tried, with its limits of time and memory; it imports nothing but itself.
The first two steps serve vLLM as well, which goes on for ever over a grammar that no text satisfies.
"""
