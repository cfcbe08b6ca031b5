"""Spelling of paths, and the table of routes."""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st

from openai_compat.errors import MethodNotAllowed, NotFound
from openai_compat.paths import RouteTable, normalise_path


@pytest.mark.parametrize(
    ("sent", "path", "meant"),
    [
        ("/v1/models", "/v1/models", "/v1/models"),
        ("/v1/models/", "/v1/models/", "/v1/models"),
        ("//v1//models//", "//v1//models//", "/v1/models"),
        ("/v1/chat//completions/", "/v1/chat//completions/", "/v1/chat/completions"),
        ("/", "/", "/"),
        ("//", "//", "/"),
        ("/health///", "/health///", "/health"),
        ("/v1/models/org/name", "/v1/models/org/name", "/v1/models/org/name"),
        ("/v1//models//org/name/", "/v1//models//org/name/", "/v1/models/org/name"),
        ("/v1/models/org//name", "/v1/models/org//name", "/v1/models/org//name"),
        ("/v1/models/org%2F%2Fname", "/v1/models/org//name", "/v1/models/org//name"),
        ("/v1/models/org%2F", "/v1/models/org/", "/v1/models/org/"),
        ("/v1/models/org%2F/", "/v1/models/org//", "/v1/models/org/"),
        ("/v1/models/load/", "/v1/models/load/", "/v1/models/load"),
        ("/v1/models/%E6%A8%A1", "/v1/models/模", "/v1/models/模"),
        ("/v1/models//", "/v1/models//", "/v1/models"),
    ],
)
def test_extra_slashes_vanish_but_never_inside_a_model_id(sent: str, path: str, meant: str) -> None:
    assert normalise_path(path, sent.encode("ascii")) == meant


@given(st.text(alphabet="/v1modelsx", max_size=40).map("/".__add__))
def test_a_normal_path_stays_as_it_is(path: str) -> None:
    once = normalise_path(path, path.encode())

    assert normalise_path(once, once.encode()) == once


TABLE = RouteTable(
    [
        ("/v1/models", ["GET"]),
        ("/v1/models/load", ["POST"]),
        ("/v1/models/{model_id:path}", ["GET"]),
        ("/health", ["GET", "HEAD"]),
        ("/{rest:path}", ["GET", "POST"]),
    ]
)


@pytest.mark.parametrize(
    ("path", "template"),
    [
        ("/v1/models", "/v1/models"),
        ("/v1/models/load", "/v1/models/load"),
        ("/v1/models/org/name", "/v1/models/{model_id:path}"),
        ("/health", "/health"),
    ],
)
def test_a_path_has_its_template(path: str, template: str) -> None:
    assert TABLE.find(path).template == template


@pytest.mark.parametrize("path", ["/", "/nope", "/v1", "/Health", "/v1/models2", "/../etc/passwd"])
def test_a_catch_all_knows_nothing(path: str) -> None:
    with pytest.raises(NotFound):
        TABLE.find(path)


def test_load_is_no_model_id() -> None:
    with pytest.raises(MethodNotAllowed) as caught:
        TABLE.find("/v1/models/load").require("GET")

    assert caught.value.allow == ("OPTIONS", "POST")


def test_a_route_is_protected_unless_it_is_named_public() -> None:
    assert TABLE.find("/health").public
    assert not TABLE.find("/v1/models").public
    assert not RouteTable([("/new", ["GET"])]).find("/new").public


def test_the_table_is_read_from_the_app() -> None:
    app = FastAPI()

    @app.get("/v1/models/{model_id:path}")
    def one(model_id: str) -> None: ...

    @app.post("/v1/models/load")
    def load() -> None: ...

    table = RouteTable.of(app.routes)
    assert table.find("/v1/models/load").methods == {"POST"}
    assert table.find("/v1/models/a/b").methods == {"GET"}
    assert table.find("/docs").methods >= {"GET"}
