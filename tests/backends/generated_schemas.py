"""Schemas by chance, the same ones every time: what callers ask answers to satisfy."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

NAMES = st.sampled_from(["name", "age", "città", "a b", "pattern", "x"])
WORDS = st.sampled_from(["red", "green", "blue", "", 'say "hi"', "é", "🦙", "\\n", "tab\t"])


def integers() -> st.SearchStrategy[dict[str, Any]]:
    bounds = st.tuples(st.integers(-1000, 1000), st.integers(0, 1000))
    return st.one_of(
        bounds.map(lambda b: {"type": "integer", "minimum": b[0], "maximum": b[0] + b[1]}),
        bounds.map(
            lambda b: {"type": "integer", "exclusiveMinimum": b[0], "exclusiveMaximum": b[0] + b[1] + 2}
        ),
        st.integers(2, 9).map(lambda n: {"type": "integer", "multipleOf": n, "minimum": 0, "maximum": 500}),
    )


def strings() -> st.SearchStrategy[dict[str, Any]]:
    sizes = st.tuples(st.integers(0, 4), st.integers(0, 6))
    return st.one_of(
        sizes.map(lambda s: {"type": "string", "minLength": s[0], "maxLength": s[0] + s[1]}),
        st.sampled_from(["^[a-f]{2,4}$", "^(yes|no)$", "^\\d{2}-\\d{2}$", "^[^a-z]{3}$", "^.{1,5}$"]).map(
            lambda pattern: {"type": "string", "pattern": pattern}
        ),
        st.just({"type": "string", "format": "date"}),
    )


def leaves() -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(
        integers(),
        strings(),
        st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["boolean", "null"]}]),
        st.just({"type": "number", "minimum": 0, "maximum": 10}),
        st.lists(WORDS, min_size=1, max_size=4, unique=True).map(lambda words: {"enum": words}),
        st.one_of(WORDS, st.integers(-5, 5), st.none()).map(lambda value: {"const": value}),
        st.just({"$ref": "#/$defs/shade"}),
    )


@st.composite
def objects(draw: st.DrawFn, member: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    properties = draw(st.dictionaries(NAMES, member, min_size=1, max_size=3))
    made: dict[str, Any] = {"type": "object", "properties": properties}
    if draw(st.booleans()):
        made["required"] = draw(st.lists(st.sampled_from(sorted(properties)), unique=True))
    if draw(st.booleans()):
        made["additionalProperties"] = False
    return made


def composites(member: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    sizes = st.tuples(st.integers(0, 2), st.integers(0, 2))
    return st.one_of(
        objects(member),
        st.tuples(member, sizes).map(
            lambda made: {
                "type": "array",
                "items": made[0],
                "minItems": made[1][0],
                "maxItems": made[1][0] + made[1][1],
            }
        ),
        st.lists(member, min_size=1, max_size=3).map(
            lambda items: {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
        ),
        st.lists(member, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
    )


SCHEMAS = st.recursive(leaves(), composites, max_leaves=5).map(
    lambda schema: {**schema, "$defs": {"shade": {"enum": ["dark", "light"]}}}
)


def generated(count: int) -> list[dict[str, Any]]:
    """The same ones every time."""
    made: list[dict[str, Any]] = []

    @settings(
        max_examples=count,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],  # a busy machine
    )
    @given(SCHEMAS)
    def collect(schema: dict[str, Any]) -> None:
        made.append(schema)

    collect()
    return made
