"""The tables of docs/configuration.md, as `python -m settings` prints them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from settings.arguments import Args
from settings.knob import words
from settings.variables import PREFIX, Settings


def reference() -> dict[str, str]:
    """The tables of docs/configuration.md, Markdown: one of the variables, one per section of the
    arguments."""
    tables = {"variables": _table(Settings, PREFIX, str.upper)}
    for name, field in Args.model_fields.items():
        assert isinstance(field.annotation, type)
        tables[name] = _table(field.annotation, f"{name}.", str)
    return tables


def _table(model: type[BaseModel], prefix: str, spelling: Callable[[str], str]) -> str:
    lines = ["| Name | Default | Allowed | What it does |", "|---|---|---|---|"]
    for name, field in _leaves(model, prefix, spelling):
        unit = words(field, "unit")
        allowed = words(field, "allowed") + (f" ({unit})" if unit else "")
        text = " ".join((field.description or "").split())
        lines.append(
            "| " + " | ".join((f"`{name}`", _shown(field.default), allowed, text)).replace("\n", " ") + " |"
        )
    return "\n".join(lines)


def _leaves(
    model: type[BaseModel], prefix: str, spelling: Callable[[str], str]
) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _leaves(inner, f"{prefix}{spelling(name)}.", spelling)
        else:
            yield prefix + spelling(name), field


def _shown(default: Any) -> str:
    if default is None or default in ((), {}):
        return "–"
    return f"`{json.dumps(default)}`"
