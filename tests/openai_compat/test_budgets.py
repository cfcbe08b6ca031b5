"""What a caller may spend in a day: checked before a request, counted after it, kept over a restart."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import BackendFailed, BackendUnavailable
from backends.types import Started, TextDelta, Usage
from models.card import ModelCard
from openai_compat.budgets import DAY_S, Budgets, Spent, StoreUnavailable, _nanos
from openai_compat.errors import QuotaExceeded
from openai_compat.principals import Principal, digest_of
from openai_compat.serving.cost import usd_text
from openai_compat.spending_file import FILE, KEEP_DAYS, SpendingFile
from tests.openai_compat.scripted_backend import Hang, ScriptedBackend, words
from tests.openai_compat.test_principals import file_of
from tests.openai_compat.wire import Connection, Reply, call, make_app

NOON = 20_000 * DAY_S + DAY_S / 2
ALICE = Principal(name="alice", is_named=True, budget_usd_per_day=1.0)


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


class Broken:
    """A store that cannot be reached."""

    def __init__(self) -> None:
        self.down = True
        self.nanos = 0

    async def spent(self, name: str) -> Spent:
        self._fail()
        return Spent(self.nanos, 60.0)

    async def add(self, name: str, nanos: int) -> None:
        self._fail()
        self.nanos += nanos

    async def aclose(self) -> None:
        pass

    def _fail(self) -> None:
        if self.down:
            raise StoreUnavailable("no route")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SpendingFile]:
    made = SpendingFile(tmp_path / "state", clock=Clock())
    yield made
    await made.aclose()


# The books.


async def test_a_spent_budget_is_refused_until_the_day_ends(tmp_path: Path) -> None:
    clock = Clock()
    store = SpendingFile(tmp_path, clock=clock)
    budgets = Budgets(store)

    await budgets.check(ALICE)
    await budgets.add(ALICE, 0.4)
    await budgets.check(ALICE)
    await budgets.add(ALICE, 0.6)
    with pytest.raises(
        QuotaExceeded, match=r"1 US dollars for today is spent.*00:00 UTC, in 43200 s"
    ) as caught:
        await budgets.check(ALICE)
    clock.now += DAY_S / 2
    await budgets.check(ALICE)

    assert caught.value.retry_after_s == DAY_S / 2
    await budgets.aclose()


async def test_a_budget_of_nothing_is_always_spent(store: SpendingFile) -> None:
    with pytest.raises(QuotaExceeded):
        await Budgets(store).check(Principal(name="a", budget_usd_per_day=0.0))


@pytest.mark.parametrize(
    ("principal", "limit"),
    [
        (Principal(name="alice"), 5.0),
        (Principal(name="alice", budget_usd_per_day=0.5), 0.5),
        (Principal(name="alice", budget_usd_per_day=0.0), 0.0),
        (Principal(name="bob"), 2.0),
    ],
)
def test_a_callers_own_budget_goes_before_the_table_and_its_star(principal: Principal, limit: float) -> None:
    assert Budgets(None, {"alice": 5, "*": 2}).limit_of(principal) == limit


def test_without_a_star_nobody_else_has_a_budget() -> None:
    assert Budgets(None, {"alice": 5}).limit_of(Principal(name="bob")) is None


async def test_principals_do_not_spend_each_others_money(store: SpendingFile) -> None:
    budgets = Budgets(store, {"*": 1})
    await budgets.add(Principal(name="a"), 2.0)

    await budgets.check(Principal(name="b"))
    with pytest.raises(QuotaExceeded):
        await budgets.check(Principal(name="a"))


async def test_a_named_caller_is_counted_before_he_has_a_budget(store: SpendingFile) -> None:
    budgets = Budgets(store)
    await budgets.add(Principal(name="alice", is_named=True), 2.0)
    await budgets.add(Principal(name="key:0123456789ab"), 2.0)

    with pytest.raises(QuotaExceeded):
        await budgets.check(ALICE)
    assert (await store.spent("key:0123456789ab")).nanos == 0


async def test_counts_survive_a_restart_and_are_shared_by_workers(tmp_path: Path) -> None:
    first, second = SpendingFile(tmp_path, clock=Clock()), SpendingFile(tmp_path, clock=Clock())
    await first.add("alice", 5)
    await second.add("alice", 7)
    await first.add("alice", 1)

    assert (await second.spent("alice")).nanos == 13
    await first.aclose()
    await second.aclose()
    again = SpendingFile(tmp_path, clock=Clock())
    assert (await again.spent("alice")).nanos == 13
    await again.aclose()


async def test_many_writers_lose_nothing(tmp_path: Path) -> None:
    stores = [SpendingFile(tmp_path, clock=Clock()) for _ in range(4)]
    await asyncio.gather(*(store.add("alice", 1) for store in stores for _ in range(50)))

    assert (await stores[0].spent("alice")).nanos == 200
    for store in stores:
        await store.aclose()


async def test_workers_that_start_together_lose_nothing(tmp_path: Path) -> None:
    # Each turns the file's log on; SQLite tells those who come second that it is busy, without waiting.
    for attempt in range(40):
        folder = tmp_path / str(attempt)
        stores = [SpendingFile(folder, clock=Clock()) for _ in range(8)]
        await asyncio.gather(*(store.add("alice", 1) for store in stores))

        assert (await stores[0].spent("alice")).nanos == 8
        for store in stores:
            await store.aclose()


async def test_a_file_that_stays_locked_is_an_unavailable_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openai_compat.spending_file._BUSY_S", 0.05)
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    store = SpendingFile(tmp_path, clock=Clock())

    with pytest.raises(StoreUnavailable, match="locked"):
        await store.add("alice", 1)
    other.execute("ROLLBACK")
    await store.add("alice", 1)
    assert (await store.spent("alice")).nanos == 1
    await store.aclose()
    other.close()


async def test_old_days_are_dropped(tmp_path: Path) -> None:
    clock = Clock()
    store = SpendingFile(tmp_path, clock=clock)
    await store.add("alice", 1)
    clock.now += (KEEP_DAYS + 1) * DAY_S
    await store.add("bob", 1)
    await store.aclose()

    connection = sqlite3.connect(tmp_path / FILE)
    assert connection.execute("SELECT principal FROM spending").fetchall() == [("bob",)]
    connection.close()


async def test_the_file_is_its_owners_alone(tmp_path: Path, store: SpendingFile) -> None:
    await store.add("alice", 1)

    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "state" / FILE).stat().st_mode & 0o777 == 0o600


async def test_a_file_that_is_no_database_is_an_unavailable_store(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"not a database, and long enough to be looked at" * 100)
    store = SpendingFile(tmp_path)

    with pytest.raises(StoreUnavailable, match="not a database"):
        await store.spent("alice")
    await store.aclose()


async def test_a_folder_that_cannot_be_made_is_an_unavailable_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = SpendingFile(tmp_path / "file" / "state")

    with pytest.raises(StoreUnavailable):
        await store.add("alice", 1)
    await store.aclose()


async def test_who_has_a_budget_is_refused_while_nobody_can_say_what_he_spent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Broken()
    budgets = Budgets(store)

    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with pytest.raises(BackendUnavailable, match="cannot be read"):
                await budgets.check(ALICE)
        await budgets.check(Principal(name="nobody"))
        store.down = False
        await budgets.check(ALICE)
    assert caplog.text.count("spending cannot be kept") == 1
    assert caplog.text.count("kept again") == 1


async def test_a_cost_that_cannot_be_booked_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    await Budgets(Broken()).add(ALICE, 0.25)

    assert "alice spent 0.250000000 US dollars that could not be booked" in caplog.text


async def test_what_cannot_be_booked_counts_and_is_booked_once_it_can_be(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Full(Broken):
        """A disk without room: it can be read."""

        async def spent(self, name: str) -> Spent:
            return Spent(self.nanos, 60.0)

    store = Full()
    budgets = Budgets(store)
    await budgets.add(ALICE, 0.6)
    await budgets.check(ALICE)
    await budgets.add(ALICE, 0.6)

    with pytest.raises(QuotaExceeded):
        await budgets.check(ALICE)
    await budgets.check(Principal(name="bob", budget_usd_per_day=1.0))
    assert "kept again" not in caplog.text
    store.down = False
    await budgets.add(ALICE, 0.1)
    assert store.nanos == 1_300_000_000
    assert caplog.text.count("kept again") == 1
    with pytest.raises(QuotaExceeded):
        await budgets.check(ALICE)


async def test_a_booking_is_finished_when_its_request_is_cancelled() -> None:
    class Slow(Broken):
        async def add(self, name: str, nanos: int) -> None:
            await asyncio.sleep(0.01)
            self.nanos += nanos

    store = Slow()
    budgets = Budgets(store)
    task = asyncio.create_task(budgets.add(ALICE, 1e-9))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))
    await budgets.aclose()

    assert store.nanos == 1


@given(st.floats(1e-12, 1e3))
def test_amounts_are_rounded_up_to_a_billionth(usd: float) -> None:
    assert usd * 1e9 - 1e-3 <= _nanos(usd) <= usd * 1e9 + 1
    assert _nanos(usd) >= 1 or usd < 1e-14


@pytest.mark.parametrize("usd", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_amount_is_nothing(usd: float) -> None:
    assert _nanos(usd) == 0


@pytest.mark.parametrize(
    ("usd", "text"), [(0.0, "0"), (1e-7, "0.0000001"), (0.00123, "0.00123"), (2.5, "2.5"), (12.0, "12")]
)
def test_a_cost_is_written_in_plain_decimals(usd: float, text: str) -> None:
    assert usd_text(usd) == text


# On the wire.

PRICE = {"prompt": 1_000_000.0, "completion": 2_000_000.0}


def card(id: str, kind: str, **fields: Any) -> ModelCard:
    return ModelCard.model_validate({"id": id, "sources": {kind: {"name": id}}, **fields})


class House:
    """A cloud whose answers cost `cost`, a local model, and a caller `alice` with a budget of 1 dollar."""

    def __init__(self, folder: Path, *, cost: float | None = 0.6, script: Any = None, **fields: Any) -> None:
        self.cloud = ScriptedBackend(
            script=script or words("Hi", usage=Usage(5, 1, cost_usd=cost)), kind="litellm"
        )
        self.local = ScriptedBackend(script=words("here"))
        cloudy = {"fallbacks": ["tiny"], "price": PRICE, **fields}
        file = folder / "principals.json"
        alice = {"name": "alice", "token_sha256": digest_of(b"alice").hex(), "budget_usd_per_day": 1}
        bob = {"name": "bob", "token_sha256": digest_of(b"bob").hex()}
        file.write_bytes(file_of(alice, bob))
        self.app = make_app(
            backends={"litellm": self.cloud, "fake": self.local},
            cards=[
                card("cloudy", "litellm", **cloudy),
                card("tiny", "fake", fallbacks=["cloudy"]),
            ],
            principals_file=file,
            state_dir=folder / "state",
        )

    async def chat(self, model: str = "cloudy", token: str = "alice", **fields: Any) -> Reply:
        body = {"model": model, "messages": [{"role": "user", "content": "Hi there"}], **fields}
        headers = {"authorization": f"Bearer {token}"}
        return await call(self.app, "POST", "/v1/chat/completions", body, headers=headers)

    def begin(self, **fields: Any) -> tuple[Connection, asyncio.Task[Reply]]:
        body = {"model": "cloudy", "messages": [{"role": "user", "content": "Hi there"}], **fields}
        connection = Connection(
            self.app,
            "POST",
            "/v1/chat/completions",
            body=json.dumps(body).encode(),
            headers={"authorization": "Bearer alice"},
        )
        return connection, asyncio.create_task(connection.run())

    async def spent(self, name: str = "alice") -> float:
        budgets: Budgets = self.app.state.gateway.budgets
        await asyncio.sleep(0)
        while budgets._adding:
            await asyncio.wait(budgets._adding)
        assert budgets._store is not None
        return (await budgets._store.spent(name)).nanos / 1e9

    def counted(self, name: str) -> float | None:
        for line in self.app.state.gateway.metrics.render().decode().splitlines():
            if line.startswith(name):
                return float(line.rpartition(" ")[2])
        return None

    async def __aenter__(self) -> House:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.app.state.gateway.budgets.aclose()


@pytest.mark.parametrize("stream", [False, True])
async def test_the_request_after_the_one_that_spent_the_budget_is_refused(
    tmp_path: Path, stream: bool
) -> None:
    async with House(tmp_path) as house:
        assert (await house.chat(stream=stream)).status == 200
        assert (await house.chat(stream=stream)).status == 200
        reply = await house.chat(stream=stream)

        assert reply.status == 429
        assert (reply.error["type"], reply.error["code"]) == ("insufficient_quota", "insufficient_quota")
        assert "00:00 UTC" in reply.error["message"]
        assert reply.headers["x-should-retry"] == "false"
        assert 1 <= int(reply.headers["retry-after"]) <= DAY_S
        assert len(house.cloud.requests) == 2
        assert house.counted('llm:rejections_total{reason="insufficient_quota"}') == 1


async def test_a_spent_budget_leaves_what_costs_nothing(tmp_path: Path) -> None:
    async with House(tmp_path, cost=2.0) as house:
        await house.chat()

        assert (await house.chat("tiny")).status == 200
        assert (await house.chat(token="bob")).status == 200


async def test_a_fallback_that_cannot_be_paid_for_is_passed_over(tmp_path: Path) -> None:
    async with House(tmp_path, cost=2.0) as house:
        house.local.script = [BackendUnavailable("The runner is dead")]

        assert (await house.chat("tiny")).json["model"] == "cloudy"
        assert (await house.chat("tiny")).error["message"] == "The runner is dead"
        assert len(house.cloud.requests) == 1


async def test_the_cost_stands_in_a_header_or_in_the_last_chunk(tmp_path: Path) -> None:
    async with House(tmp_path, cost=0.00012) as house:
        whole = await house.chat()
        stream = await house.chat(stream=True, stream_options={"include_usage": True})

        assert whole.headers["x-llm-cost-usd"] == "0.00012"
        assert whole.json["usage"]["cost_usd"] == 0.00012
        assert stream.chunks[-1]["usage"]["cost_usd"] == 0.00012
        assert "x-llm-cost-usd" not in stream.headers
        assert "x-llm-cost-usd" not in (await house.chat("tiny")).headers


async def test_the_cost_is_counted_by_model_and_by_caller(tmp_path: Path) -> None:
    async with House(tmp_path, cost=0.25) as house:
        await house.chat()
        await house.chat(token="bob")

        assert house.counted('llm:cost_usd_total{backend="litellm",model="cloudy"}') == 0.5
        assert house.counted('llm:principal_cost_usd_total{principal="bob"}') == 0.25
        assert house.counted('llm:principal_requests_total{principal="alice"}') == 1


async def test_an_answer_without_a_known_cost_counts_as_nothing(tmp_path: Path) -> None:
    async with House(tmp_path, cost=None) as house:
        await house.chat()

        assert await house.spent() == 0.0


async def test_no_file_is_made_before_somebody_spends(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.chat("tiny")

        assert not (tmp_path / "state").exists()


async def test_leaving_just_before_the_end_is_not_free(tmp_path: Path) -> None:
    script = [Started(0.0, 2), TextDelta(0, "Hi", num_tokens=3), Hang()]
    async with House(tmp_path, script=script, price=PRICE) as house:
        connection, running = house.begin(stream=True)
        await house.cloud.reached.wait()
        connection.leave()
        await running

        # "user" and "Hi there" are 12 characters, so about 3 tokens; 3 tokens were seen.
        assert await house.spent() == 3 * 1.0 + 3 * 2.0
        assert connection.record.cost_usd == 9.0


async def test_leaving_before_a_whole_answer_pays_for_the_prompt(tmp_path: Path) -> None:
    async with House(tmp_path, script=[Hang()], price=PRICE) as house:
        connection, running = house.begin()
        await house.cloud.reached.wait()
        connection.leave()
        await running

        assert await house.spent() == 3.0


async def test_leaving_after_the_cost_was_told_pays_it(tmp_path: Path) -> None:
    script = [*words("Hi", usage=Usage(5, 1, cost_usd=0.25)), Hang()]
    async with House(tmp_path, script=script, price=PRICE) as house:
        connection, running = house.begin()
        await house.cloud.reached.wait()
        connection.leave()
        await running

        assert await house.spent() == 0.25


async def test_a_refusal_of_the_cloud_costs_nothing(tmp_path: Path) -> None:
    async with House(tmp_path, script=[BackendFailed("No")], price=PRICE, fallbacks=[]) as house:
        assert (await house.chat()).status == 500

        assert await house.spent() == 0.0


async def test_what_a_failed_attempt_cost_is_paid_beside_the_answer(tmp_path: Path) -> None:
    script = [Started(0.0, 2), TextDelta(0, "Hi", num_tokens=1), BackendFailed("Broken")]
    async with House(tmp_path, script=script, price=PRICE) as house:
        reply = await house.chat()

        assert reply.json["model"] == "tiny"
        assert reply.headers["x-llm-cost-usd"] == "5"
        assert await house.spent() == 5.0


async def test_a_model_above_its_cards_limit_counts_as_unavailable(tmp_path: Path) -> None:
    limit = {"prompt": 1_000_000.0, "completion": 1_999_999.0}
    async with House(tmp_path, price=PRICE, max_price=limit) as house:
        assert (await house.chat()).json["model"] == "tiny"
    async with House(tmp_path, price=PRICE, max_price=limit, fallbacks=[]) as house:
        reply = await house.chat()
        assert (reply.status, reply.error["code"]) == (503, "backend_unavailable")
        assert "costs more than its card allows" in reply.error["message"]
        assert house.cloud.requests == []
    async with House(tmp_path, price=PRICE, max_price=PRICE) as house:
        assert (await house.chat()).json["model"] == "cloudy"


async def test_a_fallback_above_its_cards_limit_is_passed_over(tmp_path: Path) -> None:
    limit = {"prompt": 0.0, "completion": 0.0}
    async with House(tmp_path, price=PRICE, max_price=limit) as house:
        house.local.script = [BackendUnavailable("The runner is dead")]

        assert (await house.chat("tiny")).error["message"] == "The runner is dead"
        assert house.counted("llm:fallbacks_total") is None


async def test_a_limit_on_an_unknown_price_lets_nothing_through(tmp_path: Path) -> None:
    async with House(tmp_path, price=None, max_price=PRICE, fallbacks=[]) as house:
        assert (await house.chat(token="bob")).status == 503

        offered = card("cloudy", "litellm", price=PRICE)
        house.app.state.gateway.catalogue.offer("litellm", [offered])
        assert (await house.chat(token="bob")).status == 200


async def test_a_caller_with_a_budget_gets_nothing_from_a_cloud_that_nobody_can_price(tmp_path: Path) -> None:
    async with House(tmp_path, price=None) as house:
        early = await house.chat()
        house.app.state.gateway.catalogue.offer("litellm", [])
        reply = await house.chat()

        assert (early.status, early.error["code"]) == (503, "backend_unavailable")
        assert (reply.status, reply.error["code"], reply.error["param"]) == (
            400,
            "unsupported_parameter",
            "model",
        )
        assert "price of the model 'cloudy' is not known" in reply.error["message"]
        assert house.cloud.requests == []
        assert (await house.chat(token="bob")).status == 200


async def test_a_fallback_that_nobody_can_price_is_passed_over_for_a_caller_with_a_budget(
    tmp_path: Path,
) -> None:
    async with House(tmp_path, price=None) as house:
        house.app.state.gateway.catalogue.offer("litellm", [])
        house.local.script = [BackendUnavailable("The runner is dead")]

        assert (await house.chat("tiny")).error["message"] == "The runner is dead"
        assert (await house.chat("tiny", token="bob")).json["model"] == "cloudy"


async def test_embeddings_of_a_cloud_need_a_budget_too(tmp_path: Path) -> None:
    async with House(tmp_path, cost=2.0, capabilities=["chat", "embeddings"]) as house:
        await house.chat()
        reply = await call(
            house.app,
            "POST",
            "/v1/embeddings",
            {"model": "cloudy", "input": "Hi"},
            headers={"authorization": "Bearer alice"},
        )

        assert reply.error["code"] == "insufficient_quota"
