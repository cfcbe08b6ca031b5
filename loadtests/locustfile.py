"""What locust runs: `locust -f loadtests/locustfile.py --host http://127.0.0.1:14011`, or `make load`.

The workload and the target come from LOADTESTS_* variables (see `target`). A closed loop has one class of users per
kind; an open loop has one class, whose users are sources of arrivals. Records go to the process that decides (the only
one, or the master), which writes them, tells how it goes and makes the report.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-call, explicit-override, import-untyped"
# Neither locust's events nor gevent have types, and `override` is no part of the oldest Python that runs this.

from __future__ import annotations

import json
import logging
import time
from collections import defaultdict
from functools import partial
from types import new_class
from typing import Any

import gevent
from gevent.pool import Group
from locust import LoadTestShape, User, events, task
from locust.env import Environment
from locust.exception import RescheduleTask, StopUser

from loadtests.arrival import next_burst, poisson_waits, users_at_level
from loadtests.behaviour import Behaviour, NotServed
from loadtests.ramp import RampProgress
from loadtests.session import Session
from loadtests.target import TargetError, number_setting, setting, workload_asked_for
from loadtests.workload import USERS, Workload

logger = logging.getLogger("loadtests")

WORKLOAD: Workload = workload_asked_for()
STOP_S = number_setting("STOP_S") or 15.0
"""How long requests that run when the load ends may go on."""
KEY = "loadtests"
"""Of what workers add to their reports to the master."""


_sessions: list[Session] = []


def session() -> Session:
    """The running one. Raises: StopUser where there is none: users must not outlive their test."""
    if not _sessions:
        raise StopUser
    return _sessions[0]


class LoadUser(User):
    """A caller in a closed loop. A subclass per kind says what he does; the workload how many there are."""

    abstract = True
    kind = ""

    def __init_subclass__(cls) -> None:
        mix = None if WORKLOAD.arrival.is_open else WORKLOAD.user(cls.kind)
        cls.abstract = mix is None
        cls.weight = mix.weight if mix else 0

    def on_start(self) -> None:
        try:
            self.behaviour: Behaviour | None = session().behaviour(self.kind)
        except NotServed as reason:
            session().leave_out(self.kind, str(reason))
            self.behaviour = None

    def on_stop(self) -> None:
        if self.behaviour is not None:
            self.behaviour.close()

    def wait_time(self) -> float:
        return self.behaviour.pause_s if self.behaviour is not None else 1.0

    @task
    def step(self) -> None:
        if self.behaviour is None:
            return
        try:
            record = self.behaviour.step()
        except NotServed as reason:
            session().leave_out(self.kind, str(reason))
            self.behaviour.close()
            self.behaviour = None
            raise RescheduleTask from None
        session().note(record)


for _kind, _does in USERS.items():  # locust takes every class of users that this module holds
    _name = f"{_kind.title().replace('_', '')}User"
    globals()[_name] = new_class(_name, (LoadUser,), {}, partial(dict.update, kind=_kind, __doc__=_does))


class Source(User):
    """A source of arrivals in an open loop: what it sends, it does not wait for."""

    abstract = not WORKLOAD.arrival.is_open

    def on_start(self) -> None:
        arrival = WORKLOAD.arrival
        self._random = session().random()
        self._sent = Group()
        self._idle: dict[str, list[Behaviour]] = defaultdict(list)
        self._waits = (
            None if arrival.kind == "burst" else poisson_waits(arrival.rate_per_source, self._random)
        )
        self._due = time.time()
        self._plan()

    def on_stop(self) -> None:
        self._sent.join(timeout=STOP_S)
        self._sent.kill()
        for behaviour in (one for row in self._idle.values() for one in row):
            behaviour.close()

    def wait_time(self) -> float:
        return max(0.0, self._due - time.time())

    @task
    def arrive(self) -> None:
        if time.time() < self._due - 0.001:  # the first turn comes without a wait
            return
        for _ in range(WORKLOAD.arrival.size or 1):
            mix = self._random.choices(WORKLOAD.users, [user.weight for user in WORKLOAD.users])[0]
            self._sent.spawn(self._send, mix.kind, self._due)
        self._plan()

    def _plan(self) -> None:
        """A plan that is late stays: the missed arrivals follow at once, and each says how late it was."""
        if self._waits is not None:
            self._due += next(self._waits)
        else:
            self._due = next_burst(time.time(), WORKLOAD.arrival.every_s)

    def _send(self, kind: str, due: float) -> None:
        if kind in session().not_served:
            return
        try:
            behaviour = self._idle[kind].pop() if self._idle[kind] else session().behaviour(kind)
            record = behaviour.step()
        except NotServed as reason:
            session().leave_out(kind, str(reason))
            return
        record.late = max(0.0, record.start - due)
        session().note(record)
        self._idle[kind].append(behaviour)


class _Levels(LoadTestShape):
    """Steps through the levels of a ramp, until more load brings no more tokens."""

    use_common_options = True
    abstract = True

    def reset_time(self) -> None:
        super().reset_time()
        self._progress = RampProgress(WORKLOAD.arrival)

    def tick(self) -> tuple[int, float] | None:
        if not _sessions:  # locust starts the test with the users of the first answer
            return self._users(WORKLOAD.arrival.levels[0])
        progress, running, now = self._progress, session(), time.time()
        known = len(progress.levels)
        load = progress.load(now, running.pieces)
        if len(progress.levels) > known:
            level = progress.levels[-1]
            running.levels.append(level)
            running.facts["end"] = now
            print(f"level {level.load:g}: {progress.rates[-1]:.0f} pieces/s", flush=True)
        if progress.is_saturated:
            print("more load brings no more: the ramp ends here", flush=True)
        return None if load is None else self._users(load)

    def _users(self, load: float) -> tuple[int, float]:
        users = users_at_level(WORKLOAD.arrival, load)
        return users, float(users)


class Ramp(_Levels):
    """Only there where the workload asks for it: locust takes whatever shape it finds."""

    is_used = WORKLOAD.arrival.kind == "ramp"
    abstract = not is_used


@events.init.add_listener
def _on_init(environment: Environment, **_: Any) -> None:
    options = environment.parsed_options
    if options is not None and environment.web_ui is not None:
        options.num_users = options.num_users or WORKLOAD.arrival.users
        options.spawn_rate = options.spawn_rate or WORKLOAD.arrival.users
        options.run_time = options.run_time or WORKLOAD.duration_s
    if setting("QUIET") == "1":  # the report says it, with N and errors beside it
        logging.getLogger("locust.stats_logger").disabled = True
    if not environment.stop_timeout:
        environment.stop_timeout = STOP_S


@events.test_start.add_listener
def _on_start(environment: Environment, **_: Any) -> None:
    _sessions.clear()
    try:
        _sessions.append(Session(environment, WORKLOAD))
    except TargetError as error:
        logger.error("%s", error)  # noqa: TRY400 - the message says it all
        environment.process_exit_code = 2
        if environment.runner is not None:
            environment.runner.quit()
        return
    if setting("ENDS") == "1" and session().decides and WORKLOAD.arrival.kind != "ramp":
        gevent.spawn(_end_when_over, environment, session())


def _end_when_over(environment: Environment, running: Session) -> None:
    """In place of locust's own run time, a timer of gevent that counts from when its loop last looked at the clock: on
    a machine so busy that starting took 14 s it ended a run of 20 s after 6.
    """
    # Not by time.time(), which jumps where a virtual machine was stopped for a while.
    due = time.monotonic() + WORKLOAD.duration_s
    while (left := due - time.monotonic()) > 0:
        gevent.sleep(min(left, 0.5))
    if _sessions and _sessions[0] is running and environment.runner is not None:
        environment.runner.quit()


@events.test_stopping.add_listener
def _on_stopping(**_: Any) -> None:
    """From here on requests only end: it is no load any more. A ramp has said so itself."""
    if _sessions and session().decides:
        session().facts.setdefault("end", time.time())


@events.test_stop.add_listener
def _on_stop(environment: Environment, **_: Any) -> None:
    if not _sessions:
        return
    running = session()
    running.end()
    if running.decides and environment.web_ui is not None:
        from loadtests.report import write_report

        try:
            logger.info("report: %s", write_report(running.folder).html)
        except ValueError as error:
            logger.warning("no report: %s", error)


@events.report_to_master.add_listener
def _on_report(data: dict[str, Any], **_: Any) -> None:
    if _sessions:
        data[KEY] = json.dumps(session().for_master())


@events.worker_report.add_listener
def _on_worker_report(data: dict[str, Any], **_: Any) -> None:
    if _sessions and KEY in data:
        session().from_worker(json.loads(data[KEY]))
