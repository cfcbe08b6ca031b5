"""What overrides the file's `args:`, laid over it; and what is wrong with the result, under the name that the operator
used."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from settings.knob import words

ARGS_PREFIX: Final = "LLM_ARGS__"


def merged_args(
    data: Mapping[str, Any],
    environment: Mapping[str, str],
    older_names: Mapping[str, str],
    origins: MutableMapping[str, str],
) -> dict[str, Any]:
    """`data` with the overrides on top; `older_names` says which variable stands for which path of keys. Notes in
    `origins` which path came from which override."""
    merged: dict[str, Any] = {}
    overrides: list[tuple[str, str, Any]] = []
    for key, value in data.items():
        if "." in key:
            overrides.append((f"--arg {key}", key, value))
        else:
            _put(merged, [key], _parsed(value), f"--arg {key}", origins)
    overrides += [
        (name, name.removeprefix(ARGS_PREFIX).lower().replace("__", "."), value)
        for name, value in sorted(environment.items())
        if name.startswith(ARGS_PREFIX) and value
    ]
    overrides += [
        (name, path, environment[name]) for name, path in older_names.items() if environment.get(name)
    ]
    for origin, path, value in overrides:
        _put(merged, path.split("."), _parsed(value), origin, origins)
    return merged


def _put(
    tree: dict[str, Any], path: Sequence[str], value: Any, origin: str, origins: MutableMapping[str, str]
) -> None:
    node = tree
    for key in path[:-1]:
        child = node.get(key)
        node[key] = node = dict(child) if isinstance(child, Mapping) else {}
    old = node.get(path[-1])
    if isinstance(value, Mapping) and isinstance(old, Mapping):
        for key, inner in value.items():
            _put(tree, [*path, str(key)], inner, origin, origins)
        return
    node[path[-1]] = value
    if not origin.startswith("--arg") or len(path) > 1:
        origins[".".join(path)] = origin


def _parsed(value: Any) -> Any:
    """Overrides arrive as text: JSON for a whole section, `null` for nothing, else what pydantic makes of
    it."""
    if not isinstance(value, str):
        return value
    if value.strip().lower() in ("null", "none"):
        return None
    if value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def problems_of(error: ValidationError, model: type[BaseModel], origins: Mapping[str, str]) -> list[str]:
    """Sentences for the operator, each of them once. `origins` is what `merged_args` noted."""
    problems: dict[str, None] = {}
    for problem in error.errors():
        owner: type[BaseModel] = model
        path: list[str] = []
        field: FieldInfo | None = None
        for key in map(str, problem["loc"]):
            field = owner.model_fields.get(key)
            path.append(key)
            inner = field.annotation if field is not None else None
            if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
                break
            owner = inner
        dotted = ".".join(path)
        name = dotted
        for at, origin in origins.items():
            if f"{dotted}.".startswith(f"{at}."):
                name = origin if at == dotted else f"{dotted} (from {origin})"
        if field is None and problem["type"] == "extra_forbidden":
            near = difflib.get_close_matches(path[-1], owner.model_fields, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(owner.model_fields)}"
            where = f" (from {name})" if name != dotted and "(" not in name else ""
            problems[f"{dotted} is not an argument{where}{hint}"] = None
        else:
            problems[f"{name} is {problem['input']!r:.200}; allowed: {words(field, 'allowed')}"] = None
    return list(problems)
