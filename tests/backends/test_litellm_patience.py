"""When a call is tried again, and when a deployment is left alone."""

from __future__ import annotations

import pytest

from backends.errors import (
    BackendTimeout,
    BackendUnavailable,
    Overloaded,
    RequestError,
    ServiceError,
    UnsupportedParameter,
    UpstreamAuthFailed,
    UpstreamError,
    UpstreamQuotaExceeded,
    UpstreamRateLimited,
)
from backends.litellm import patience as waits
from backends.litellm.patience import Cooldowns, Patience, delay_s, is_transient
from backends.types import ChatPrompt
from tests.backends.clocks import FakeClock
from tests.backends.contract import events_of, finished_of, request, text_of
from tests.backends.litellm_backends import a_backend, a_card, needs_litellm
from tests.backends.provider_upstreams import anthropic_format, openai_format
from tests.backends.provider_upstreams.openai_format import chunk, completion
from tests.backends.provider_upstreams.server import Answer, Call, Upstream, Wire

CHAT = ChatPrompt(messages=[{"role": "user", "content": "hi"}])
LABEL = "openai/gpt-4o"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def cooldowns(clock: FakeClock) -> Cooldowns:
    return Cooldowns(Patience(cooldown_after=3, cooldown_s=10.0), clock)


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (BackendUnavailable("x"), True),
        (Overloaded("x"), True),
        (UpstreamError("x"), True),
        (UpstreamRateLimited("x", retry_after_s=1.0), True),
        (UpstreamRateLimited("x"), False),
        (UpstreamQuotaExceeded("x"), False),
        (UpstreamAuthFailed("x"), False),
        (BackendTimeout("x"), False),
        (RequestError("x"), False),
    ],
)
def test_what_may_pass_by_itself_is_tried_again(error: ServiceError, transient: bool):
    assert is_transient(error) is transient


def test_the_pause_is_drawn_below_a_bound_that_doubles_and_ends():
    bounds = [delay_s(attempt, UpstreamError("x"), lambda: 1.0) for attempt in range(7)]

    assert bounds == [0.25, 0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    assert delay_s(3, UpstreamError("x"), lambda: 0.0) == 0.0


def test_the_pause_is_never_shorter_than_the_provider_asks_for():
    assert delay_s(0, Overloaded("x", retry_after_s=3.0), lambda: 0.0) == 3.0


async def test_failures_in_a_row_make_a_deployment_rest(cooldowns: Cooldowns, clock: FakeClock):
    for _ in range(3):
        cooldowns.check(LABEL)
        cooldowns.failed(LABEL, UpstreamError("broken"))

    with pytest.raises(BackendUnavailable, match="3 failures") as raised:
        cooldowns.check(LABEL)
    assert raised.value.retry_after_s == 10.0
    cooldowns.check("openai/another")
    await clock.advance(10.0)
    cooldowns.check(LABEL)


async def test_after_a_rest_one_failure_begins_another(cooldowns: Cooldowns, clock: FakeClock):
    for _ in range(3):
        cooldowns.failed(LABEL, UpstreamError("broken"))
    await clock.advance(11.0)
    cooldowns.check(LABEL)
    cooldowns.failed(LABEL, UpstreamError("broken"))

    with pytest.raises(BackendUnavailable):
        cooldowns.check(LABEL)


def test_one_success_ends_the_count(cooldowns: Cooldowns):
    for _ in range(2):
        cooldowns.failed(LABEL, UpstreamError("broken"))
    cooldowns.succeeded(LABEL)
    for _ in range(2):
        cooldowns.failed(LABEL, UpstreamError("broken"))

    cooldowns.check(LABEL)


async def test_a_rate_limit_with_a_pause_rests_at_once_and_says_how_long_still(
    cooldowns: Cooldowns, clock: FakeClock
):
    cooldowns.failed(LABEL, UpstreamRateLimited("slow down", retry_after_s=8.0))
    await clock.advance(3.0)

    with pytest.raises(UpstreamRateLimited) as raised:
        cooldowns.check(LABEL)
    assert raised.value.retry_after_s == pytest.approx(5.0)


def test_what_is_the_requests_fault_never_counts(cooldowns: Cooldowns):
    for _ in range(10):
        cooldowns.failed(LABEL, UnsupportedParameter("x"))
        cooldowns.failed(LABEL, RequestError("x"))

    cooldowns.check(LABEL)


def test_the_table_of_deployments_is_bounded(cooldowns: Cooldowns):
    for number in range(waits.MAX_DEPLOYMENTS + 10):
        cooldowns.failed(f"openai/{number}", UpstreamRateLimited("x", retry_after_s=100.0))

    assert len(cooldowns._until) <= waits.MAX_DEPLOYMENTS
    assert len(cooldowns._failures) <= waits.MAX_DEPLOYMENTS


# With the real calls.


@pytest.fixture
def provider(provider: Upstream, monkeypatch: pytest.MonkeyPatch) -> Upstream:
    monkeypatch.setattr(waits, "FIRST_DELAY_S", 0.01)
    return provider


def fails(status: int, **headers: str) -> Answer:
    async def answer(_: Call, wire: Wire) -> None:
        await wire.json(status, openai_format.error("no", kind="server_error"), **headers)

    return answer


async def hello(_: Call, wire: Wire) -> None:
    await wire.json(200, completion("Hello"))


async def hang_up(_: Call, wire: Wire) -> None:
    wire.reset()


class TestWithAProvider:
    pytestmark = needs_litellm

    @pytest.mark.parametrize(
        "failure", [fails(500), fails(503), fails(529), hang_up, fails(429, retry_after="0")]
    )
    async def test_a_call_that_failed_before_it_brought_anything_is_made_again(
        self, provider: Upstream, failure: Answer
    ):
        provider.answers = [failure, failure, hello]
        async with a_backend(patience=Patience(max_retries=2)) as backend:
            events = await events_of(backend, request("gpt-4o", CHAT))

        assert text_of(events) == "Hello"
        assert len(provider.calls) == 3

    async def test_attempts_end(self, provider: Upstream):
        provider.answer = fails(500)
        async with a_backend(patience=Patience(max_retries=2)) as backend:
            with pytest.raises(UpstreamError):
                await events_of(backend, request("gpt-4o", CHAT))

        assert len(provider.calls) == 3

    @pytest.mark.parametrize("status", [400, 401, 404])
    async def test_a_refusal_is_not_asked_for_again(self, provider: Upstream, status: int):
        provider.answer = fails(status)
        async with a_backend(patience=Patience(max_retries=2)) as backend:
            with pytest.raises(Exception, match=r"."):
                await events_of(backend, request("gpt-4o", CHAT))

        assert len(provider.calls) == 1

    async def test_a_stream_that_broke_after_its_first_text_is_not_begun_again(self, provider: Upstream):
        async def breaks(_: Call, wire: Wire) -> None:
            await wire.begin_stream()
            await wire.event(chunk({"content": "Hel"}))
            wire.hang_up()

        provider.answer = breaks
        async with a_backend(patience=Patience(max_retries=2)) as backend:
            with pytest.raises(UpstreamError):
                await events_of(backend, request("gpt-4o", CHAT, stream=True))

        assert len(provider.calls) == 1

    async def test_a_long_pause_is_passed_on_and_not_waited_for(self, provider: Upstream):
        provider.answer = fails(429, retry_after="30")
        async with a_backend(patience=Patience(max_retries=2)) as backend:
            for _ in range(2):
                with pytest.raises(UpstreamRateLimited) as raised:
                    await events_of(backend, request("gpt-4o", CHAT))

        assert raised.value.retry_after_s == pytest.approx(30, abs=2)
        assert len(provider.calls) == 1

    async def test_a_failing_deployment_rests_and_another_is_served(self, provider: Upstream):
        provider.answers = [fails(500), fails(500), hello]
        async with a_backend(patience=Patience(max_retries=0, cooldown_after=2)) as backend:
            for expected in (UpstreamError, UpstreamError, BackendUnavailable):
                with pytest.raises(expected):
                    await events_of(backend, request("gpt-4o", CHAT))
            assert text_of(await events_of(backend, request("gpt-4o-mini", CHAT))) == "Hello"

        assert len(provider.calls) == 3

    async def test_a_default_that_the_provider_refuses_is_left_out_and_learned(self, provider: Upstream):
        refusal = openai_format.error(
            "Unsupported value: 'temperature' does not support 0.7 with this model.",
            kind="invalid_request_error",
            code="unsupported_value",
            param="temperature",
        )

        async def picky(call: Call, wire: Wire) -> None:
            if "temperature" in call.body:
                await wire.json(400, refusal)
            else:
                await hello(call, wire)

        provider.answer = picky
        async with a_backend(patience=Patience(max_retries=0)) as backend:
            wanted = request("openai/new-model", CHAT, temperature=0.7)
            for _ in range(2):
                assert text_of(await events_of(backend, wanted)) == "Hello"
            assert len(provider.calls) == 3

            own = request("openai/new-model", CHAT, temperature=0.7, explicit=frozenset({"temperature"}))
            with pytest.raises(UnsupportedParameter) as raised:
                await events_of(backend, own)
        assert raised.value.param == "temperature"

    async def test_side_by_side_calls_count_the_prompt_once_and_every_cost(self, provider: Upstream):
        provider.answer = anthropic_format.Says(
            anthropic_format.text("Hi"), counts=anthropic_format.usage(1000, 10)
        )
        async with a_backend() as backend:
            one = finished_of(await events_of(backend, request("claude-sonnet-4-5", CHAT))).usage
            three = finished_of(await events_of(backend, request("claude-sonnet-4-5", CHAT, n=3))).usage

        assert (three.prompt_tokens, three.completion_tokens) == (1000, 30)
        assert one.cost_usd
        assert three.cost_usd == pytest.approx(3 * one.cost_usd)

    async def test_the_cards_price_is_the_price(self, provider: Upstream):
        provider.answer = hello  # 9 tokens of prompt, 3 of answer
        card = a_card("mine", "openai/gpt-4o", price={"prompt": 1.0, "completion": 10.0})
        async with a_backend(card) as backend:
            usage = finished_of(await events_of(backend, request("mine", CHAT))).usage

        assert usage.cost_usd == pytest.approx((9 * 1.0 + 3 * 10.0) / 1e6)
