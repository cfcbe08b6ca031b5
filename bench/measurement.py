"""What every measurement is made of, and what it is given."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PORTION_OF_ERRORS = 20
"""How many error messages a result keeps in words."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The same for all measurements of one run."""

    out: Path
    priority: int | None
    llama_server: Path | None
    seed: int

    def say(self, line: str) -> None:
        """Progress goes to stderr; stdout carries the tables."""
        print(line, file=sys.stderr, flush=True)


@dataclass(slots=True)
class Findings:
    """What a measurement adds to the conditions that every result states."""

    parameters: dict[str, Any]
    n: str
    data: dict[str, Any]
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    client: str = "aiohttp, one connection per request"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One subcommand. `table` needs the findings' `data` alone, so that a report can be made later."""

    name: str
    title: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    measure: Callable[[argparse.Namespace, Setup], Awaitable[Findings]]
    table: Callable[[Mapping[str, Any]], str]
    quick: Sequence[str]
    """Arguments that make it a smoke test of seconds."""


def whole_numbers(text: str) -> list[int]:
    """`1,8,16` as a list, for argparse."""
    numbers = [int(part) for part in text.split(",")]
    if not all(number > 0 for number in numbers):
        raise ValueError(text)
    return numbers
