"""From a request's `response_format` or `structured_outputs` to what llguidance compiles. No engine in here."""

from __future__ import annotations

import json
from typing import Any, Final, Literal

from backends.errors import UnsupportedParameter
from backends.llamacpp.constraint import Source
from backends.llamacpp.schema_closing import closed
from backends.types import CONSTRAINT_OPTIONS, GenerationRequest

_SPACED: Final = (("item_separator", ", "), ("key_separator", ": "))
"""JSON as models have read most of it, and no blank anywhere else: where blanks are free, small models write nothing
but blanks."""


def source_of(request: GenerationRequest) -> Source | None:
    """What the text of each answer has to look like; None: anything.

    Raises: UnsupportedParameter for a form of constraint that is not there.
    """
    if request.sampling.grammar is not None:
        return Source(kind="gbnf", text=request.sampling.grammar, param="grammar")
    form = request.response_format
    if form is not None:
        if form["type"] == "json_object":
            return _json({"type": "object"}, "response_format")
        return _json(closed(form["json_schema"]["schema"]), "response_format.json_schema.schema")
    outputs = request.structured_outputs
    if outputs is None:
        return None
    if "json" in outputs:
        schema = closed(outputs["json"], always=bool(outputs.get("disable_additional_properties")))
        return _json(schema, "structured_outputs.json", outputs)
    if "json_object" in outputs:
        return _json({"type": "object"}, "structured_outputs.json_object", outputs)
    for option in CONSTRAINT_OPTIONS[1:]:
        if outputs.get(option) not in (None, False):
            raise UnsupportedParameter(
                f"structured_outputs.{option}: only with `json` or `json_object`",
                param=f"structured_outputs.{option}",
            )
    if "regex" in outputs:
        return Source(kind="regex", text=_unanchored(outputs["regex"]), param="structured_outputs.regex")
    if "choice" in outputs:
        choices = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in outputs["choice"])
        return Source(kind="lark", text=f"start: {choices}\n", param="structured_outputs.choice")
    if "grammar" in outputs:
        # Lark has no such sign outside of its literals.
        kind: Literal["gbnf", "lark"] = "gbnf" if "::=" in outputs["grammar"] else "lark"
        return Source(kind=kind, text=outputs["grammar"], param="structured_outputs.grammar")
    name = next(iter(outputs.keys() - {*CONSTRAINT_OPTIONS}), "structured_outputs")
    raise UnsupportedParameter(
        f"structured_outputs.{name}: llama.cpp has no such constraint", param=f"structured_outputs.{name}"
    )


def _json(schema: Any, param: str, options: dict[str, Any] | None = None) -> Source:
    spacing: tuple[tuple[str, Any], ...] = _SPACED
    pattern = (options or {}).get("whitespace_pattern")
    if (options or {}).get("disable_any_whitespace"):
        spacing = ()
    elif pattern is not None:
        spacing = (("whitespace_pattern", pattern),)
    if isinstance(schema, dict):
        # llguidance would take options of its own from there.
        schema = {key: value for key, value in schema.items() if key != "x-guidance"}
    return Source(kind="json", text=json.dumps(schema, ensure_ascii=False), spacing=spacing, param=param)


def _unanchored(pattern: str) -> str:
    """The pattern without `^` and `$` around it: the whole answer has to match anyhow. llguidance knows no anchors."""
    pattern = pattern.removeprefix("^")
    escapes = len(pattern) - 1 - len(pattern[:-1].rstrip("\\")) if pattern.endswith("$") else 1
    return pattern if escapes % 2 else pattern[:-1]
