"""What the fake says of itself in a receipt: it has no weights, and says the same each time."""

from __future__ import annotations

from typing import Final

from backends.provenance import Provenance

VERSION: Final = "1"
"""Counts the changes of what it says."""


def provenance_of(context_length: int) -> Provenance:
    return Provenance(engine="fake", engine_version=VERSION, context_length=context_length, repeats="exact")
