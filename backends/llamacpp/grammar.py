"""What a GBNF grammar may look like before llama.cpp's parser sees it. No engine in here.

The parser is C++ behind a C function: what it cannot take ends the process or never returns. Everything here is a case
of that, seen with llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import re

from backends.errors import InvalidGrammar

MAX_BYTES = 256 << 10
"""Looking for left recursion uses the C stack once per rule: a chain of 300,000 rules ends the process."""
MAX_NESTING = 64
"""Reading parentheses uses the C stack, too."""

MAX_COMPOUND_REPETITIONS = 64
"""Product of the counts in braces behind groups and rules. What can be empty, repeated, gives as many parses at once:
`("a"?){0,100}` holds the engine, and so everybody, for seconds at one token, `{0,200}` for a minute."""
MAX_ALTERNATIVES = 256
"""Bars in all. Every one is tried for every token of the vocabulary: 2,000 take seconds a token."""

_PART = re.compile(
    r"""
    (?P<plain>
        "(?:\\.|[^"\\])*+(?:"|\\?\Z)      # a literal
        | \[(?:\\.|[^\]\\])*+(?:\]|\\?\Z) # a class of characters
    )
    | \#[^\n]*                          # a comment
    | (?P<open>\() | (?P<close>\)) | (?P<bar>\|)
    | \{\s*(?P<least>\d+)\s*(?P<comma>,)?\s*(?P<most>\d*)\s*\}
    """,
    re.VERBOSE | re.DOTALL,
)


def check_text(grammar: str) -> None:  # noqa: PLR0912 - one scanner, a branch per kind of token
    """Raises: InvalidGrammar for a text that must not reach llama.cpp's parser. What it lets through may still be
    wrong."""
    size = len(grammar.encode("utf-8", "replace"))
    if size > MAX_BYTES:
        raise InvalidGrammar(f"grammar: it has {size} bytes; at most {MAX_BYTES} are allowed")
    if not grammar.strip():
        # llama.cpp takes an empty text for "no grammar", and nothing would be enforced.
        raise InvalidGrammar("grammar: it is empty")
    if "\0" in grammar:
        # It would end there for C, and the rest would not be enforced.
        raise InvalidGrammar("grammar: it holds a NUL character")
    depth = bars = 0
    product = 1
    plain_end = -1
    for part in _PART.finditer(grammar):
        if part["open"]:
            depth += 1
            if depth > MAX_NESTING:
                raise InvalidGrammar(f"grammar: parentheses nest deeper than {MAX_NESTING}")
        elif part["close"]:
            depth -= 1
        elif part["bar"]:
            bars += 1
            if bars > MAX_ALTERNATIVES:
                raise InvalidGrammar(f"grammar: it has more than {MAX_ALTERNATIVES} alternatives")
        elif part["plain"]:
            plain_end = part.end()
        elif part["least"]:
            least, most = part["least"], part["most"]
            if most and _number(most) < _number(least):
                # The parser would count down from there, past zero.
                raise InvalidGrammar(
                    f"grammar: a repetition of at least {least[:20]} and at most {most[:20]}"
                )
            if plain_end < 0 or grammar[plain_end : part.start()].strip():
                product *= max(1, _number(most or least))
                if product > MAX_COMPOUND_REPETITIONS:
                    raise InvalidGrammar(
                        "grammar: the counts in braces behind groups and rules multiply to more than "
                        f"{MAX_COMPOUND_REPETITIONS}; only literals and character classes may repeat more often"
                    )


def _number(digits: str) -> int:
    return int(digits[:9]) if len(digits) < 10 else 10**9
