"""How a reranker reads a query and a document as one text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from backends.llamacpp.lib import llama
from backends.llamacpp.model import GgufModel


@dataclass(frozen=True, slots=True)
class PairFrame:
    """The tokens before, between and after the two, as llama.cpp's server puts them (`format_rerank`, 2025)."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]

    @classmethod
    def of(cls, model: GgufModel) -> PairFrame:
        lib, vocab = llama(), model.vocab
        begin, separator = int(lib.llama_vocab_bos(vocab)), int(lib.llama_vocab_sep(vocab))
        end = int(lib.llama_vocab_eos(vocab))
        end = separator if end < 0 else end
        adds = (lib.llama_vocab_get_add_bos, lib.llama_vocab_get_add_eos, lib.llama_vocab_get_add_sep)
        begin, end, separator = (
            token if token >= 0 and add(vocab) else -1
            for token, add in zip((begin, end, separator), adds, strict=True)
        )
        return cls(_those(begin), _those(end, separator), _those(end if end >= 0 else separator))

    def join(self, query: Sequence[int], document: Sequence[int]) -> list[int]:
        return [*self.before, *query, *self.between, *document, *self.after]


def _those(*tokens: int) -> tuple[int, ...]:
    return tuple(token for token in tokens if token >= 0)
