"""The smoke's first part fails when a route is broken on purpose. Every kind of user of it that a server of a few lines
can answer, one after the other, without locust: what it says goes through a proxy that breaks it."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadtests.behaviour import Behaviour
from loadtests.findings import Findings
from loadtests.record import Record, to_lines
from loadtests.report import write_report
from loadtests.run_folder import RECORDS, RUN, facts, write_json
from loadtests.smoke import PARTS
from loadtests.target import Target
from loadtests.workload import load_workload
from tests.loadtests.breaking_proxy import broken
from tests.loadtests.scripted_server import Scripted, ScriptedServer
from tests.loadtests.test_behaviour import answer

STEPS = 25
"""Of each kind: more than the hundred completions of which one is answered with 500."""


def told(method: str, path: str, body: Any) -> Scripted:
    is_known = method == "POST" or path == "/v1/models"
    return answer(method, path, body) if is_known else Scripted(status=404, body={})


def smoked(folder: Path, how: str | None) -> Findings:
    """What the smoke finds of a service that is broken like that."""
    workload = replace(load_workload(PARTS[0][0]), warmup_s=0.0)
    with ExitStack() as stack:
        server = stack.enter_context(ScriptedServer(told).running())
        target = Target(host=stack.enter_context(broken(server.url, how)), model="m", embedding_model="v")
        begin, records = time.time(), list[Record]()
        for mix in workload.users:
            if mix.kind == "over_limit":  # it waits for a limit, and this server has none
                continue
            behaviour = Behaviour(mix, workload, target, 0)
            stack.callback(behaviour.close)
            records += [behaviour.step() for _ in range(STEPS)]
        known = facts(workload, target, quantisation=None)
    # As long as its warm-up and no longer: what counts begins behind it.
    known |= {"begin": begin - load_workload(PARTS[0][0]).warmup_s, "end": time.time(), "running_after": 0}
    write_json(folder / RUN, known)
    (folder / RECORDS).write_text(to_lines(records))
    return write_report(folder).findings


def failed(found: Findings) -> tuple[bool, set[str]]:
    """Whether the expectation that nothing fails holds, and what failed."""
    verdict = next(v for v in found.verdicts if v.expectation.text == "failed ÷ requests ≤ 0")
    return verdict.holds, {kind for outcome, kind, *_ in found.errors if outcome == "failed"}


@pytest.mark.parametrize(
    ("how", "kind"), [("wrong-id", "changed-id"), ("no-done", "no-done"), ("errors", "500 backend_error")]
)
def test_smoke_fails_when_a_route_is_broken(tmp_path: Path, how: str, kind: str) -> None:
    found = smoked(tmp_path, how)

    assert failed(found) == (False, {kind})
    assert not found.holds
    assert kind in (tmp_path / "report.html").read_text()


def test_nothing_fails_where_nothing_is_broken(tmp_path: Path) -> None:
    assert failed(smoked(tmp_path, None)) == (True, set())
