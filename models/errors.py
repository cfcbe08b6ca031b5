"""What can go wrong while a model is looked up, fetched or read. Knows no engine and no HTTP.

ModelError
├── UnknownModel       no card and no file has this name
├── UnusableModel      the file is there, but is not a model that can be served
└── SourceUnavailable  the place it should come from cannot be reached or refuses
"""

from __future__ import annotations

from collections.abc import Sequence


class ModelError(Exception):
    """Root of this tree. `message` is one sentence that may be shown to a caller: no path, no key."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class UnknownModel(ModelError):
    """Nothing in the catalogue or the model folders has this name. `near` lists similar names."""

    def __init__(self, name: str, near: Sequence[str] = ()) -> None:
        hint = f"; did you mean {', '.join(repr(n) for n in near)}?" if near else ""
        super().__init__(f"The model {name[:200]!r} does not exist{hint}")
        self.name = name
        self.near = tuple(near)


class UnusableModel(ModelError):
    """The file exists but is not a model this service can load (truncated, other format, other architecture)."""


class SourceUnavailable(ModelError):
    """The hub, package or folder a card points to cannot be read right now."""
