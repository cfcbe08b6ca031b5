"""The name of a request."""

from __future__ import annotations

import re

import pytest

from openai_compat.request_id import new_request_id, request_id


@pytest.mark.parametrize("given", ["a", "A-z.0_9", "x" * 128])
def test_a_well_formed_id_is_kept(given: str) -> None:
    assert request_id([(b"x-request-id", given.encode())]) == given


@pytest.mark.parametrize(
    "given", [b"", b"x" * 129, b"a b", b"a\n", b"a\r\nb: c", b"\xc3\xa4", b"a/b", b'{"a":1}', b"a,b"]
)
def test_anything_else_gets_a_new_one(given: bytes) -> None:
    assert re.fullmatch(r"req_[0-9a-f]{24}", request_id([(b"x-request-id", given)]))


def test_two_headers_get_a_new_one() -> None:
    assert request_id([(b"x-request-id", b"a"), (b"x-request-id", b"b")]).startswith("req_")


def test_without_a_header_each_request_gets_its_own() -> None:
    assert request_id([(b"host", b"x")]) != request_id([])


def test_a_new_id_passes_our_own_rule() -> None:
    made = new_request_id()

    assert request_id([(b"x-request-id", made.encode())]) == made
