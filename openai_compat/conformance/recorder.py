"""A plugin of pytest that writes the outcome of each behaviour to the file that `--outcomes-to` names.

A behaviour is the part of a test's name before `__`; the marker `ours` makes it an extension.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from openai_compat.conformance.outcome import Level, Outcome

if TYPE_CHECKING:
    import pytest

OPTION = "--outcomes-to"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, required=True)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Recorder(Path(config.getoption(OPTION))))


class Recorder:
    """Outcomes in the order in which the behaviours were collected."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._outcomes: dict[tuple[str, Level], Outcome] = {}

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        self._outcome_of(item.nodeid, is_ours=item.get_closest_marker("ours") is not None)

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        for item in items:
            self._outcome_of(item.nodeid, is_ours=True).reasons.append("only this service promises it")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = self._outcome_of(report.nodeid, is_ours="ours" in report.keywords)
        if report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else "skipped"
            outcome.reasons.append(reason.removeprefix("Skipped: "))
        elif report.failed:
            outcome.failures.append(_variant(report.nodeid) + _seen(report))
        elif report.when == "call":
            outcome.num_passed += 1

    def pytest_sessionfinish(self) -> None:
        self._file.write_text(json.dumps([outcome.document() for outcome in self._outcomes.values()]))

    def _outcome_of(self, nodeid: str, *, is_ours: bool) -> Outcome:
        path, _, rest = nodeid.partition("::")
        name, _, says = rest.partition("[")[0].removeprefix("test_").partition("__")
        level: Level = "extension" if is_ours else "openai"
        if (name, level) not in self._outcomes:
            group = Path(path).stem.removeprefix("test_")
            self._outcomes[name, level] = Outcome(name, group, level, (says or name).replace("_", " "))
        return self._outcomes[name, level]


def _variant(nodeid: str) -> str:
    """What a check with several inputs was given: "[…] " or nothing."""
    _, bracket, given = nodeid.partition("[")
    return f"[{given.removesuffix(']')[:40]}] " if bracket else ""


def _seen(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    message = str(crash.message if crash is not None else report.longrepr)
    return " ".join(message.removeprefix("AssertionError: ").split())
