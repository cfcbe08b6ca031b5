"""A workload: one question to a service, as data. `workloads/*.yaml` are read by `load_workload`; docs/load-tests.md
lists the keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from loadtests.arrival import Arrival, read_arrival
from loadtests.expectation import Expectation, read_expectations
from loadtests.lengths import Lengths, constant, read_lengths
from loadtests.section import Section, WorkloadError

FOLDER = Path(__file__).parent / "workloads"

PROBE_SUFFIX = "-probe"
"""Of the run that measures a capacity."""

USERS = {
    "chat_stream": "streams a chat completion",
    "chat": "asks for a whole chat completion",
    "completion": "asks for a whole legacy completion",
    "completion_stream": "streams a legacy completion",
    "conversation": "several turns after a system prompt that all share, streamed",
    "embedding": "asks for vectors, where a model for it is served",
    "models": "lists the models",
    "abandon": "leaves in the middle of a stream",
    "over_limit": "sends without a pause, expects 429 with Retry-After and obeys it",
}
"""The kinds of users that a workload may mix."""

COMPLETIONS = ("chat_stream", "chat", "completion", "completion_stream", "conversation")
"""Those who keep the model busy until it has answered."""

FORBIDDEN = ("model", "messages", "prompt", "input", "stream", "stream_options", "max_tokens", "n")
"""What the workload decides itself, and `request` may not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMix:
    """One kind of user: how many of all, and how it goes about it."""

    kind: str
    weight: int
    pause_s: Lengths = field(default_factory=lambda: constant(0))
    """After each request, in a closed loop."""
    turns: Lengths = field(default_factory=lambda: constant(4))
    """Of one conversation."""
    leave_after: Lengths = field(default_factory=lambda: constant(5))
    """Pieces of a stream that an abandoning user reads; 0: it leaves before the first."""
    inputs: Lengths = field(default_factory=lambda: constant(8))
    """Texts of one embedding request."""
    text_tokens: Lengths = field(default_factory=lambda: constant(40))
    """Of one of those texts: models for vectors read little at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a good answer keeps, for goodput, in seconds. None: nothing asked."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    @property
    def text(self) -> str:
        named = (("TTFT", self.ttft_s), ("TPOT", self.tpot_s), ("e2e", self.e2e_s))
        return ", ".join(f"{name} ≤ {bound:g} s" for name, bound in named if bound is not None) or "no bounds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A checked workload file."""

    name: str
    question: str
    seed: int
    duration_s: float
    """Of the whole load, warm-up included. A ramp ends after its levels."""
    warmup_s: float
    """The beginning, which counts for nothing."""
    arrival: Arrival
    users: tuple[UserMix, ...]
    prompt: Lengths
    """Tokens, roughly: words of which tokenizers make one."""
    shared_prefix: int
    """Tokens at the beginning of every prompt, the same in all."""
    output: Lengths
    """`max_tokens`."""
    is_exact: bool
    """Whether `ignore_eos` makes every answer as long as its `max_tokens`."""
    request: Mapping[str, Any]
    """More fields for every completion."""
    refusals_expected: bool
    """Whether 429 and 503 are an answer, or a failure."""
    bounds: Bounds
    expect: tuple[Expectation, ...]
    timeout_s: float
    """Longest wait for bytes."""
    source: str
    """The file's text."""

    def user(self, kind: str) -> UserMix | None:
        return next((user for user in self.users if user.kind == kind), None)

    def lasting(self, duration_s: float) -> Workload:
        """The same for another time: warm-up, steps and the measuring of a capacity in proportion.

        Raises: WorkloadError.
        """
        if duration_s <= 0:
            raise WorkloadError(f"a duration of {duration_s:g} s is not above 0")
        share = duration_s / self.duration_s
        arrival = self.arrival
        if arrival.kind == "ramp":
            arrival = replace(arrival, step_s=arrival.step_s * share, settle_s=arrival.settle_s * share)
        if arrival.capacity is not None:
            probe_s = arrival.capacity.probe_s * min(1.0, share)
            arrival = replace(arrival, capacity=replace(arrival.capacity, probe_s=probe_s))
        return replace(
            self, duration_s=duration_s, warmup_s=min(self.warmup_s, self.warmup_s * share), arrival=arrival
        )

    def at_rate(self, rate: float) -> Workload:
        """The same, its capacity having been measured."""
        return replace(self, arrival=replace(self.arrival, rate=rate))

    def probe(self) -> Workload:
        """The closed loop that measures the capacity, of completions where there are any: nothing else is as slow.

        Raises: WorkloadError where none is to be measured.
        """
        capacity = self.arrival.capacity
        if capacity is None:
            raise WorkloadError(f"{self.name} asks for no capacity to be measured")
        completing = tuple(user for user in self.users if user.kind in COMPLETIONS)
        return replace(
            self,
            name=self.name + PROBE_SUFFIX,
            users=completing or self.users,
            arrival=Arrival(kind="closed", users=capacity.probe_users),
            duration_s=capacity.probe_s,
            warmup_s=capacity.probe_s / 4,
            expect=(),
        )


def available() -> list[str]:
    """Names of the workloads that are here."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_workload(name: str) -> Workload:
    """By the name of one of `available()`, or the path of a file. Raises: WorkloadError beginning with the file."""
    path = Path(name) if "/" in name or name.endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        known = ", ".join(available())
        raise WorkloadError(f"{path}: {error.strerror}; there are {known}, or give a file's path") from None
    except UnicodeDecodeError:
        raise WorkloadError(f"{path}: it is not UTF-8") from None
    try:
        return parse_workload(text, name=path.stem)
    except WorkloadError as error:
        raise WorkloadError(f"{path}: {error}") from None


def parse_workload(text: str, *, name: str) -> Workload:
    """Raises: WorkloadError beginning with the place of what is wrong."""
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise WorkloadError(f"it is not YAML: {' '.join(str(error).split())}") from None
    section = Section(raw)
    arrival = read_arrival(section.section("arrival"))
    duration_s = section.number(
        "duration_s", arrival.step_s * len(arrival.levels) if arrival.levels else None, above=0
    )
    if arrival.levels and duration_s != arrival.step_s * len(arrival.levels):
        raise section.error("duration_s", "a ramp lasts as long as its levels; leave it out")
    warmup_s = section.number("warmup_s", 0, least=0)
    if warmup_s >= duration_s:
        raise section.error("warmup_s", f"{warmup_s:g} leaves nothing of {duration_s:g} s")
    users = _read_users(section.section("users"))
    if arrival.is_open and any(user.kind == "over_limit" for user in users):
        raise section.error(
            "users.over_limit", "an open loop does not wait, so nobody in it can obey Retry-After"
        )
    prompt = section.section("prompt")
    output = section.section("output")
    workload = Workload(
        name=name,
        question=section.text("question"),
        seed=section.integer("seed", least=0),
        duration_s=duration_s,
        warmup_s=warmup_s,
        arrival=arrival,
        users=users,
        prompt=read_lengths(prompt, "tokens", least=1),
        shared_prefix=prompt.integer("shared_prefix", 0, least=0),
        output=read_lengths(output, "tokens", least=1),
        is_exact=output.flag("exact", default=False),
        request=_read_request(section),
        refusals_expected=section.one_of("refusals", ("expected", "failure"), "failure") == "expected",
        bounds=_read_bounds(section.section("bounds", {})),
        expect=read_expectations(section, tuple(USERS)),
        timeout_s=section.number("timeout_s", 120, above=0),
        source=text,
    )
    prompt.end()
    output.end()
    section.end()
    return workload


def _read_users(section: Section) -> tuple[UserMix, ...]:
    found = []
    for kind in section.names():
        if kind not in USERS:
            raise section.error(kind, f"there is no such kind of user; known: {', '.join(USERS)}")
        if not isinstance(section.raw(kind), dict):
            found.append(UserMix(kind=kind, weight=section.integer(kind)))
            continue
        entry = section.section(kind)
        given: dict[str, Lengths] = {"pause_s": read_lengths(entry, "pause_s", 0)}
        if kind == "conversation":
            given["turns"] = read_lengths(entry, "turns", 4, least=1)
        if kind == "abandon":
            given["leave_after"] = read_lengths(entry, "leave_after", 5, least=0)
        if kind == "embedding":
            given["inputs"] = read_lengths(entry, "inputs", 8, least=1)
            given["text_tokens"] = read_lengths(entry, "text_tokens", 40, least=1)
        found.append(UserMix(kind=kind, weight=entry.integer("weight"), **given))
        entry.end()
    if not found:
        raise section.error("", f"at least one of {', '.join(USERS)}")
    return tuple(found)


def _read_request(section: Section) -> Mapping[str, Any]:
    value = section.raw("request", {})
    if not isinstance(value, dict):
        raise section.error("request", f"{value!r:.80} is not a mapping")
    for name in value:
        if name in FORBIDDEN:
            raise section.error(f"request.{name}", "the workload decides this itself")
    return value


def _read_bounds(section: Section) -> Bounds:
    names = ("ttft_s", "tpot_s", "e2e_s")
    bounds = Bounds(**{name: section.number(name, above=0) for name in names if section.has(name)})
    for name in names:
        section.raw(name)
    section.end()
    return bounds
