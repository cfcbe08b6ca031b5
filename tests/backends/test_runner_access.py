"""Who may ask a runner, and what it makes of a request that is none."""

from __future__ import annotations

import asyncio

import pytest

from backends.errors import BackendFailed, BackendUnavailable
from backends.runner import RunnerClient, app, create_runner_app
from backends.types import TextPrompt
from tests.backends.contract import request
from tests.backends.scripted_runner import Scripted, collect
from tests.backends.serving import served, serving


@pytest.fixture
def backend() -> Scripted:
    return Scripted()


async def raw(url: str, head: str, body: bytes = b"") -> tuple[int, bytes]:
    reader, writer = await asyncio.open_unix_connection(url.removeprefix("file://"))
    writer.write(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
    async with asyncio.timeout(10):
        answer = await reader.read(65536)
    writer.close()
    await writer.wait_closed()
    return int(answer.split()[1]), answer.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("header", ["", "\nauthorization: Bearer wron", "\nauthorization: secret"])
@pytest.mark.parametrize("line", ["GET /health", "POST /generate", "GET /metrics", "POST /unload"])
async def test_without_the_token_every_route_is_401(backend: Scripted, line: str, header: str):
    async with serving(create_runner_app(backend, token="secret")) as url:
        status, _ = await raw(url, f"{line} HTTP/1.1\nhost: x\ncontent-length: 0{header}")

    assert status == 401
    assert not backend.received


async def test_the_client_brings_its_token(backend: Scripted):
    async with served(backend, token="sécret") as runner:
        assert await collect(runner, request("m"))


async def test_a_wrong_token_is_a_runner_that_cannot_be_reached(backend: Scripted):
    async with serving(create_runner_app(backend, token="secret")) as url:
        runner = RunnerClient("scripted", url, "other")

        with pytest.raises(BackendUnavailable, match="token"):
            await collect(runner, request("m"))
        assert (await runner.health()).healthy is False
        await runner.aclose()


@pytest.mark.parametrize(
    "path", ["/generate", "/load", "/unload", "/count_tokens", "/tokenize", "/detokenize"]
)
@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x80", b"\x91" * 5000, b"{}"])
async def test_a_malformed_body_is_400_and_harms_nothing(backend: Scripted, path: str, body: bytes):
    async with serving(create_runner_app(backend, token=None)) as url:
        status, text = await raw(url, f"POST {path} HTTP/1.1\nhost: x\ncontent-length: {len(body)}", body)
        runner = RunnerClient("scripted", url)
        healthy = (await runner.health()).healthy
        await runner.aclose()

    assert status == 400
    assert text.startswith(b"malformed body")
    assert healthy


async def test_a_body_over_the_limit_is_413(backend: Scripted, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(app, "MAX_BODY_BYTES", 1000)
    async with served(backend) as runner:
        with pytest.raises(BackendFailed, match="413"):
            await collect(runner, request("m", TextPrompt(text="x" * 2000)))


async def test_an_unknown_path_is_a_failure_that_names_the_status(backend: Scripted):
    async with serving(create_runner_app(backend, token=None)) as url:
        runner = RunnerClient("scripted", url)
        with pytest.raises(BackendFailed, match="404"):
            async with runner._sent("POST", "/nothing", None):
                pass
        await runner.aclose()


async def test_metrics_are_prometheus_text_with_escaped_labels_and_the_engines_behind_them(
    backend: Scripted, monkeypatch: pytest.MonkeyPatch
):
    async def of_engine() -> bytes:
        return b"more 1\n"

    monkeypatch.setattr(backend, "metrics", of_engine)
    async with serving(create_runner_app(backend, token=None)) as url:
        status, body = await raw(url, "GET /metrics HTTP/1.1\nhost: x")

    assert status == 200
    lines = body.decode().splitlines()
    assert 'llm_runner_requests_running{backend="scripted",model="a\\"b"} 2' in lines
    assert lines[-1] == "more 1"
    assert all(line.startswith("# ") or line.rpartition(" ")[2].isdigit() for line in lines)
