"""What a run leaves on disk: `run.json` (what was asked, of whom, where), `records.jsonl` and `levels.json`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from loadtests.hardware import gpus, machine, said_by
from loadtests.record import Record, read_records
from loadtests.target import Target, TargetError, get_json
from loadtests.workload import PROBE_SUFFIX, Workload, parse_workload

RUN, RECORDS, LEVELS = "run.json", "records.jsonl", "levels.json"
_PACKAGES = ("locust", "gevent")


@dataclass(frozen=True, slots=True)
class Level:
    """A part of a ramp: `load` is users, or requests per second. Unix times."""

    load: float
    begin: float
    end: float


@dataclass(slots=True)
class Run:
    """Everything a report is made of."""

    facts: dict[str, Any]
    """As `facts` gives it, and what was added at the end."""
    records: list[Record]
    levels: list[Level] = field(default_factory=list)


def facts(workload: Workload, target: Target, *, quantisation: str | None) -> dict[str, Any]:
    """What a number means nothing without, as far as it can be known from here over HTTP.

    What the service does not tell is None.
    """
    served: dict[str, Any] = {}
    for path in ("/v1/info", f"/v1/models/{target.model}"):
        try:
            served[path] = get_json(target.host, path, target.headers())
        except TargetError:
            served[path] = {}
    info, card = served["/v1/info"], served[f"/v1/models/{target.model}"]
    resource = info.get("resource") if isinstance(info.get("resource"), dict) else {}
    return {
        "workload": workload.name,
        "source": workload.source,
        "duration_s": workload.duration_s,
        "rate": workload.arrival.rate if workload.arrival.capacity is not None else None,
        "is_probe": workload.name.endswith(PROBE_SUFFIX),
        "question": workload.question,
        "arrival": workload.arrival.text,
        "prompt": workload.prompt.text
        + (f"; the first {workload.shared_prefix} shared" if workload.shared_prefix else ""),
        "output": workload.output.text + (", exactly" if workload.is_exact else ", at most"),
        "users": {user.kind: user.weight for user in workload.users},
        "seed": workload.seed,
        "host": target.host,
        "model": card.get("id") or target.model,
        "backend": card.get("backend"),
        "quantisation": quantisation or card.get("quantization"),
        "embedding_model": target.embedding_model if workload.user("embedding") else None,
        "service": f"{resource.get('name')} {resource.get('version')}" if resource else None,
        "revision": _revision(),
        "client": {**machine(), "gpus": gpus()},
        "is_same_machine": _is_loopback(target.host),
        "versions": _versions(),
    }


def workload_of(facts: Mapping[str, Any]) -> Workload:
    """The workload as it was run. Raises: WorkloadError."""
    workload = parse_workload(facts["source"], name=facts["workload"].removesuffix(PROBE_SUFFIX))
    if facts["is_probe"]:
        workload = workload.probe()
    if facts["duration_s"] != workload.duration_s:
        workload = workload.lasting(facts["duration_s"])
    return workload if facts["is_probe"] or facts["rate"] is None else workload.at_rate(facts["rate"])


def _revision() -> str | None:
    """Of this checkout: the service's own where both are one."""
    revision = said_by("git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD").strip()
    return revision or None


def _versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _is_loopback(host: str) -> bool:
    return bool(re.match(r"https?://(127\.|localhost\b|\[::1\])", host))


def write_json(path: Path, value: Mapping[str, Any] | list[Any]) -> None:
    """Whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def read_run(folder: Path) -> Run:
    """Raises: OSError, ValueError where it holds no run."""
    told = json.loads((folder / RUN).read_text(encoding="utf-8"))
    levels = folder / LEVELS
    return Run(
        facts=told,
        records=read_records(folder / RECORDS),
        levels=[Level(**level) for level in json.loads(levels.read_text())] if levels.exists() else [],
    )
