"""docs/fields.md has a row for every field, and what a row may say."""

from __future__ import annotations

import re

import pytest

from tests.fields.survey import VALUES, documented, rows_needed


@pytest.mark.parametrize("kind", VALUES)
def test_every_field_of_a_body_is_tried(kind: str) -> None:
    assert rows_needed(kind) <= set(VALUES[kind])


def test_the_tables_rows_are_those_that_are_tried() -> None:
    assert list(documented()) == [(kind, row) for kind, rows in VALUES.items() for row in rows]


def test_a_cell_says_one_of_three_things() -> None:
    cells = {cell for row in documented().values() for cell in row.values()}

    assert all(re.fullmatch(r"yes|named|\d{3} `\w+`", cell) for cell in cells), cells
