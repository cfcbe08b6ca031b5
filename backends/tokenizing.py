"""Texts to token ids and back: what is asked of a backend, and what it answers. Immutable, as everything in
`backends.types`."""

from __future__ import annotations

import msgspec

from backends.types import Prompt


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What are the tokens of a prompt? A conversation goes through the model's template."""

    model: str
    """The card's id (never an alias)."""
    prompt: Prompt
    add_special_tokens: bool | None = None
    """The model's own marks of a beginning or an end; None: as a generation would have them."""
    with_strings: bool = False
    """Give the text of each token, too."""


class Tokens(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The tokens, exactly as the model would get them; `is_estimated`: only about how many there are."""

    count: int
    ids: tuple[int, ...] | None = None
    """None where they are not known."""
    strings: tuple[str, ...] | None = None
    """None unless they were asked for."""
    context_length: int | None = None
    """Tokens that prompt and answer may take together; None where it is not known."""
    is_estimated: bool = False


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is the text of these tokens?"""

    model: str
    token_ids: tuple[int, ...]
