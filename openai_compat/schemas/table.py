"""A request body as a table of fields, each with a stated policy: nothing is dropped in silence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from backends.types import Feature
from openai_compat.schemas.fields import Anything, Kind, OneOf, Schema, nullable
from openai_compat.schemas.problems import INVALID, Problems


class Policy(Enum):
    """What happens to a field."""

    HONOURED = "honoured"
    HARMLESS = "harmless"
    """Known, of no use to this service: named in `x-llm-ignored`, no error even under `?strict=1`."""
    REFUSED = "refused"
    """Known, checked, and then 400 `unsupported_parameter`, except for the values that ask for nothing."""
    FEATURE = "feature"
    """Honoured where the backend has the field's feature, refused elsewhere, except for the values that ask for
    nothing."""
    ROUTING = "routing"
    """Could carry our key to another server: 422 always."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field. `harmless_if` tells whether a checked value of it asks for nothing after all."""

    kind: Kind
    doc: str
    policy: Policy = Policy.HONOURED
    required: bool = False
    default: Any = None
    harmless_if: Callable[[Any], bool] | None = None
    feature: Feature | None = None


Table = Mapping[str, Field]

ROUTING: Final[Table] = {
    name: Field(Anything(), "Never accepted: a caller does not choose where our keys go.", Policy.ROUTING)
    for name in (
        "api_base",
        "api_key",
        "base_url",
        "custom_llm_provider",
        "extra_headers",
        "litellm_params",
        "fallbacks",
        "model_list",
    )
}


PRIVACY: Final = Field(
    OneOf("local", "any"), "`local` keeps what is sent from every cloud; a caller's own rule can be no laxer."
)


def harmless(kind: Kind, doc: str) -> Field:
    return Field(kind, doc, Policy.HARMLESS)


def refused(kind: Kind, doc: str, *, unless: Callable[[Any], bool] | None = None) -> Field:
    return Field(kind, doc, Policy.REFUSED, harmless_if=unless)


def needs(feature: Feature, kind: Kind, doc: str, *, unless: Callable[[Any], bool] | None = None) -> Field:
    return Field(kind, doc, Policy.FEATURE, harmless_if=unless, feature=feature)


@dataclass(slots=True)
class Checked:
    """What is left of a body: the checked values of the fields that were there and not null.

    `needed`: fields that only a backend with the feature can honour.
    """

    values: dict[str, Any] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    needed: dict[str, Feature] = field(default_factory=dict)


def check_body(body: Mapping[str, Any], table: Table, problems: Problems, *, strict: bool) -> Checked:
    """Check each field by its kind and sort it by its policy. Problems are collected, nothing is raised.

    Under `strict` an unknown field is a problem; otherwise it is ignored by name.
    """
    checked = Checked()
    for name, value in body.items():
        if value is None:
            continue
        spec = table.get(name)
        if spec is None:
            if strict:
                problems.add("extra_forbidden", (name[:128],), "Extra inputs are not permitted", value)
            else:
                checked.ignored.append(name)
            continue
        if spec.policy is Policy.ROUTING:
            msg = "This field is not accepted: requests cannot choose where they are routed"
            problems.add("extra_forbidden", (name,), msg, None)
            continue
        result = spec.kind.check(value, (name,), problems)
        if result is not INVALID:
            _sort(name, spec, result, checked)
    for name, spec in table.items():
        if spec.required and body.get(name) is None:
            problems.add("missing", (name,), "Field required", None)
    return checked


def _sort(name: str, spec: Field, value: Any, checked: Checked) -> None:
    if spec.policy is Policy.HARMLESS:
        checked.ignored.append(name)
        return
    checked.values[name] = value
    if spec.harmless_if is not None and spec.harmless_if(value):
        return
    if spec.policy is Policy.REFUSED:
        checked.refused.append(name)
    elif spec.feature is not None:
        checked.needed[name] = spec.feature


def json_schema(title: str, table: Table) -> Schema:
    """The table as JSON schema. Routing fields are absent: they are never accepted."""
    properties: dict[str, Any] = {}
    for name, spec in table.items():
        if spec.policy is Policy.ROUTING:
            continue
        schema = dict(spec.kind.schema) if spec.required else nullable(spec.kind.schema)
        schema["description"] = _POLICY_PREFIX[spec.policy] + spec.doc
        if spec.default is not None:
            schema["default"] = spec.default
        properties[name] = schema
    return {
        "title": title,
        "type": "object",
        "properties": properties,
        "required": [name for name, spec in table.items() if spec.required],
        "additionalProperties": True,
    }


_POLICY_PREFIX: Final = {
    Policy.HONOURED: "",
    Policy.HARMLESS: "Accepted and named in x-llm-ignored. ",
    Policy.REFUSED: "Refused with unsupported_parameter. ",
    Policy.FEATURE: "Refused with unsupported_parameter where the backend cannot honour it. ",
}
