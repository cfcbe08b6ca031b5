"""Makes `report.md` and `report.html` of what a run left: `python -m loadtests report FOLDER`."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

from loadtests.charts import charts
from loadtests.findings import Findings, look_at
from loadtests.page import markdown_table
from loadtests.run_folder import read_run
from loadtests.tables import Table, headline, tables

NUMBER = ' class="number"'
STYLE = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Report:
    """What was written, and what it says."""

    markdown: Path
    html: Path
    findings: Findings
    is_interrupted: bool = False


def write_report(folder: Path) -> Report:
    """Both files, into the run's own folder. Raises: OSError, ValueError where it holds no run."""
    found = look_at(read_run(folder))
    report = Report(folder / "report.md", folder / "report.html", found)
    report.markdown.write_text(as_markdown(found), encoding="utf-8")
    report.html.write_text(as_html(found), encoding="utf-8")
    return report


def as_markdown(found: Findings) -> str:
    parts = [f"# {found.facts['workload']}", headline(found)]
    if found.problems:
        parts.append("\n".join(f"- **Mind:** {problem}" for problem in found.problems))
    parts += [_markdown_table(table) for table in tables(found)]
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: Table) -> str:
    note = f"\n\n{table.note}" if table.note else ""
    return f"## {table.title}\n\n{markdown_table(table.head, table.rows)}{note}"


def as_html(found: Findings) -> str:
    """One page that needs nothing else: no script, no font, no address."""
    title = escape(f"Load test: {found.facts['workload']}")
    all_tables = {table.title: table for table in tables(found)}
    conditions = all_tables.pop("Conditions")
    mind = "".join(f'<p class="mind">{escape(problem)}</p>' for problem in found.problems)
    verdict = ""
    if found.verdicts:
        word, kind = (
            ("every expectation holds", "good") if found.holds else ("an expectation does not hold", "bad")
        )
        verdict = f'<p class="verdict {kind}">{word}</p>'
    drawn = "".join(
        f"<figure><figcaption>{escape(chart.title)}</figcaption>{chart.render()}{_note(chart.note)}</figure>"
        for chart in charts(found)
    )
    rest = "".join(_html_table(table) for table in all_tables.values())
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><main><h1>{title}</h1>"
        f'<p class="question">{escape(found.workload.question)}</p><p class="headline">{escape(headline(found))}</p>'
        f"{verdict}{mind}{_html_table(conditions, is_pairs=True)}"
        f'<div class="charts">{drawn}</div>{rest}</main></body></html>\n'
    )


def _html_table(table: Table, *, is_pairs: bool = False) -> str:
    columns = zip(table.head, zip(*table.rows, strict=True), strict=True)
    head = "".join(
        f"<th{NUMBER if any(map(_is_number, cells)) and not is_pairs else ''}>{escape(name)}</th>"
        for name, cells in columns
    )
    rows = "".join(
        "<tr>" + "".join(_html_cell(cell, is_text=is_pairs) for cell in row) + "</tr>" for row in table.rows
    )
    top = "" if is_pairs else f"<thead><tr>{head}</tr></thead>"
    kind = ' class="pairs"' if is_pairs else ""
    body = f"<table{kind}>{top}<tbody>{rows}</tbody></table>"
    return (
        f'<section><h2>{escape(table.title)}</h2><div class="wide">{body}</div>{_note(table.note)}</section>'
    )


def _html_cell(text: str, *, is_text: bool) -> str:
    kind = NUMBER if _is_number(text) and not is_text else ""
    if text == "DOES NOT HOLD":
        kind = ' class="bad"'
    return f"<td{kind}>{escape(text)}</td>"


def _is_number(text: str) -> bool:
    return text[:1].isdigit() and len(text) < 12


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>' if text else ""
