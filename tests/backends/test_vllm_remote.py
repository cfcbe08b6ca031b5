"""Several servers as one backend: what they serve, who gets a request, what happens when one fails."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest

from backends.errors import (
    BackendUnavailable,
    InvalidParameter,
    NotSupported,
    UpstreamAuthFailed,
    UpstreamError,
)
from backends.gbnf.syntax import parse
from backends.types import ChatPrompt, SamplingParams, TextPrompt, TokenPrompt
from backends.vllm import wire
from backends.vllm.balancer import FAILURES_TO_EJECT
from backends.vllm.remote import RemoteBackend, conversation_key
from backends.vllm.upstream import Upstream
from models.card import HubSource, ModelCard, RemoteSource
from models.catalogue import Catalogue
from models.errors import UnknownModel
from tests.backends.contract import CHAT, events_of, load, request, status_of, text_of
from tests.backends.openai_upstream import (
    Close,
    Hang,
    OpenAIUpstream,
    Script,
    Wait,
    document,
    finish,
    refused,
    stream,
    text,
    usage,
    whole,
)


@dataclass
class Bench:
    backend: RemoteBackend
    catalogue: Catalogue
    servers: list[OpenAIUpstream]

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(5):
            while not await condition():  # noqa: ASYNC110 - the watchers are tasks of their own
                await asyncio.sleep(0)

    async def until_seen(self) -> None:
        async def seen() -> bool:
            return all(server.ailment != "No answer yet" for server in self.backend._servers)

        await self.until(seen)

    async def text(self, **fields: Any) -> str:
        return text_of(await events_of(self.backend, request("m", CHAT, **fields)))

    @property
    def asked(self) -> list[int]:
        return [len(server.completions) for server in self.servers]


@asynccontextmanager
async def a_bench(
    num_servers: int, *cards: ModelCard, chance: float = 1.0, **options: float
) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(OpenAIUpstream()) for _ in range(num_servers)]
        catalogue = Catalogue(cards)
        upstreams = [Upstream(server.url) for server in servers]
        backend = RemoteBackend(upstreams, catalogue, chance=lambda: chance, poll_s=30.0, **options)
        stack.push_async_callback(backend.aclose)
        bench = Bench(backend, catalogue, servers)
        await backend.start()
        await bench.until_seen()
        yield bench


def looks_at(server: OpenAIUpstream) -> int:
    return sum(asked.path == "/v1/models" for asked in server.received)


@pytest.fixture
async def one() -> AsyncIterator[Bench]:
    async with a_bench(1) as bench:
        yield bench


@pytest.fixture
async def two() -> AsyncIterator[Bench]:
    async with a_bench(2) as bench:
        yield bench


# What is served


async def test_what_a_server_lists_can_be_asked_for_without_a_card(one: Bench):
    one.servers[0].answers(whole("hello"))
    (card,) = one.catalogue.cards("vllm")

    assert (card.id, card.backend, card.context_length) == ("m", "vllm", 1000)
    assert await one.text() == "hello"


async def test_a_model_that_is_called_by_its_file_is_offered_under_the_files_name():
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(OpenAIUpstream())
        server.models = [{"id": "/srv/models/a.gguf", "owned_by": "llamacpp"}]
        server.answers(whole("hello"))
        backend = RemoteBackend([Upstream(server.url)], Catalogue([]))
        stack.push_async_callback(backend.aclose)
        bench = Bench(backend, backend._catalogue, [server])
        await backend.start()
        await bench.until_seen()
        await events_of(backend, request("a.gguf", CHAT))

    assert [card.id for card in bench.catalogue.cards("vllm")] == ["a.gguf"]
    assert server.completions[0].body["model"] == "/srv/models/a.gguf"


async def test_what_it_does_not_list_is_unknown(one: Bench):
    with pytest.raises(UnknownModel):
        await events_of(one.backend, request("other"))


async def test_a_card_gives_a_servers_model_another_name():
    card = ModelCard(id="qwen", backend="vllm", sources={"vllm": RemoteSource(name="m")})
    async with a_bench(1, card) as bench:
        bench.servers[0].answers(whole("hello"))
        events = await events_of(bench.backend, request("qwen", CHAT))
        status = await status_of(bench.backend, "qwen")

    assert text_of(events) == "hello"
    assert bench.servers[0].completions[0].body["model"] == "m"
    assert status is not None
    assert (status.state, status.context_length) == ("loaded", 1000)


async def test_a_card_of_a_hub_repository_means_the_model_served_under_that_name():
    card = ModelCard(id="qwen", backend="vllm", sources={"vllm": HubSource(repo="Qwen/Qwen3")})
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(OpenAIUpstream())
        server.models = [{"id": "Qwen/Qwen3"}]
        server.answers(whole("hello"))
        backend = RemoteBackend([Upstream(server.url)], Catalogue([card]))
        stack.push_async_callback(backend.aclose)
        bench = Bench(backend, backend._catalogue, [server])
        await backend.start()
        await bench.until_seen()
        await events_of(backend, request("qwen", CHAT))

    assert server.completions[0].body["model"] == "Qwen/Qwen3"


async def test_a_model_that_another_backend_has_too_gets_one_more_source():
    card = ModelCard(id="m", aliases=("em",), backend="fake", sources={"fake": RemoteSource(name="m")})
    async with a_bench(1, card) as bench:
        found = bench.catalogue.resolve("em")

    assert found.backends == ("fake", "vllm")
    assert found.backend == "fake"
    assert [card.id for card in bench.catalogue.cards()] == ["m"]


async def test_a_model_that_no_server_lists_any_more_is_not_loaded():
    card = ModelCard(id="old", backend="vllm", sources={"vllm": RemoteSource(name="old")})
    async with a_bench(1, card) as bench:
        status = await status_of(bench.backend, "old")

    assert status is not None
    assert (status.state, status.message) == ("failed", "No server lists it")


async def test_the_smallest_context_of_several_servers_counts():
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(OpenAIUpstream()) for _ in range(2)]
        servers[1].models = [{"id": "m", "max_model_len": 500}]
        backend = RemoteBackend([Upstream(server.url) for server in servers], Catalogue([]))
        stack.push_async_callback(backend.aclose)
        bench = Bench(backend, backend._catalogue, servers)
        await backend.start()
        await bench.until_seen()
        status = await status_of(backend, "m")

    assert status is not None
    assert status.context_length == 500


async def test_a_request_goes_only_to_a_server_that_lists_its_model():
    async with a_bench(2) as bench:
        bench.servers[1].models = [{"id": "only-here"}]
        bench.backend._servers[1].alarm.set()

        async def listed() -> bool:
            return bool({"only-here"} & {card.id for card in bench.catalogue.cards()})

        await bench.until(listed)
        for _ in range(4):
            bench.servers[1].answers(whole("x"))
            await events_of(bench.backend, request("only-here", CHAT))

    assert bench.asked == [0, 4]


async def test_loading_is_left_to_the_servers_and_unknown_names_are_unknown(one: Bench):
    with pytest.raises(NotSupported):
        await load(one.backend, "m")
    with pytest.raises(NotSupported):
        await one.backend.unload("m")
    with pytest.raises(UnknownModel):
        await load(one.backend, "other")
    with pytest.raises(UnknownModel):
        await one.backend.unload("other")


# Who gets a request


async def test_a_request_goes_to_the_less_busy_server(two: Bench):
    for server in two.servers:
        server.answers(*[Script([text("a"), Hang()])] * 2)
    generators = [two.backend.generate(request("m", TextPrompt(text=str(i)), stream=True)) for i in range(4)]
    for generator in generators:
        await anext(generator)
    counts = two.asked
    for generator in generators:
        await generator.aclose()

    assert counts == [2, 2]


async def test_a_conversation_stays_with_its_server(two: Bench):
    for server in two.servers:
        server.answers(*[whole("a")] * 6)
    for turn in range(6):
        more = [{"role": "assistant", "content": "a"}, {"role": "user", "content": str(turn)}] * turn
        prompt = ChatPrompt(messages=[*CHAT.messages, *more])
        await events_of(two.backend, request("m", prompt))

    assert sorted(two.asked) == [0, 6]


def test_a_conversation_is_known_by_its_beginning():
    def key(prompt: Any, model: str = "m") -> bytes:
        return conversation_key(request(model, prompt))

    longer = ChatPrompt(messages=[*CHAT.messages, {"role": "assistant", "content": "x"}])
    other = ChatPrompt(messages=[CHAT.messages[0], {"role": "user", "content": "other"}])
    parts = ChatPrompt(messages=[{"role": "user", "content": [{"type": "text", "text": "\ud800"}]}])

    assert key(CHAT) == key(longer)
    assert len({key(CHAT), key(other), key(parts), key(CHAT, "n"), key(TextPrompt(text="a"))}) == 5
    assert key(TokenPrompt(token_ids=[1])) != key(TokenPrompt(token_ids=[2]))


# Failures


@pytest.mark.parametrize(
    "script", [refused(502), refused(503), refused(529), Script([Close()]), Script([], framing="raw")]
)
async def test_a_request_that_produced_nothing_is_tried_on_another_server(two: Bench, script: Script):
    for server in two.servers:
        server.answers(whole("a"))
    await two.text()
    own = two.servers[two.asked.index(1)]
    own.answers(script, script)  # a connection that was kept is tried a second time

    assert await two.text() == "a"
    assert min(two.asked) == 1


async def test_a_server_that_is_gone_costs_no_request(two: Bench):
    await two.servers[0].stop()
    two.servers[1].answers(*[whole("b")] * 8)

    assert [await two.text(seed=i) for i in range(8)] == ["b"] * 8


async def test_a_long_grammar_is_read_beside_the_event_loop(one: Bench, monkeypatch: pytest.MonkeyPatch):
    readers: list[int] = []

    def noted(grammar: str) -> Any:
        readers.append(threading.get_ident())
        return parse(grammar)

    monkeypatch.setattr(wire, "parse", noted)
    long = "root ::= " + " | ".join(f'"{number}"' for number in range(2000))

    one.servers[0].answers(whole("7"))
    await one.text(sampling=SamplingParams(grammar=long))

    assert readers
    assert threading.get_ident() not in readers


async def test_after_the_first_event_nothing_is_tried_again(two: Bench):
    for server in two.servers:
        server.answers(Script([text("a"), Close()]))

    with pytest.raises(UpstreamError, match="broke off"):
        await two.text(stream=True)
    assert sum(two.asked) == 1


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (refused(400, "no"), InvalidParameter),
        (refused(401), UpstreamAuthFailed),
        (refused(500), UpstreamError),
        (document(b"nonsense"), UpstreamError),
    ],
)
async def test_what_another_server_would_say_too_is_said_at_once(two: Bench, script: Script, kind: type):
    for server in two.servers:
        server.answers(script)

    with pytest.raises(kind):
        await two.text()
    assert sum(two.asked) == 1


async def test_where_all_fail_the_last_reason_is_told(two: Bench):
    for server in two.servers:
        server.answers(refused(503, "busy"))

    with pytest.raises(BackendUnavailable, match="busy"):
        await two.text()
    assert two.asked == [1, 1]


async def test_a_server_that_keeps_failing_is_left_alone(two: Bench):
    bad, good = two.servers
    bad.health_status = 500
    bad.answers(*[refused(500)] * 20)
    good.answers(*[whole("b")] * 40)
    for i in range(30):
        with suppress(UpstreamError):
            await events_of(two.backend, request("m", TextPrompt(text=str(i))))

    assert 1 <= len(bad.completions) <= FAILURES_TO_EJECT


async def test_a_server_that_calls_itself_well_and_fails_every_request_is_left_alone_too(two: Bench):
    bad, good = two.servers
    bad.answers(*[refused(500)] * 40)
    good.answers(*[whole("b")] * 40)
    for i in range(10):
        with suppress(UpstreamError):
            await events_of(two.backend, request("m", TextPrompt(text=str(i))))
    failed = len(bad.completions)
    looks = looks_at(bad)
    two.backend._servers[0].alarm.set()

    async def looked_again() -> bool:
        return looks_at(bad) > looks and not two.backend._servers[0].alarm.is_set()

    await two.until(looked_again)
    for i in range(10):
        await events_of(two.backend, request("m", TextPrompt(text=str(i))))

    assert failed == FAILURES_TO_EJECT
    assert len(bad.completions) == FAILURES_TO_EJECT


async def test_a_server_that_hangs_gets_no_request_while_another_is_well(two: Bench):
    two.backend._servers[0].ailment = "The server does not answer"
    two.servers[1].answers(*[whole("b")] * 8)
    for i in range(8):
        await events_of(two.backend, request("m", TextPrompt(text=str(i))))

    assert two.asked == [0, 8]


async def test_where_no_server_is_well_they_are_asked_all_the_same(two: Bench):
    for server in two.backend._servers:
        server.ailment = "The server does not answer"
    two.servers[0].answers(whole("a"))
    two.servers[1].answers(whole("a"))

    assert await two.text() == "a"


@pytest.mark.parametrize("has_head", [False, True])
async def test_what_waits_for_the_first_byte_of_a_server_that_hangs_is_tried_on_another(
    monkeypatch: pytest.MonkeyPatch, has_head: bool
):
    async with a_bench(2, look_timeout_s=0.05, give_up_s=0.15) as bench:
        for server in bench.servers:
            server.answers(
                Script(
                    [text("a"), Hang()] if has_head else [Hang()], framing="chunked" if has_head else "raw"
                )
            )
        generator = bench.backend.generate(request("m", CHAT, stream=True))
        first = asyncio.ensure_future(anext(generator))

        async def asked() -> bool:
            return sum(bench.asked) == 1 and (first.done() or not has_head)

        await bench.until(asked)
        hung = bench.asked.index(1)
        bench.servers[1 - hung]._scripts.clear()
        bench.servers[1 - hung].answers(stream(text("b"), finish(), usage(1, 1)))
        monkeypatch.setattr(bench.servers[hung], "_script_for", lambda _: Script([Hang()], framing="raw"))
        bench.backend._servers[hung].alarm.set()

        async def given_up() -> bool:
            since = bench.backend._servers[hung].silent_since
            return since is not None and time.monotonic() - since > 0.4

        await bench.until(given_up)
        events = await asyncio.wait_for(first, 5)
        await generator.aclose()

    assert text_of(events) == ("a" if has_head else "b")
    assert sum(bench.asked) == (1 if has_head else 2)


async def test_a_lonely_server_that_hangs_keeps_what_it_was_asked():
    async with a_bench(1, look_timeout_s=0.02, give_up_s=0.05) as bench:
        released = asyncio.Event()
        bench.servers[0].answers(Script([Wait(released), text("a"), finish(), usage(1, 1)]))
        waiting = asyncio.create_task(bench.text(stream=True))
        bench.backend._servers[0].silent_since = 0.0
        bench.backend._take_back(0)
        released.set()

        assert await waiting == "a"


async def test_a_server_that_serves_other_models_since_the_last_look_is_passed_over(two: Bench):
    for server in two.servers:
        server.answers(whole("a"))
    await two.text()
    moved = two.asked.index(1)
    looks = looks_at(two.servers[moved])
    two.servers[moved].models = [{"id": "other", "owned_by": "vllm"}]
    two.servers[moved].answers(refused(404, "The model `m` does not exist.", type="NotFoundError"))

    async def seen() -> bool:
        return looks_at(two.servers[moved]) > looks and "m" not in two.backend._servers[moved].served

    assert await two.text() == "a"
    await two.until(seen)


async def test_a_model_that_no_server_has_any_more_is_unknown(two: Bench):
    for server in two.servers:
        server.answers(refused(404, "The model `m` does not exist.", type="NotFoundError"))

    with pytest.raises(UnknownModel):
        await two.text()
    assert two.asked == [1, 1]


async def test_a_callers_mistakes_put_no_server_out(one: Bench):
    one.servers[0].answers(*[refused(400, "no")] * 10)
    for _ in range(10):
        with pytest.raises(InvalidParameter):
            await one.text()

    assert not one.backend._balancer.is_out(0)


async def test_a_server_that_comes_back_is_used_again(two: Bench):
    for _ in range(FAILURES_TO_EJECT):
        two.backend._balancer.failed(0)
    two.backend._servers[0].alarm.set()

    async def used() -> bool:
        for server in two.servers:
            server.answers(whole("b"))
        await events_of(two.backend, request("m", TextPrompt(text="x")))
        return bool(two.servers[0].completions)

    await two.until(used)


async def test_clients_that_leave_before_an_answer_put_no_server_out(one: Bench):
    for _ in range(FAILURES_TO_EJECT + 1):
        one.servers[0].answers(Script([Hang()], framing="raw"))
        task = asyncio.create_task(one.text())

        async def asked() -> bool:
            return bool(one.servers[0].completions) and not one.servers[0].completions[-1].closed.is_set()

        await one.until(asked)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await one.servers[0].completions[-1].closed.wait()

    assert not one.backend._balancer.is_out(0)
    status = await status_of(one.backend, "m")
    assert status is not None
    assert status.running == 0


# Health


async def test_before_the_first_look_nothing_is_said_to_be_well():
    async with OpenAIUpstream() as server:
        backend = RemoteBackend([Upstream(server.url)], Catalogue([]))
        health = await backend.health()
        await backend.aclose()

    assert (health.healthy, health.message) == (False, "No answer yet")


async def test_one_server_that_answers_is_enough_and_the_others_are_told(two: Bench):
    well = await two.backend.health()
    await two.servers[1].stop()
    two.backend._servers[1].alarm.set()

    async def told() -> bool:
        return (await two.backend.health()).message is not None

    await two.until(told)
    health = await two.backend.health()

    assert (well.healthy, well.message) == (True, None)
    assert (health.healthy, health.message) == (True, "1 of 2 servers: Connection refused")


async def test_a_failed_request_makes_the_watcher_look_at_once(one: Bench):
    await one.servers[0].stop()
    with pytest.raises(BackendUnavailable):
        await one.text()

    async def told() -> bool:
        return not (await one.backend.health()).healthy

    await one.until(told)
    assert (await one.backend.health()).message == "Connection refused"


async def test_a_refused_key_is_said(monkeypatch: pytest.MonkeyPatch):
    async with OpenAIUpstream() as server:
        monkeypatch.setattr(
            server, "_script_for", lambda asked: refused(401 if asked.path == "/v1/models" else 200)
        )
        backend = RemoteBackend([Upstream(server.url, api_key="wrong")], Catalogue([]))
        await backend.start()
        await Bench(backend, backend._catalogue, [server]).until_seen()
        health = await backend.health()
        await backend.aclose()

    assert not health.healthy
    assert health.message == "The server refused the key that this service shows it"


async def test_a_server_without_a_list_of_models_is_well():
    async with OpenAIUpstream() as server:
        server.models = None
        card = ModelCard(id="m", backend="vllm", sources={"vllm": RemoteSource(name="m")})
        backend = RemoteBackend([Upstream(server.url)], Catalogue([card]))
        await backend.start()
        bench = Bench(backend, backend._catalogue, [server])
        await bench.until_seen()
        server.answers(stream(text("a"), finish(), usage(1, 1)))
        health = await backend.health()
        answered = await bench.text(stream=True)
        await backend.aclose()

    assert health.healthy
    assert health.models[0].state == "loaded"
    assert answered == "a"


async def test_counting_asks_another_server_where_one_is_gone(two: Bench):
    await two.servers[0].stop()

    assert await two.backend.count_tokens("m", TextPrompt(text="a")) == 7


async def test_a_closed_backend_watches_nobody_any_more(one: Bench):
    await one.backend.aclose()
    await one.backend.aclose()

    assert all(watcher.done() for watcher in one.backend._watchers)
    with pytest.raises(BackendUnavailable):
        await one.text()
