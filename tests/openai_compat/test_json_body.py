"""Bytes become one JSON object, or one 422."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_compat.errors import ValidationFailed, error_body
from openai_compat.schemas.json_body import parse_object

UNREADABLE = {
    "empty": b"",
    "blank": b" \r\n\t",
    "truncated": b'{"a": 1',
    "trailing garbage": b'{"a": 1} x',
    "trailing comma": b'{"a": 1,}',
    "NaN": b'{"a": NaN}',
    "Infinity": b'{"a": -Infinity}',
    "1e400": b'{"a": 1e400}',
    "a number of 5000 digits": b'{"a": ' + b"9" * 5000 + b"}",
    "a lone high surrogate": b'{"a": "\\ud800"}',
    "a lone low surrogate": b'{"a": "x\\udc00y"}',
    "surrogates the wrong way round": b'{"a": "\\udc00\\ud800"}',
    "an encoded surrogate": b'{"a": "\xed\xa0\x80"}',
    "latin-1": b'{"a": "\xe9"}',
    "utf-16": '{"a": 1}'.encode("utf-16"),
    "5000 open brackets": b"[" * 5000,
    "5000 nested objects": b'{"a":' * 5000 + b"1" + b"}" * 5000,
}


@pytest.mark.parametrize("body", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_unreadable_json_is_a_validation_error_of_the_body(body: bytes) -> None:
    with pytest.raises(ValidationFailed) as caught:
        parse_object(body)

    entry = json.loads(error_body(caught.value))["detail"][0]
    assert entry["type"] == "json_invalid"
    assert entry["loc"] == ["body"]
    assert caught.value.param is None


@pytest.mark.parametrize("body", [b"null", b"[]", b'"x"', b"5", b"true", b"1.5"])
def test_json_that_is_no_object_is_a_validation_error(body: bytes) -> None:
    with pytest.raises(ValidationFailed) as caught:
        parse_object(body)

    assert caught.value.entries[0]["type"] == "dict_type"


def test_a_surrogate_pair_is_one_character() -> None:
    assert parse_object(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}


def test_the_last_of_two_equal_keys_wins() -> None:
    assert parse_object(b'{"a": 1, "a": 2}') == {"a": 2}


@given(st.binary(max_size=60))
def test_any_bytes_give_an_object_or_a_validation_error(body: bytes) -> None:
    try:
        parsed = parse_object(body)
    except ValidationFailed as error:
        json.loads(error_body(error))
    else:
        json.dumps(parsed, ensure_ascii=False, allow_nan=False).encode()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_what_json_writes_is_read_back(value: dict[str, object]) -> None:
    try:
        body = json.dumps(value).encode()
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return

    assert parse_object(body) == value
