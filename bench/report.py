"""Puts the tables of result files into a page, each between its two markers."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from bench.measurement import Measurement
from bench.ours import ROOT
from bench.result import read, render
from bench.summary import NAME, summary
from loadtests.page import fill as page_filled

PAGE = ROOT / "docs" / "benchmarks.md"


def begin(name: str) -> str:
    return f"<!-- bench:{name} -->"


def end(name: str) -> str:
    return f"<!-- /bench:{name} -->"


def fill(page: str, name: str, text: str) -> str:
    """The page with `text` between the markers of `name`. Raises: ValueError when it does not have them once each."""
    return page_filled(page, begin(name), end(name), text)


def report(
    folder: Path,
    measurements: Iterable[Measurement],
    page: Path = PAGE,
    only: Collection[str] | None = None,
) -> list[str]:
    """Render the results that `folder` has into `page`, and the table of all comparisons; gives the names of those that
    were there. `only`: whose sections are written; the table has every comparison that there is.

    Raises: ValueError when the page lacks a marker.
    """
    text = page.read_text()
    found = []
    known = list(measurements)
    for measurement in known:
        result = read(folder, measurement.name)
        if result is not None and (only is None or measurement.name in only):
            text = fill(text, measurement.name, render(result, measurement.table))
            found.append(measurement.name)
    compared = summary(folder, known)
    if compared is not None:
        text = fill(text, NAME, compared)
    page.write_text(text)
    return found
