"""What an OpenAI-compatible server tells of itself for a receipt."""

from __future__ import annotations

import platform
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from backends.digest import ModelDigest
from backends.errors import ServiceError
from backends.provenance import Provenance, Repeats, differing
from backends.types import GenerationRequest
from backends.vllm.dialect import Dialect
from backends.vllm.memory import Gpu
from backends.vllm.wire import Plan
from models.digest import hub_commit, weight_files

Get = Callable[[str], Awaitable[tuple[int, bytes]]]
"""Path to status and body."""

VERSION_TTL_S: Final = 60.0
"""A server may be replaced by a newer one while we run."""
DIGEST_WAIT_S: Final = 1.0
"""As of llama.cpp: how long an answer's end waits for the hash of the weights."""

_NAMES: Final = {"vllm": "vLLM", "sglang": "SGLang", "openai": "OpenAI-compatible server"}
_HAS_SEEDS: Final = frozenset({"vllm", "sglang", "llama-server", "llm-inference"})
_WHERE: Final = {"vllm": ("/version", "version"), "llama-server": ("/props", "build_info")}
"""Dialect -> the route that tells the version, and the member."""
_MAX_CHARS: Final = 128


class Version:
    """Of one server, asked for when a receipt wants it."""

    __slots__ = ("_asked_at", "_value")

    def __init__(self) -> None:
        self._value: str | None = None
        self._asked_at: float | None = None

    async def of(self, get: Get, dialect: Dialect) -> str | None:
        """None where the server does not say. Bounded by `get`; never raises."""
        now = time.monotonic()
        if self._asked_at is None or now - self._asked_at > VERSION_TTL_S:
            self._value = await _asked(get, dialect)
            self._asked_at = now
        return self._value


async def _asked(get: Get, dialect: Dialect) -> str | None:
    if dialect.name not in _WHERE:
        return None
    path, member = _WHERE[dialect.name]
    try:
        status, body = await get(path)
        said = msgspec.json.decode(body) if status == 200 else None
    except (TimeoutError, ServiceError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    version = said.get(member) if isinstance(said, dict) else None
    return version[:_MAX_CHARS] if isinstance(version, str) and version else None


def provenance_of(
    dialect: Dialect, version: str | None, request: GenerationRequest | None, plan: Plan | None
) -> Provenance:
    """`plan`: the call that was answered; None where nothing was sampled, or there were several calls."""
    repeats: Repeats = "likely" if dialect.name in _HAS_SEEDS else "no"
    return Provenance(
        engine=_NAMES.get(dialect.name, dialect.name),
        engine_version=version,
        repeats=repeats,
        why_not="the server computes requests in one batch, and who else is in it changes the last bits of its numbers"
        if repeats == "likely"
        else "the server does not say that the same request gets the same answer",
        used=_used(request, plan) if request is not None and plan is not None else {},
    )


def _used(request: GenerationRequest, plan: Plan) -> dict[str, Any]:
    sampling = request.sampling
    got: dict[str, Any] = {name: plan.body[name] for name in ("temperature", "top_p") if name in plan.body}
    if sampling.max_tokens is not None:
        got["max_tokens"] = plan.limit
    return differing({name: getattr(sampling, name) for name in got}, got)


class Witness:
    """Adds what is known of an engine that runs here: its weights, and what it computes on."""

    def __init__(self, model: Path, *, context_length: int, machine: str) -> None:
        """Reads the folder's list of files."""
        self._digest = ModelDigest(weight_files(model))
        self._revision = hub_commit(model)
        self._context_length = context_length
        self._machine = machine

    def begin(self) -> None:
        """A request wants it: what takes time is done beside its answer."""
        self._digest.begin()

    async def testify(self, told: Provenance) -> Provenance:
        """With what the server itself told."""
        sha256 = await self._digest.within(DIGEST_WAIT_S)
        return msgspec.structs.replace(
            told,
            machine=self._machine,
            model_sha256=sha256,
            is_hashing=self._digest.is_pending,
            model_revision=self._revision,
            context_length=self._context_length,
        )

    def close(self) -> None:
        self._digest.close()


def machine_of(device: str, gpus: Collection[Gpu]) -> str:
    """What a local engine computes on."""
    if device == "cpu" or not gpus:
        return f"CPU {platform.machine()}"
    return ", ".join(f"GPU {gpu.total_bytes / 2**30:.0f} GiB" for gpu in _sorted(gpus))


def _sorted(gpus: Collection[Gpu]) -> Sequence[Gpu]:
    return sorted(gpus, key=lambda gpu: gpu.total_bytes)
