"""From a request's messages to the same ones with pictures that were looked at."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import pytest

from backends.errors import InvalidParameter
from openai_compat.media.intake import IN_PASSING_CHARS, Intake, has_pictures
from openai_compat.media.limits import MediaLimits
from tests.backends.provider_upstreams.server import Call, Upstream, Wire, silence, upstream
from tests.openai_compat.pictures import (
    EVERY_KIND,
    GIF_ANIMATED,
    JPEG,
    PNG,
    chunk,
    data_url,
    png,
    shown,
)


def urls(messages: list[dict[str, Any]]) -> list[str]:
    return [
        part["image_url"]["url"]
        for message in messages
        if isinstance(message["content"], list)
        for part in message["content"]
        if part["type"] == "image_url"
    ]


async def taken(messages: list[dict[str, Any]], **limits: Any) -> list[dict[str, Any]]:
    intake = Intake(MediaLimits(**limits))
    try:
        return await intake.take(messages)
    finally:
        await intake.aclose()


async def refusal(messages: list[dict[str, Any]], **limits: Any) -> InvalidParameter:
    with pytest.raises(InvalidParameter) as refused:
        await taken(messages, **limits)
    return refused.value


@pytest.fixture
async def server() -> AsyncIterator[Upstream]:
    """Gives the picture that the path names, by its type, whatever it is asked for."""

    async def answer(call: Call, wire: Wire) -> None:
        await wire.whole(200, EVERY_KIND["image/" + call.path.removeprefix("/")], "text/plain")

    async with upstream(answer) as one:
        yield one


def allowing(server: Upstream) -> dict[str, Any]:
    return {"allow": (f"127.0.0.1:{server.port}",)}


async def test_messages_come_back_with_their_pictures_as_they_were() -> None:
    messages = [
        {"role": "system", "content": "Look."},
        *shown(data_url(PNG), data_url(JPEG, "image/jpg"), detail="low"),
    ]

    seen = await taken(messages)

    assert urls(seen) == [data_url(PNG), data_url(JPEG, "image/jpeg")]
    assert seen[0] == messages[0]
    assert seen[1]["content"][0] == messages[1]["content"][0]
    assert seen[1]["content"][1]["image_url"]["detail"] == "low"
    assert urls(messages) == [data_url(PNG), data_url(JPEG, "image/jpg")]


async def test_a_large_picture_is_looked_at_in_a_thread_and_comes_back_the_same() -> None:
    large = png(300, 300, chunks=chunk(b"tEXt", bytes(IN_PASSING_CHARS)))

    assert urls(await taken(shown(data_url(large)))) == [data_url(large)]


async def test_what_is_fetched_becomes_a_data_url_of_what_it_is(server: Upstream) -> None:
    """Whatever its server calls it."""
    links = [f"{server.url}/{kind}" for kind in ("png", "jpeg", "gif", "webp")]

    seen = await taken(shown(*links), **allowing(server))

    assert urls(seen) == [
        data_url(EVERY_KIND[f"image/{kind}"], f"image/{kind}") for kind in ("png", "jpeg", "gif", "webp")
    ]


async def test_a_link_that_stands_there_twice_is_fetched_once(server: Upstream) -> None:
    link = f"{server.url}/png"

    seen = await taken([*shown(link, link), *shown(link)], **allowing(server))

    assert urls(seen) == [data_url(PNG)] * 3
    assert len(server.calls) == 1


async def test_a_broken_picture_costs_no_fetch(server: Upstream) -> None:
    error = await refusal(shown(f"{server.url}/png", "data:image/png;base64,AAAA"), **allowing(server))

    assert error.param == "messages[0].content[2].image_url"
    assert server.calls == []


async def test_the_place_of_a_picture_that_cannot_be_fetched_is_named(server: Upstream) -> None:
    messages = [{"role": "system", "content": "x"}, *shown(data_url(PNG), f"{server.url}/nonsense")]

    error = await refusal(messages, **allowing(server))

    assert error.param == "messages[1].content[2].image_url"
    assert "nonsense" not in error.message


async def test_a_page_is_no_picture(server: Upstream) -> None:
    async def answer(_: Call, wire: Wire) -> None:
        await wire.whole(200, b"<html>a secret</html>", "image/png")

    server.answer = answer
    error = await refusal(shown(f"{server.url}/a.png"), **allowing(server))

    assert "no PNG, JPEG, WebP or GIF" in error.message
    assert "secret" not in error.message


async def test_a_picture_that_fails_ends_the_fetching_of_the_others(server: Upstream) -> None:
    async def answer(call: Call, wire: Wire) -> None:
        if call.path == "/slow":
            await silence(call, wire)
        await server.wait_for_call(1)
        await wire.whole(404, b"")

    server.answer = answer
    error = await refusal(shown(f"{server.url}/slow", f"{server.url}/gone"), **allowing(server))
    slow = next(call for call in server.calls if call.path == "/slow")
    await slow.wait_until_ended()

    assert error.param == "messages[0].content[2].image_url"
    assert slow.client_left


async def test_one_deadline_holds_for_all_pictures(server: Upstream) -> None:
    server.answer = silence
    error = await refusal(
        shown(f"{server.url}/a", f"{server.url}/b"), **allowing(server), timeout_s=0.1, max_fetches=2
    )

    assert "in time" in error.message


async def test_more_pictures_than_allowed_are_refused_naming_the_first_too_many() -> None:
    error = await refusal(shown(*[data_url(PNG)] * 3), max_images=2)

    assert error.param == "messages[0].content[3].image_url"
    assert "3 pictures; a request may have 2" in error.message


async def test_pixels_count_over_all_pictures() -> None:
    one, other = data_url(png(10, 10)), data_url(png(10, 11))

    assert await taken(shown(one, other), max_pixels=210)
    error = await refusal(shown(one, other), max_pixels=209)

    assert error.param == "messages[0].content[2].image_url"
    assert "10x11" in error.message


async def test_a_bomb_is_refused_by_what_it_claims() -> None:
    assert "too large" in (await refusal(shown(data_url(png(9000, 9000))))).message


async def test_an_animation_is_refused_unless_it_is_allowed() -> None:
    animated = data_url(GIF_ANIMATED, "image/gif")

    assert "3 frames; 1 may be sent" in (await refusal(shown(animated))).message
    assert urls(await taken(shown(animated), max_frames=3)) == [animated]
    assert "too large" in (await refusal(shown(animated), max_frames=3, max_pixels=71)).message


async def test_fetched_pictures_count_together_like_a_body(server: Upstream) -> None:
    size = len(b64encode(PNG)) + len(b64encode(JPEG))
    links = shown(f"{server.url}/png", f"{server.url}/jpeg")

    assert await taken(links, **allowing(server), max_total_bytes=size)
    assert "in all" in (await refusal(links, **allowing(server), max_total_bytes=size - 1)).message


async def test_what_is_cancelled_fetches_no_longer(server: Upstream) -> None:
    server.answer = silence
    intake = Intake(MediaLimits(**allowing(server)))
    taking = asyncio.create_task(intake.take(shown(f"{server.url}/a", f"{server.url}/b")))
    await server.wait_for_call(1)
    taking.cancel()
    for call in server.calls:
        await call.wait_until_ended()
    await intake.aclose()

    assert all(call.client_left for call in server.calls)


def test_only_parts_are_pictures() -> None:
    assert has_pictures(shown(data_url(PNG)))
    assert not has_pictures([{"role": "user", "content": "data:image/png;base64,"}, {"role": "assistant"}])
    assert not has_pictures([{"role": "user", "content": [{"type": "text", "text": "x"}]}])
