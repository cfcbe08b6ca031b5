"""What a runner offers without a card reaches the gateway's catalogue."""

from __future__ import annotations

import asyncio

import pytest
from typing_extensions import override

from backends.errors import BackendUnavailable
from backends.runner import OfferingClient, offers
from backends.types import OfferedModel, Offers
from models.catalogue import Catalogue

FOUND = Offers(models=(OfferedModel(id="m", owned_by="somebody"),), prefixes=("somebody",))


class Client(OfferingClient):
    """Answers without a runner: each of `answers` once, the last one for ever."""

    def __init__(self, catalogue: Catalogue, *answers: Offers | Exception) -> None:
        super().__init__("litellm", "http://127.0.0.1:9", None, catalogue=catalogue)
        self.answers = list(answers)

    @override
    async def offers(self) -> Offers:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def until_offered(catalogue: Catalogue) -> None:
    async with asyncio.timeout(5):
        while not catalogue.has_offers("litellm"):  # noqa: ASYNC110 - asked for in another task
            await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers, "SOON_S", 0.001)


@pytest.mark.parametrize("fault", [BackendUnavailable("not yet"), RuntimeError("a fault of our own")])
async def test_a_runner_that_could_not_be_asked_is_asked_again(
    fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    catalogue = Catalogue([])
    assert not catalogue.has_offers("litellm")
    client = Client(catalogue, fault, FOUND)
    await client.start()
    await until_offered(catalogue)
    await client.aclose()

    assert catalogue.resolve("somebody/anything").backend == "litellm"
    assert ("could not be taken over" in caplog.text) is isinstance(fault, RuntimeError)


async def test_what_the_catalogue_could_not_take_is_offered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue = Catalogue([])
    client = Client(catalogue, FOUND)
    taken = catalogue.offer

    def broken(*_: object, **__: object) -> None:
        monkeypatch.setattr(catalogue, "offer", taken)
        raise OSError("the folder of models cannot be read")

    monkeypatch.setattr(catalogue, "offer", broken)
    await client.start()
    await until_offered(catalogue)
    await client.aclose()
