"""What an OpenAI-compatible server tells of an answer, as far as it does."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.digest import ModelDigest
from backends.provenance import Provenance
from backends.vllm import provenance
from backends.vllm.memory import Gpu
from backends.vllm.provenance import Witness, machine_of
from backends.vllm.remote import RemoteBackend
from backends.vllm.upstream import Upstream
from models.catalogue import Catalogue
from tests.backends.contract import events_of, finished_of, request
from tests.backends.openai_upstream import (
    OpenAIUpstream,
    Received,
    Script,
    document,
    finish,
    not_found,
    refused,
    stream,
    text,
    usage,
    whole,
)
from tests.backends.upstream_answers import answer, chat, streamed


class Versioned(OpenAIUpstream):
    """A server with a route that tells its version. `said`: None is a 404."""

    def __init__(self) -> None:
        super().__init__()
        self.path = "/version"
        self.said: Any = {"version": "0.32.0"}

    def _script_for(self, request: Received) -> Script:
        if request.path == self.path:
            return not_found() if self.said is None else document(self.said)
        return super()._script_for(request)

    def count(self, path: str) -> int:
        return sum(one.path == path for one in self.received)


async def told_by(server: OpenAIUpstream, upstream: Upstream, **fields: Any) -> Provenance:
    events = await answer(server, upstream, chat(wants_provenance=True, **fields), whole("Hi"))
    told = finished_of(events).provenance
    assert told is not None
    return told


async def test_the_server_and_its_version_are_told():
    async with Versioned() as server:
        upstream = Upstream(server.url)
        told = await told_by(server, upstream)
        await upstream.aclose()

    assert (told.engine, told.engine_version) == ("vLLM", "0.32.0")
    assert told.repeats == "likely"
    assert told.why_not


async def test_the_version_is_asked_for_now_and_then_and_only_for_receipts(monkeypatch: pytest.MonkeyPatch):
    async with Versioned() as server:
        upstream = Upstream(server.url)
        await answer(server, upstream, chat(), whole("Hi"))
        before = server.count("/version")
        for _ in range(3):
            await told_by(server, upstream)
        during = server.count("/version")
        monkeypatch.setattr(provenance, "VERSION_TTL_S", -1.0)
        server.said = {"version": "0.33.0"}
        later = await told_by(server, upstream)
        await upstream.aclose()

    assert (before, during) == (0, 1)
    assert later.engine_version == "0.33.0"


@pytest.mark.parametrize("said", [None, [], {"version": 5}, {"version": ""}, b"<html>", b"[" * 9999])
async def test_a_server_that_tells_nothing_of_use_is_no_error(said: Any):
    async with Versioned() as server:
        server.said = said
        upstream = Upstream(server.url)
        told = await told_by(server, upstream)
        await upstream.aclose()

    assert (told.engine, told.engine_version) == ("vLLM", None)


@pytest.mark.parametrize(
    ("owner", "engine", "version", "repeats"),
    [
        ("llamacpp", "llama-server", "b7000-abc", "likely"),
        ("somebody", "OpenAI-compatible server", None, "no"),
    ],
)
async def test_other_servers_are_called_by_their_names(
    owner: str, engine: str, version: str | None, repeats: str
):
    async with Versioned() as server:
        server.models = [{"id": "m", "owned_by": owner}]
        server.path, server.said = "/props", {"build_info": "b7000-abc"}
        upstream = Upstream(server.url)
        told = await told_by(server, upstream)
        await upstream.aclose()

    assert (told.engine, told.engine_version, told.repeats) == (engine, version, repeats)


async def test_a_limit_beyond_the_context_is_told_as_it_was_sent():
    async with Versioned() as server:
        upstream = Upstream(server.url)
        beyond = await told_by(server, upstream, max_tokens=5000)
        within = await told_by(server, upstream, max_tokens=50)
        greedy = await told_by(server, upstream, temperature=0.0, top_p=0.5)
        await upstream.aclose()

    assert beyond.used == {"max_tokens": 1000}
    assert within.used == {}
    assert greedy.used == {"top_p": 1.0}


async def test_the_server_is_asked_the_same_with_and_without():
    async with Versioned() as server:
        upstream = Upstream(server.url)
        for wants in (False, True):
            await answer(server, upstream, chat(wants_provenance=wants), whole("Hi"))
        bodies = [one.body for one in server.completions]
        await upstream.aclose()

    assert bodies[0] == bodies[1]


async def test_servers_that_failed_before_are_counted():
    async with Versioned() as first, Versioned() as second:
        for server in (first, second):
            server.models = [{"id": "card", "owned_by": "vllm", "max_model_len": 1000}]
            server.answers(whole("Hi"))
        backend = RemoteBackend([Upstream(first.url), Upstream(second.url)], Catalogue([]), poll_s=60)
        await backend.start()
        try:
            async with asyncio.timeout(5):
                while any(server.ailment is not None for server in backend._servers):  # noqa: ASYNC110 - other tasks
                    await asyncio.sleep(0)
            wanted = request("card", wants_provenance=True, temperature=0.5)
            at_once = finished_of(await events_of(backend, wanted)).provenance
            used, other = (first, second) if first.completions else (second, first)
            used.answers(refused(503))
            retried = finished_of(await events_of(backend, wanted)).provenance
        finally:
            await backend.aclose()

    assert at_once is not None
    assert retried is not None
    assert (at_once.retries, retried.retries) == (0, 1)
    assert len(other.completions) == 1


async def test_an_engine_that_runs_here_adds_its_weights(tmp_path: Path):
    commit = "0123456789abcdef0123456789abcdef01234567"
    folder = tmp_path / "snapshots" / commit
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    witness = Witness(folder, context_length=256, machine="CPU x86_64")
    witness._digest = ModelDigest([folder / "model.safetensors"], cache=tmp_path / "c")
    told = await witness.testify(Provenance(engine="vLLM", engine_version="1"))
    witness.close()

    assert told == Provenance(
        engine="vLLM",
        engine_version="1",
        machine="CPU x86_64",
        model_sha256=hashlib.sha256(b"weights").hexdigest(),
        model_revision=commit,
        context_length=256,
    )


def test_what_an_engine_computes_on_is_told_by_its_size():
    assert machine_of("gpu", [Gpu(80 << 30), Gpu(24 << 30)]) == "GPU 24 GiB, GPU 80 GiB"
    assert machine_of("cpu", []).startswith("CPU ")


async def test_streams_tell_it_too():
    async with Versioned() as server:
        upstream = Upstream(server.url)
        script = stream(text("Hi"), finish(), usage(5, 1))
        events = await answer(server, upstream, streamed(wants_provenance=True), script)
        await upstream.aclose()

    told = finished_of(events).provenance
    assert told is not None
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=Provenance) == told
