"""vLLM's `structured_outputs` for servers that have other fields for the same: a schema is a `response_format`
everywhere, choices are a grammar."""

from __future__ import annotations

from typing import Any

import msgspec

from backends.errors import InvalidGrammar, UnsupportedParameter
from backends.types import CONSTRAINT_OPTIONS
from backends.vllm.dialect import Dialect

PARAM = "structured_outputs"


def constraint_in(outputs: dict[str, Any]) -> str:
    """The name of the one that is asked for."""
    return next((name for name in outputs if name not in CONSTRAINT_OPTIONS), PARAM)


def translated(constraint: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    """The fields of the body that ask for the same.

    Raises: UnsupportedParameter for what such a server has no field for; InvalidGrammar for a schema that is no JSON.
    """
    given = {name: value for name, value in constraint.items() if value is not None and value is not False}
    if dialect.takes_structured_outputs:
        for name in CONSTRAINT_OPTIONS:
            if name in given and dialect.drops_options:
                raise UnsupportedParameter(
                    f"{PARAM}.{name}: the server decides it for all requests", param=f"{PARAM}.{name}"
                )
        return {PARAM: given}
    if len(given) != 1:
        raise _refused(", ".join(sorted(given)) or "nothing")
    ((name, value),) = given.items()
    if name == "json":
        return {"response_format": _json_schema(value)}
    if name == "json_object":
        return {"response_format": {"type": "json_object"}}
    if name == "regex" and dialect.regex is not None:
        return {dialect.regex: value}
    if name in ("grammar", "choice") and dialect.grammar is not None:
        return {dialect.grammar: value if name == "grammar" else _one_of(value)}
    raise _refused(name)


def _json_schema(schema: object) -> dict[str, Any]:
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema)
        except msgspec.DecodeError:
            raise InvalidGrammar("The schema is not JSON", param=f"{PARAM}.json") from None
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def _one_of(choices: list[str]) -> str:
    """GBNF for exactly one of some texts; its strings are written as JSON's."""
    return "root ::= " + " | ".join(msgspec.json.encode(choice).decode() for choice in choices)


def _refused(what: str) -> UnsupportedParameter:
    return UnsupportedParameter(f"The server cannot honour 'structured_outputs' with {what}", param=PARAM)
