"""What is wrong with a body, collected before any of it is reported, as entries `{type, loc, msg, input}`.

The words of `type` and `msg` are those pydantic uses, because clients of this kind of API match on them.
"""

from __future__ import annotations

from typing import Any, Final

from openai_compat.errors import MAX_ENTRIES, ValidationFailed

Loc = tuple[str | int, ...]
"""Path inside the body, without the leading "body"."""

INVALID: Final = object()
"""What a check returns for a value it has reported; never a legal value."""


class Problems:
    """Collects entries; after the tenth it only counts on, so that a hostile body costs no memory."""

    __slots__ = ("count", "entries")

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.count = 0

    def add(self, kind: str, loc: Loc, msg: str, value: object) -> Any:
        """Note one problem; gives `INVALID`, so that a check can return it."""
        self.count += 1
        if self.count <= MAX_ENTRIES:
            self.entries.append({"type": kind, "loc": ["body", *loc], "msg": msg, "input": value})
        return INVALID

    @property
    def is_full(self) -> bool:
        """No further problem will be told; a loop over the caller's items may stop here."""
        return self.count > MAX_ENTRIES

    def raise_if_any(self) -> None:
        """Raises: ValidationFailed with the entries noted so far."""
        if self.entries:
            raise ValidationFailed(self.entries)
