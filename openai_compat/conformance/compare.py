"""Several runs side by side, as the tables of docs/conformance.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MARKS = {"passed": "✓", "failed": "✗", "not applicable": "–"}


def comparison(files: Sequence[str]) -> str:
    """Markdown: how many, then each behaviour on which not all agree, then what was seen. A file's stem is its name."""
    runs = {Path(file).stem: _behaviours(file) for file in files}
    behaviours = {key: entry for run in runs.values() for key, entry in run.items()}
    common = {key for key, entry in behaviours.items() if entry["level"] == "openai"}
    lines = ["| Server | Passed | Failed | Not applicable |", "|---|---|---|---|"]
    for name, run in runs.items():
        results = [run[key]["result"] for key in common if key in run]
        lines.append(f"| {name} | " + " | ".join(str(results.count(result)) for result in MARKS) + " |")
    lines += ["", "| Behaviour | " + " | ".join(runs) + " |", "|---" * (len(runs) + 1) + "|"]
    disputed = [key for key in behaviours if key in common and _is_failed_somewhere(key, runs)]
    for key in disputed:
        cells = [MARKS[run[key]["result"]] if key in run else "–" for run in runs.values()]
        lines.append(
            f"| `{behaviours[key]['id']}` {_cell(behaviours[key]['says'])} | " + " | ".join(cells) + " |"
        )
    for name, run in runs.items():
        failed = [run[key] for key in disputed if key in run and run[key]["result"] == "failed"]
        if failed:
            lines += ["", f"**{name}**", ""]
            lines += [f"- `{entry['id']}`: {_cell(entry['seen'])}" for entry in failed]
    return "\n".join(lines) + "\n"


def _behaviours(file: str) -> dict[str, Any]:
    return {
        f"{entry['level']}:{entry['id']}": entry for entry in json.loads(Path(file).read_text())["behaviours"]
    }


def _is_failed_somewhere(key: str, runs: Mapping[str, Mapping[str, Any]]) -> bool:
    return any(key in run and run[key]["result"] == "failed" for run in runs.values())


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
