"""The README says of clients what their tests try."""

from __future__ import annotations

from tests.clients.table import README, readme_with_table


def test_the_readmes_table_of_clients_is_made_of_the_tests() -> None:
    assert README.read_text() == readme_with_table(), "run: python -m tests.clients.table"
