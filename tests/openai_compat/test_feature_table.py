"""The documented table of what each backend takes is the one that the gateway goes by."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from backends.registry import FEATURES
from backends.types import Feature
from models.card import BACKEND_KINDS
from openai_compat.schemas.chat import CHAT
from openai_compat.schemas.completions import COMPLETIONS
from openai_compat.schemas.table import Policy

DOCUMENT = Path(__file__).parents[2] / "docs" / "openai-compat.md"


def rows() -> list[list[str]]:
    """The cells of the table, its head first."""
    section = DOCUMENT.read_text().partition("## What each backend takes")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_backend_takes_what_the_document_says() -> None:
    head, _, *body = rows()
    kinds = [kind.strip("`") for kind in head[2:]]

    assert set(kinds) == set(BACKEND_KINDS) == set(FEATURES)
    assert [name for name, *_ in body] == list(get_args(Feature))
    for name, _, *cells in body:
        told = {
            kind for kind, cell in zip(kinds, cells, strict=True) if not cell.startswith(("no", "remote"))
        }
        assert told == {kind for kind in kinds if name in FEATURES[kind]}, name


def test_every_field_that_depends_on_the_backend_is_documented() -> None:
    told = {name: fields for name, fields, *_ in rows()[2:]}

    for table in (CHAT, COMPLETIONS):
        for name, field in table.items():
            if field.policy is Policy.FEATURE:
                assert field.feature is not None
                assert f"`{name}`" in told[field.feature]
