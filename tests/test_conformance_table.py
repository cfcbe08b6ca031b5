"""The tables of docs/conformance.md say what a run found, and of nothing else."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from openai_compat.conformance.cases import all_checks
from openai_compat.conformance.compare import MARKS, TITLES

PAGE = (Path(__file__).parents[1] / "docs" / "conformance.md").read_text()
TABLES = PAGE.partition("<!-- runs -->")[2].partition("<!-- /runs -->")[0]
OURS = "llm-inference"


@dataclass(frozen=True)
class Table:
    servers: list[str]
    marks: dict[str, list[str]]
    """Of each behaviour, one for each server."""


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def table_of(level: str) -> Table:
    section = TABLES.partition(f"### {TITLES[level]}\n")[2].partition("\n### ")[0]
    head, _, *rows = [line for line in section.splitlines() if line.startswith("|")]
    found = {re.findall(r"`([^`]+)`", row)[0]: cells(row)[1:] for row in rows}
    assert len(found) == len(rows), "a behaviour is there twice"
    return Table(servers=cells(head)[1:], marks=found)


def counted() -> dict[tuple[str, str], list[int]]:
    """The first table: of each title and server, how many of each mark."""
    rows = [
        cells(line)
        for line in TABLES.splitlines()
        if line.startswith(tuple(f"| {t} |" for t in TITLES.values()))
    ]
    return {(title, server): [int(number) for number in numbers] for title, server, *numbers in rows}


@pytest.mark.parametrize("level", TITLES)
def test_each_behaviour_of_the_table_is_one_that_is_tried(level: str) -> None:
    known = {check.behaviour for check in all_checks() if check.level == level}

    assert set(table_of(level).marks) <= known


@pytest.mark.parametrize("level", TITLES)
def test_each_cell_is_a_mark_and_the_first_table_counts_them(level: str) -> None:
    table = table_of(level)

    for column, server in enumerate(table.servers):
        marks = [row[column] for row in table.marks.values()]
        assert set(marks) <= set(MARKS.values()), server
        assert counted()[TITLES[level], server] == [marks.count(mark) for mark in MARKS.values()], server


def test_six_servers_were_tried_and_three_of_them_are_this_service() -> None:
    servers = table_of("openai").servers

    assert len(servers) == 6
    assert [server.startswith(OURS) for server in servers].count(True) == 3
    assert servers == table_of("extension").servers


@pytest.mark.parametrize("level", TITLES)
def test_this_service_fails_nowhere(level: str) -> None:
    table = table_of(level)

    for column, server in enumerate(table.servers):
        if server.startswith(OURS):
            assert [name for name, row in table.marks.items() if row[column] == MARKS["failed"]] == [], server


def test_an_extension_counts_against_nobody_else() -> None:
    table = table_of("extension")

    for column, server in enumerate(table.servers):
        if not server.startswith(OURS):
            assert MARKS["failed"] not in [row[column] for row in table.marks.values()], server


def test_each_failure_is_explained_below() -> None:
    table = table_of("openai")

    for column, server in enumerate(table.servers):
        told = TABLES.partition(f"\n**{server}**\n")[2].partition("\n**")[0]
        for name, row in table.marks.items():
            if row[column] == MARKS["failed"]:
                assert f"- `{name}`: " in told, (server, name)
