"""One test in one process of locust: who numbers the users, keeps the records and tells how it goes."""
# mypy: disable-error-code="no-untyped-call, import-untyped"
# Neither locust's events nor gevent have types.

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import gevent
from locust.env import Environment
from locust.runners import WorkerRunner

from loadtests.behaviour import Behaviour
from loadtests.locust_events import events_of
from loadtests.metrics import running_requests
from loadtests.progress import EVERY_S, Progress
from loadtests.record import Record, from_line, to_line
from loadtests.run_folder import LEVELS, RECORDS, RUN, Level, facts, write_json
from loadtests.stats import percentile
from loadtests.target import Target, find_target, setting
from loadtests.workload import Workload

logger = logging.getLogger("loadtests")

LAG_EVERY_S = 0.1
PATIENCE_S = 20.0
"""With requests that the service counts when the load has ended: other processes of locust may be ending theirs."""
EVENTS_AT_ONCE = 64
"""Locust events after which other users get a turn: the bookkeeping of one must not delay the clocks of all."""


class Session:
    """From a test's start to its end. `decides` is false on a worker, which sends to its master what it has.

    Raises: TargetError where the service cannot be loaded.
    """

    def __init__(self, environment: Environment, workload: Workload) -> None:
        self.environment = environment
        self.workload = workload
        self.target: Target = find_target(environment.host or "")
        self.decides = not isinstance(environment.runner, WorkerRunner)
        self.levels: list[Level] = []
        self.records: list[Record] = []
        """Of a worker: what is not sent yet."""
        self.pieces = 0
        """Of all streams since the begin; on a worker since its last report."""
        self.lags: list[float] = []
        self.not_served: dict[str, str] = {}
        self._numbers = count(max(0, getattr(environment.runner, "worker_index", 0)) * 1_000_000)
        self._greenlets = [gevent.spawn(self._feel_lag)]
        if self.decides:
            self.folder = _folder(workload)
            self._file = (self.folder / RECORDS).open("w", encoding="utf-8")
            self.facts: dict[str, Any] = facts(workload, self.target, quantisation=setting("QUANTISATION"))
        # From here on users are started; what came before can take seconds on a busy machine.
        self.begin = time.time()
        if self.decides:
            self.facts |= {
                "begin": self.begin,
                "started": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            self.progress = Progress(self.begin, workload.duration_s)
            write_json(self.folder / RUN, self.facts)
            self._greenlets.append(gevent.spawn(self._tell))

    def behaviour(self, kind: str) -> Behaviour:
        """Raises: NotServed."""
        mix = self.workload.user(kind)
        if mix is None:
            raise ValueError(f"{self.workload.name} has no users of kind {kind!r}")
        return Behaviour(mix, self.workload, self.target, next(self._numbers), self._count_piece)

    def _count_piece(self) -> None:
        self.pieces += 1

    def random(self) -> Random:
        return Random(f"{self.workload.seed} arrivals {next(self._numbers)}")

    def note(self, record: Record) -> None:
        """Keep the record and tell locust."""
        self.take([record])
        for number, (kind, value, failure) in enumerate(
            events_of(record, refusals_expected=self.workload.refusals_expected), 1
        ):
            self.environment.events.request.fire(
                request_type=kind,
                name=record.user,
                response_time=value,
                response_length=0,
                exception=RequestFailed(failure) if failure else None,
                context={},
            )
            if number % EVENTS_AT_ONCE == 0:
                gevent.sleep(0)

    def take(self, records: list[Record]) -> None:
        """Records of this process, or of a worker."""
        if not self.decides:
            self.records += records
            return
        self._file.writelines(to_line(record) + "\n" for record in records)
        self._file.flush()
        self.progress.take(records)

    def leave_out(self, kind: str, why: str) -> None:
        if kind not in self.not_served:
            logger.warning("users of kind %s have nothing to do: %s", kind, why)
        self.not_served[kind] = why

    def for_master(self) -> dict[str, Any]:
        """What came since the last report."""
        lines, self.records = [to_line(record) for record in self.records], []
        lags, self.lags = self.lags, []
        pieces, self.pieces = self.pieces, 0
        return {"records": lines, "lags": lags, "pieces": pieces, "not_served": self.not_served}

    def from_worker(self, told: dict[str, Any]) -> None:
        self.take([from_line(line) for line in told["records"]])
        self.lags += told["lags"]
        self.pieces += told["pieces"]
        self.not_served |= told["not_served"]

    def end(self) -> None:
        """Nothing more is sent: write what is known now."""
        gevent.killall(self._greenlets)
        if not self.decides:
            return
        self.facts |= {
            "end": self.facts.get("end", time.time()),
            "lag_p99_s": percentile(self.lags, 0.99),
            "not_served": self.not_served,
            "running_after": running_requests(self.target, patience_s=PATIENCE_S),
            "processes": len(getattr(self.environment.runner, "clients", ())) or 1,
        }
        if capacity := setting("CAPACITY"):
            self.facts["capacity_per_s"] = float(capacity)
        write_json(self.folder / LEVELS, [_plain(level) for level in self.levels])
        write_json(self.folder / RUN, self.facts)
        self._file.flush()

    def _feel_lag(self) -> None:
        """How much later than asked this process wakes up: what its measurements are late by."""
        while True:
            due = time.perf_counter() + LAG_EVERY_S
            gevent.sleep(LAG_EVERY_S)
            self.lags.append(time.perf_counter() - due)

    def _tell(self) -> None:
        while True:
            gevent.sleep(EVERY_S)
            runner = self.environment.runner
            print(
                self.progress.line(time.time(), runner.user_count if runner else 0, self.pieces), flush=True
            )


class RequestFailed(Exception):
    """What locust counts failures by."""


def _plain(level: Level) -> dict[str, float]:
    return {"load": level.load, "begin": level.begin, "end": level.end}


def _folder(workload: Workload) -> Path:
    """Where this run goes; of its own for each start in the web page."""
    named = setting("OUT")
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    folder = Path(named) if named else Path(".cache/loadtests") / f"{stamp}-{workload.name}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
