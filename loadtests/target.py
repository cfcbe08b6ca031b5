"""What is loaded: the address, the model, the tokens. From the environment, so that every locust process finds it.

LOADTESTS_WORKLOAD          name or file of the workload, default steady-chat
LOADTESTS_MODEL             default: the first that /v1/models lists with the capability chat
LOADTESTS_EMBEDDING_MODEL   default: the first with the capability embeddings
LOADTESTS_TOKEN             bearer token
LOADTESTS_OVER_LIMIT_TOKEN  another one for the users who run into the limit, so that they spend nobody else's
LOADTESTS_DURATION_S        takes the place of the workload's
LOADTESTS_RATE              requests per second, where the workload asks for a measured capacity
LOADTESTS_QUANTISATION      of the model, for the report, where the service does not tell
LOADTESTS_OUT               folder for the records
LOADTESTS_PROBE, LOADTESTS_CAPACITY, LOADTESTS_QUIET   between `run` and the locust that it starts
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadtests.completion_check import check_model_list
from loadtests.connection import Connection, TransportFailed
from loadtests.sse import Violation
from loadtests.workload import Workload, load_workload

PREFIX = "LOADTESTS_"


class TargetError(Exception):
    """The service cannot be loaded as asked. The message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`embedding_model` is None where none is served."""

    host: str
    model: str
    embedding_model: str | None = None
    token: str | None = None
    over_limit_token: str | None = None

    def headers(self, *, is_over_limit: bool = False) -> dict[str, str]:
        token = (self.over_limit_token if is_over_limit else None) or self.token
        return {"Authorization": f"Bearer {token}"} if token else {}


def setting(name: str, environment: Mapping[str, str] | None = None) -> str | None:
    """The variable LOADTESTS_<name>; an empty one is unset."""
    return (os.environ if environment is None else environment).get(PREFIX + name) or None


def number_setting(name: str, environment: Mapping[str, str] | None = None) -> float | None:
    """Raises: TargetError for what is no number above 0."""
    value = setting(name, environment)
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:
        raise TargetError(f"{PREFIX}{name} is {value!r}; it must be a number above 0")
    return number


def workload_asked_for() -> Workload:
    """Raises: WorkloadError, TargetError."""
    workload = load_workload(setting("WORKLOAD") or "steady-chat")
    if (duration_s := number_setting("DURATION_S")) is not None:
        workload = workload.lasting(duration_s)
    if (setting("PROBE") or "") == "1":
        return workload.probe()
    rate = number_setting("RATE")
    if workload.arrival.capacity is not None:
        if rate is None:
            raise TargetError(
                f"{workload.name} needs a measured capacity: run it by `make load`, or give the rate as LOADTESTS_RATE"
            )
        workload = workload.at_rate(rate)
    elif rate is not None:
        raise TargetError(f"LOADTESTS_RATE is set, but {workload.name} has no rate to be measured")
    return workload


def get_json(host: str, path: str, headers: Mapping[str, str], *, timeout_s: float = 10) -> Any:
    """Raises: TargetError unless the answer is 200 with JSON."""
    try:
        connection = Connection(host, timeout_s=timeout_s)
    except ValueError as error:
        raise TargetError(str(error)) from None
    try:
        reply = connection.send("GET", path, body=None, headers=headers)
        body = reply.read()
    except TransportFailed as failure:
        raise TargetError(
            f"{host}{path} gives no answer ({failure.detail}); is the service running?"
        ) from None
    finally:
        connection.close()
    if reply.status != 200:
        hint = "; set LOADTESTS_TOKEN" if reply.status == 401 else ""
        raise TargetError(
            f"{host}{path} answers {reply.status}: {body[:200].decode('utf-8', 'replace')}{hint}"
        )
    try:
        return json.loads(body)
    except ValueError:
        raise TargetError(f"{host}{path} answers no JSON: {body[:200]!r}") from None


def find_target(host: str, environment: Mapping[str, str] | None = None) -> Target:
    """Look at what the service lists and choose what was not chosen. Raises: TargetError."""
    token = setting("TOKEN", environment)
    over_limit_token = setting("OVER_LIMIT_TOKEN", environment) or token
    target = Target(host=host.rstrip("/"), model="", token=token, over_limit_token=over_limit_token)
    try:
        models = check_model_list(get_json(target.host, "/v1/models", target.headers()))
    except Violation as violation:
        raise TargetError(f"{host}/v1/models: {violation.detail}") from None
    wanted, vectors = setting("MODEL", environment), setting("EMBEDDING_MODEL", environment)
    model = wanted or _first(models, "chat")
    if model is None:
        raise TargetError(f"{host}/v1/models lists no model that chats; name one as LOADTESTS_MODEL")
    return Target(
        host=target.host,
        model=model,
        embedding_model=vectors or _first(models, "embeddings"),
        token=target.token,
        over_limit_token=target.over_limit_token,
    )


def _first(models: list[dict[str, Any]], capability: str) -> str | None:
    """Servers that name no capabilities are taken to chat."""
    default = ["chat"]
    return next((m["id"] for m in models if capability in (m.get("capabilities") or default)), None)
