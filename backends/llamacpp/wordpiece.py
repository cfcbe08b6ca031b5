"""BERT's tokenizer for GGUF files that hold a WordPiece vocabulary.

llama.cpp has one, which loses the vowel signs of Indic scripts and all of a Hangul syllable but its first letter, and
cuts words that are too long where BERT gives up on them (llama-cpp-python 0.3.36). Texts in which none of that can
occur still go there, because it is faster and leaves the interpreter free.

Compared with `tokenizers` 0.23 over every code point, this one differs at 503, all of them accents and punctuation that
Unicode has had only since version 9; that package's tables are older than Python's.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from backends.llamacpp.lib import llama
from backends.llamacpp.model import GgufModel

MAX_WORD_CHARS: Final = 100
"""A longer word is one unknown token."""
MAX_CACHED_WORDS: Final = 50_000

_WORD_MARK: Final = "▁"
_VOCAB_TYPE_WPM: Final = 3
_ATTR_UNKNOWN: Final = 1 << 0
_ATTR_CONTROL: Final = 1 << 3
_LONG_WORD: Final = re.compile(rf"\S{{{MAX_WORD_CHARS + 1}}}")
_CONTROL: Final = frozenset({"Cc", "Cf", "Co", "Cs"})
_IDEOGRAPHS: Final = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)


class WordPiece:
    """Texts to token ids, with the special tokens around them. Thread-safe.

    `words`: id of each word and word's beginning. `pieces`: of what may follow within a word. `specials`: tokens that
    stand for themselves wherever a text spells them. `plain` tokenises what needs no care.
    """

    def __init__(
        self,
        *,
        words: Mapping[str, int],
        pieces: Mapping[str, int],
        specials: Mapping[str, int],
        plain: Callable[[str], list[int]] | None = None,
    ) -> None:
        self._words = words
        self._pieces = pieces
        self._specials = specials
        self._plain = plain
        self._first, self._last, self._unknown = (specials[name] for name in ("[CLS]", "[SEP]", "[UNK]"))
        self._longest = max(map(len, (*words, *pieces)), default=1)
        self._special = re.compile("|".join(map(re.escape, sorted(specials, key=len, reverse=True))))
        self._known: dict[str, tuple[int, ...]] = {}

    @classmethod
    def of(cls, model: GgufModel) -> WordPiece | None:
        """The tokenizer of a file whose vocabulary is of this kind, else None."""
        lib = llama()
        if int(lib.llama_vocab_type(model.vocab)) != _VOCAB_TYPE_WPM:
            return None
        words: dict[str, int] = {}
        pieces: dict[str, int] = {}
        specials: dict[str, int] = {}
        for token in range(model.num_vocab_tokens):
            text = bytes(lib.llama_vocab_get_text(model.vocab, token) or b"").decode("utf-8", "replace")
            if int(lib.llama_vocab_get_attr(model.vocab, token)) & (_ATTR_CONTROL | _ATTR_UNKNOWN):
                specials.setdefault(text, token)
            elif text.startswith(_WORD_MARK):
                words.setdefault(text[1:], token)
            else:
                pieces.setdefault(text, token)
        if not {"[CLS]", "[SEP]", "[UNK]"} <= specials.keys():
            return None

        def plain(text: str) -> list[int]:
            return model.tokenize(text, add_special=True, parse_special=True)

        return cls(words=words, pieces=pieces, specials=specials, plain=plain)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, the first and last token included."""
        if self._plain is not None and text.isascii() and not _LONG_WORD.search(text):
            return self._plain(text)
        return [self._first, *self._inner(text), self._last]

    def _inner(self, text: str) -> Iterator[int]:
        at = 0
        for match in self._special.finditer(text):
            yield from self._ordinary(text[at : match.start()])
            yield self._specials[match[0]]
            at = match.end()
        yield from self._ordinary(text[at:])

    def _ordinary(self, text: str) -> Iterator[int]:
        known = self._known
        for word in _split(_normalise(text)):
            ids = known.get(word)
            if ids is None:
                ids = self._pieces_of(word)
                if len(known) < MAX_CACHED_WORDS:
                    known[word] = ids
            yield from ids

    def _pieces_of(self, word: str) -> tuple[int, ...]:
        """The longest known beginning, then the longest known piece of what is left, and so on; one unknown token where
        any part is unknown."""
        if len(word) > MAX_WORD_CHARS:
            return (self._unknown,)
        ids: list[int] = []
        table, at = self._words, 0
        while at < len(word):
            for end in range(min(len(word), at + self._longest), at, -1):
                token = table.get(word[at:end])
                if token is not None:
                    break
            else:
                return (self._unknown,)
            ids.append(token)
            table, at = self._pieces, end
        return tuple(ids)


def _normalise(text: str) -> str:
    """Without control characters and accents, in lower case, with blanks around ideographs."""
    cleaned = "".join(map(_clean, text))
    bare = [c for c in unicodedata.normalize("NFD", cleaned) if unicodedata.category(c) != "Mn"]
    # Letter by letter: `str.lower` of a whole text writes a sigma at a word's end in another way.
    return "".join([c.lower() for c in bare])


def _clean(c: str) -> str:
    if c.isalnum() and ord(c) < 0x3400:
        return c
    if c in "\t\n\r" or (c.isspace() and unicodedata.category(c) != "Cc"):
        return " "
    if c in ("\0", "\ufffd") or unicodedata.category(c) in _CONTROL:
        return ""
    code = ord(c)
    if code >= 0x3400 and any(low <= code <= high for low, high in _IDEOGRAPHS):
        return f" {c} "
    return c


def _split(text: str) -> Iterator[str]:
    """Words between blanks; each punctuation mark is a word of its own."""
    for run in text.split():
        if run.isalnum():
            yield run
            continue
        at = 0
        for index, c in enumerate(run):
            if _is_punctuation(c):
                if at < index:
                    yield run[at:index]
                yield c
                at = index + 1
        if at < len(run):
            yield run[at:]


def _is_punctuation(c: str) -> bool:
    """Unicode's punctuation, and every sign of ASCII that is neither letter nor digit."""
    if c < "\x80":
        return not c.isalnum() and c.isprintable() and c != " "
    return unicodedata.category(c).startswith("P")
