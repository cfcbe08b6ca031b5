"""A field of the settings, with the words that its error message and its row in the documentation use."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field
from pydantic.fields import FieldInfo


def knob(default: Any, allowed: str, *, unit: str | None = None, **limits: Any) -> Any:
    return Field(default=default, json_schema_extra={"allowed": allowed, "unit": unit or ""}, **limits)


def words(field: FieldInfo | None, which: Literal["allowed", "unit"]) -> str:
    extra = field.json_schema_extra if field is not None else None
    return str(extra.get(which, "")) if isinstance(extra, dict) else ""
