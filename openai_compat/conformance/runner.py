"""Tries the checks on one server."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from openai_compat.conformance.check import Check, Level, NotApplicable, NotOffered, Variant
from openai_compat.conformance.outcome import Outcome
from openai_compat.conformance.seen import seen_in
from openai_compat.conformance.subject import Subject

Report = Callable[[str], None]
"""Takes a line of progress."""


def try_all(
    checks: Sequence[Check], subject: Subject, *, promised: Sequence[Level], report: Report
) -> list[Outcome]:
    """One outcome for each behaviour, in order. What a server did not promise cannot fail there: it is not offered."""
    outcomes: dict[tuple[str, Level], Outcome] = {}
    for check in checks:
        key = (check.behaviour, check.level)
        outcome = outcomes.setdefault(key, Outcome(check.behaviour, check.group, check.level, check.says))
        for variant in check.variants:
            started = time.monotonic()
            result = _record(outcome, check, variant, subject, is_promised=check.level in promised)
            given = f"[{variant.label}]" if variant.label else ""
            report(f"{time.monotonic() - started:6.1f} s  {result:<11}  {check.function.__name__}{given}")
    return list(outcomes.values())


def not_tried(checks: Sequence[Check], why: str) -> list[Outcome]:
    """The outcomes of what is left out as a whole."""
    outcomes = {
        (check.behaviour, check.level): Outcome(
            check.behaviour, check.group, check.level, check.says, reasons=[why]
        )
        for check in checks
    }
    return list(outcomes.values())


def _record(outcome: Outcome, check: Check, variant: Variant, subject: Subject, *, is_promised: bool) -> str:
    ended = _ended(check, variant, subject)
    shown = f"[{variant.label}] " if variant.label else ""
    if ended is None:
        outcome.num_passed += 1
        return "passed"
    if isinstance(ended, NotApplicable):
        outcome.reasons.append(str(ended))
        return "not tried"
    if isinstance(ended, NotOffered) or not is_promised:
        outcome.refusals.append(shown + (str(ended) if isinstance(ended, NotOffered) else seen_in(ended)))
        return "not offered"
    outcome.failures.append(shown + seen_in(ended))
    return "failed"


def _ended(check: Check, variant: Variant, subject: Subject) -> BaseException | None:
    """How one check ended; None for a pass.

    It runs in a thread of its own, which is left alone, with its connections closed, when its time is over: a server
    that answers nothing, or without end, must not hold up the rest.
    """
    ended: list[BaseException | None] = []

    def attempt() -> None:
        try:
            needed = {name: subject.of(name) for name in check.needs}
            outcome = check.function(**needed, **variant.inputs)
            if inspect.iscoroutine(outcome):
                asyncio.run(outcome)
        except BaseException as error:
            ended.append(error)
        else:
            ended.append(None)

    thread = threading.Thread(target=attempt, name=check.function.__name__, daemon=True)
    thread.start()
    thread.join(check.time_limit_s)
    if not ended:
        subject.renew()
        return AssertionError(f"no end within {check.time_limit_s:g} s")
    return ended[0]


def documents(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    return [outcome.document() for outcome in outcomes]
