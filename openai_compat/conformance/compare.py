"""Several runs side by side, as the tables of docs/conformance.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

MARKS: Final = {"passed": "✓", "failed": "✗", "not offered": "–", "not tried": "·"}
TITLES: Final = {"openai": "OpenAI's API", "extension": "This project's extensions"}

Run = Mapping[tuple[str, str], Mapping[str, Any]]


class NoRun(Exception):
    """A file that holds no run; the message names it and says why."""


def comparison(files: Sequence[str]) -> str:
    """Markdown: how many of each, every behaviour with a mark for each server, and what was seen where one failed.
    A file's stem is the server's name. Raises: NoRun."""
    runs: dict[str, Run] = {}
    for file in files:
        name = Path(file).stem
        if name in runs:
            raise NoRun(
                f"{file}: another of the files is called {name!r}, and a table cannot tell them apart"
            )
        runs[name] = _behaviours(file)
    known = {key: entry for run in runs.values() for key, entry in run.items()}
    lines = ["| | Server | " + " | ".join(f"{mark} {result}" for result, mark in MARKS.items()) + " |"]
    lines += ["|---" * (len(MARKS) + 2) + "|"]
    for level, title in TITLES.items():
        for name, run in runs.items():
            results = [run[key]["result"] for key in known if key[0] == level and key in run]
            counts = " | ".join(str(results.count(result)) for result in MARKS)
            lines.append(f"| {title} | {name} | {counts} |")
    for level, title in TITLES.items():
        lines += ["", f"### {title}", "", "| Behaviour | " + " | ".join(runs) + " |"]
        lines += ["|---" * (len(runs) + 1) + "|"]
        lines += [_row(key, entry, runs) for key, entry in known.items() if key[0] == level]
    for name, run in runs.items():
        failed = [entry for entry in run.values() if entry["result"] == "failed"]
        if failed:
            lines += ["", f"**{name}**", ""]
            lines += [f"- `{entry['id']}`: {_cell(entry['seen'])}" for entry in failed]
    return "\n".join(lines) + "\n"


def _row(key: tuple[str, str], entry: Mapping[str, Any], runs: Mapping[str, Run]) -> str:
    marks = [MARKS[run[key]["result"] if key in run else "not tried"] for run in runs.values()]
    return f"| `{entry['id']}` {_cell(entry['says'])} | " + " | ".join(marks) + " |"


def _behaviours(file: str) -> Run:
    try:
        behaviours = json.loads(Path(file).read_text("utf-8"))["behaviours"]
        run = {(entry["level"], entry["id"]): entry for entry in behaviours}
        is_run = all(entry["result"] in MARKS and entry["says"] + entry["seen"] for entry in behaviours)
    except OSError as error:
        raise NoRun(f"{file} cannot be read: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, LookupError, TypeError, RecursionError):
        is_run = False
    if not is_run:
        raise NoRun(f"{file} is not what `conformance --json` writes")
    return run


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
