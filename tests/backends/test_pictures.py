"""Pictures in messages that a backend hands on: in the request, with nothing in them to fetch."""

from __future__ import annotations

from typing import Any

import pytest

from backends.errors import InvalidParameter, RequestError, UnsupportedParameter
from backends.pictures import own_messages, places
from backends.types import ChatPrompt
from backends.vllm.dialect import VLLM
from backends.vllm.remote import conversation_key
from backends.vllm.wire import plan_of
from tests.backends.contract import request
from tests.openai_compat.pictures import EVERY_KIND, PNG, data_url, png, shown

URL = data_url(PNG)


@pytest.mark.parametrize("mime", EVERY_KIND)
def test_a_picture_in_the_request_goes_on_as_it_is(mime: str) -> None:
    messages = [
        {"role": "system", "content": "Look."},
        *shown(data_url(EVERY_KIND[mime], mime), detail="low"),
    ]

    assert own_messages(messages) == messages


@pytest.mark.parametrize(
    "url",
    [
        "",
        None,
        7,
        "https://example.com/a.png",
        "http://127.0.0.1/a.png",
        "file:///etc/passwd",
        "/etc/passwd",
        "gs://bucket/a.png",
        "data:image/png,abc",
        "data:image/png;base64,",
        "data:text/html;base64,PGI+",
        "data:image/svg+xml;base64,PHN2Zy8+",
        "data:image/png;base64,://127.0.0.1/a.png",
        " data:image/png;base64,iVBORw0KGgo=",
        "iVBORw0KGgo=",
    ],
)
def test_whatever_could_be_fetched_is_refused(url: Any) -> None:
    with pytest.raises(InvalidParameter) as refused:
        own_messages(shown(URL, url))

    assert refused.value.param == "messages[0].content[2].image_url"
    assert "127.0.0.1" not in refused.value.message


def test_of_a_part_only_what_is_known_goes_on() -> None:
    messages = shown(URL, detail="low", format="application/pdf")
    messages[0]["content"][0] |= {"source": {"type": "url", "url": "http://127.0.0.1/"}}
    messages[0]["content"][1] |= {"file": {"file_id": "http://127.0.0.1/"}, "uuid": "1"}
    messages[0]["content"].append({"type": "refusal", "refusal": "No."})

    assert own_messages(messages)[0]["content"] == [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": URL, "detail": "low"}},
        {"type": "text", "text": "No."},
    ]


@pytest.mark.parametrize(
    "kind", ["file", "input_audio", "video_url", "audio_url", "image_embeds", "image", None]
)
def test_other_media_do_not_go_on(kind: str | None) -> None:
    part = {"type": kind, "file": {"file_id": "http://127.0.0.1/"}, "url": "http://127.0.0.1/"}

    with pytest.raises(UnsupportedParameter) as refused:
        own_messages([{"role": "user", "content": [part]}])

    assert refused.value.param == "messages[0].content[0]"


def test_the_places_of_pictures_are_named_as_errors_name_them() -> None:
    messages = [{"role": "user", "content": "x"}, *shown(URL, URL)]

    assert places(messages) == ["messages[1].content[1].image_url", "messages[1].content[2].image_url"]


def test_a_server_of_vllm_gets_pictures_as_they_are() -> None:
    wanted = request("m", ChatPrompt(messages=shown(URL)))

    assert plan_of(wanted, "m", VLLM, context_length=None).body["messages"] == shown(URL)


@pytest.mark.parametrize("url", ["http://127.0.0.1/a.png", "file:///etc/passwd"])
def test_a_server_of_vllm_gets_nothing_to_fetch(url: str) -> None:
    with pytest.raises(RequestError) as refused:
        plan_of(request("m", ChatPrompt(messages=shown(url))), "m", VLLM, context_length=None)

    assert refused.value.param == "messages[0].content[1].image_url"


def test_conversations_about_different_pictures_are_different() -> None:
    """They go to different servers; the same one goes where its prefix is cached."""
    one, same, other = (
        conversation_key(request("m", ChatPrompt(messages=shown(data_url(png(200, 200, colour))))))
        for colour in (b"abc", b"abc", b"abd")
    )

    assert one == same != other
