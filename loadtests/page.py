"""Markdown: tables, and a page that people write with parts that commands write, each between two markers."""

from __future__ import annotations

import re
from collections.abc import Sequence


def fill(page: str, begin: str, end: str, text: str) -> str:
    """The page with `text` between the two markers, in place of what stood there.

    Raises: ValueError when the page does not have them once each, in this order.
    """
    between = re.compile(f"({re.escape(begin)}\n).*?({re.escape(end)})", re.S)
    if page.count(begin) != 1 or page.count(end) != 1 or len(between.findall(page)) != 1:
        raise ValueError(f"the page must have one line {begin} and one {end} after it")
    return between.sub(lambda found: f"{found[1]}{text}\n{found[2]}", page)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, is_numeric: bool = False) -> str:
    """With what would break a cell taken out of it. `is_numeric`: every column but the first holds numbers."""
    lines = [[_cell(cell) for cell in line] for line in (head, *rows)]
    lines.insert(1, ["---", *["---:" if is_numeric else "---"] * (len(head) - 1)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
