"""Puts the tables of result files into a page, each between its two markers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.ours import ROOT
from bench.result import Data, read, render

PAGE = ROOT / "docs" / "benchmarks.md"


def begin(name: str) -> str:
    return f"<!-- bench:{name} -->"


def end(name: str) -> str:
    return f"<!-- /bench:{name} -->"


def fill(page: str, name: str, text: str) -> str:
    """The page with `text` between the markers of `name`, in place of what stood there.

    Raises: ValueError when the page does not have these two markers once each.
    """
    between = re.compile(f"({re.escape(begin(name))}\n).*?({re.escape(end(name))})", re.S)
    if page.count(begin(name)) != 1 or len(between.findall(page)) != 1:
        raise ValueError(f"the page must have one line {begin(name)} and one {end(name)} after it")
    return between.sub(lambda found: f"{found[1]}{text}\n{found[2]}", page)


def report(folder: Path, tables: Mapping[str, Callable[[Data], str]], page: Path = PAGE) -> list[str]:
    """Render every result that `folder` has into `page`; gives the names of those that were there.

    Raises: ValueError when the page lacks a marker.
    """
    text = page.read_text()
    found = []
    for name, table in tables.items():
        result = read(folder, name)
        if result is not None:
            text = fill(text, name, render(result, table))
            found.append(name)
    page.write_text(text)
    return found
