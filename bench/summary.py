"""The one table of all comparisons with peers, made of the result files that are there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bench.measurement import Measurement, Ratio
from bench.result import Data, markdown, read, shown

NAME = "peers"
"""Of the section of the page, and of the file that says what was left out."""
GAPS = 3


def note_left_out(folder: Path, left_out: Mapping[str, str]) -> None:
    """Keep, beside the results, which comparisons there are none of and why."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{NAME}.json").write_text(
        json.dumps({"left_out": dict(left_out)}, indent=1, ensure_ascii=False) + "\n"
    )


def summary(folder: Path, measurements: Iterable[Measurement]) -> str | None:
    """The table, the largest gaps, and what each part of it was measured with. None: there is no result."""
    rows: list[Ratio] = []
    sources: list[str] = []
    for measurement in measurements:
        if measurement.ratios is None or (result := read(folder, measurement.name)) is None:
            continue
        rows += measurement.ratios(result["data"])
        sources.append(_source(result))
    if not rows:
        return None
    file = folder / f"{NAME}.json"
    left_out: dict[str, str] = json.loads(file.read_text())["left_out"] if file.exists() else {}
    lines = [table(rows), "", *gaps(rows), "", *sources]
    return "\n".join(lines + [f"- **Left out**: {name}: {why}" for name, why in left_out.items()])


def table(rows: Sequence[Ratio]) -> str:
    head = ["Our route against · what", "ours", "theirs", "ours ÷ theirs", "better is", "better was", "goal"]
    return markdown(
        head,
        [
            [
                f"{row.route} against {row.peer} · {row.what}",
                shown(row.ours, row.digits),
                shown(row.theirs, row.digits),
                shown(row.ratio, 2),
                "more" if row.is_more_better else "less",
                row.better,
                row.goal,
            ]
            for row in rows
        ],
    )


def gaps(rows: Sequence[Ratio]) -> list[str]:
    """The rows in which ours is worst against a peer, by the medians, in words: one of each peer, since what makes one
    number of a comparison worse often makes the next one worse too."""
    behind = [(row.loss, row) for row in rows if row.loss is not None and row.loss > 1]
    behind.sort(key=lambda pair: pair[0])
    largest = {(row.route, row.peer): (loss, row) for loss, row in behind}
    if not behind:
        return ["Nowhere is ours behind by the medians."]
    lines = [
        f"Ours is behind in {len(behind)} of {len(rows)} rows; the largest gap to each, by the medians:",
        "",
    ]
    for number, (loss, row) in enumerate(sorted(largest.values(), key=lambda pair: -pair[0])[:GAPS], 1):
        doubt = "" if row.better == row.peer else "; single pairs lie on both sides of 1"
        lines.append(
            f"{number}. {row.route} against {row.peer}, {row.what}: {100 * (loss - 1):.0f} % behind{doubt}"
        )
    return lines


def _source(result: Data) -> str:
    errors = len(result["errors"])
    return (
        f"- {result['name']}: {result['started_at']}, revision {result['versions'].get('llm-inference', 'unknown')}, "
        f"{result['scheduling']}; {result['n']}; errors: {errors}"
        + "".join(f"; **warning**: {text}" for text in result["warnings"])
    )
