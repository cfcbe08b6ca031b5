"""What is asked of a server besides completions: models, counts, health, metrics."""

from __future__ import annotations

import pytest

from backends.errors import NotSupported, UpstreamError
from backends.types import TextPrompt, TokenPrompt
from backends.vllm import upstream as upstream_module
from backends.vllm.listing import ServedModel
from backends.vllm.upstream import Upstream
from tests.backends.contract import CHAT
from tests.backends.openai_upstream import Hang, OpenAIUpstream, Script, document


async def test_the_models_are_those_that_can_be_named(server: OpenAIUpstream, upstream: Upstream):
    server.models = [
        {"id": "Qwen/Qwen3", "max_model_len": 4096},
        {"id": "ours", "context_length": 77, "capabilities": ["embeddings", "sorcery"]},
        {"id": "llama", "meta": {"n_ctx": 512}},
        {"id": "plain", "max_model_len": None},
        *({"id": name} for name in ("../x", "", 7, "a\x00b", "x" * 300, "http://x")),
        {"id": "odd", "max_model_len": "4096"},
        "nonsense",  # type: ignore[list-item]
    ]

    assert await upstream.models() == [
        ServedModel("Qwen/Qwen3", 4096),
        ServedModel("ours", 77, ("embeddings",)),
        ServedModel("llama", 512),
        ServedModel("plain"),
        ServedModel("odd"),
    ]


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"data": 7}', b"{}"])
async def test_a_list_of_models_that_makes_no_sense_is_an_error(
    server: OpenAIUpstream, upstream: Upstream, monkeypatch: pytest.MonkeyPatch, body: bytes
):
    monkeypatch.setattr(server, "_script_for", lambda _: document(body))

    with pytest.raises(UpstreamError):
        await upstream.models()


async def test_tokens_are_counted_by_the_server(server: OpenAIUpstream, upstream: Upstream):
    counted = [await upstream.count_tokens("m", prompt) for prompt in (CHAT, TextPrompt(text="a"))]
    chat_call, text_call = (one for one in server.received if one.path == "/tokenize")

    assert counted == [7, 7]
    assert (chat_call.body["messages"], text_call.body["prompt"]) == (CHAT.messages, "a")
    assert await upstream.count_tokens("m", TokenPrompt(token_ids=[1, 2])) == 2


async def test_a_server_that_cannot_count_says_so(server: OpenAIUpstream, upstream: Upstream):
    server.token_count = None

    with pytest.raises(NotSupported):
        await upstream.count_tokens("m", CHAT)


async def test_health_is_the_servers_own_word(server: OpenAIUpstream, upstream: Upstream):
    well = await upstream.ailment(timeout_s=10) is None
    server.health_status = 503

    assert well
    assert not await upstream.is_healthy()


async def test_a_server_without_a_health_route_is_well_when_it_lists_models(
    server: OpenAIUpstream, upstream: Upstream
):
    server.health_status = 404

    assert await upstream.is_healthy()


async def test_a_server_that_is_gone_or_silent_is_not_well(
    server: OpenAIUpstream, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(upstream_module, "HEALTH_TIMEOUT_S", 0.02)
    monkeypatch.setattr(server, "_script_for", lambda _: Script([Hang()], framing="raw"))
    silent = await upstream.ailment()
    await server.stop()

    assert silent == "The server does not answer"
    assert await upstream.ailment() == "Connection refused"


async def test_the_metrics_are_passed_on_or_empty(server: OpenAIUpstream, upstream: Upstream):
    there = await upstream.metrics()
    await server.stop()

    assert there == b"vllm:up 1\n"
    assert await upstream.metrics() == b""


async def test_a_call_gives_status_headers_and_body(server: OpenAIUpstream, upstream: Upstream):
    server.answers(document({"data": []}, 418, x_tea="yes"))
    status, headers, body = await upstream.call("POST", "/v1/completions", b"{}")

    assert (status, headers[b"x-tea"], body) == (418, b"yes", b'{"data": []}')
