"""Clients that leave, answers side by side, and models that come and go."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from openai_compat.conformance.api import CHAT, Api, contract_error, encode, ok, side_by_side
from openai_compat.conformance.check import NotOffered, extension, openai_api, within

LONG = "Count from one to a thousand."


def leave(api: Api, number: int, *, stream: bool, after_bytes: int) -> None:
    """Start that many long answers and close every connection, after its first bytes or while it waits."""
    body = encode(api.chat_body(LONG, max_tokens=1000, stream=stream, **api.unending))
    headers = api.auth | {"Content-Type": "application/json", "Content-Length": str(len(body))}
    connections = [api.connect() for _ in range(number)]
    for connection in connections:
        connection.send(connection.head("POST", CHAT, headers) + body)
    if after_bytes:
        for connection in connections:
            assert connection.file.read(after_bytes).startswith(b"HTTP/1.1 200")
    else:
        time.sleep(0.5)
    for connection in connections:
        connection.close()


def assert_full_capacity_soon(api: Api) -> None:
    """As many completions as the default limit are answered within a second of the leaving."""
    time.sleep(1)
    answers = side_by_side([lambda: api.chat(max_tokens=2)] * 10)

    assert [answer.status_code for answer in answers] == [200] * 10


@openai_api
@within(120)
def life_disconnect_streaming__six_that_leave_mid_stream_free_their_slots(service: Api) -> None:
    for _ in range(2):
        leave(service, 6, stream=True, after_bytes=900)
        time.sleep(1)

    assert_full_capacity_soon(service)


@openai_api
@within(120)
def life_disconnect_not_streaming__six_that_leave_while_waiting_free_their_slots(service: Api) -> None:
    leave(service, 6, stream=False, after_bytes=0)

    assert_full_capacity_soon(service)


@openai_api
@within(120)
def life_streams_side_by_side__four_streams_and_four_plain_answers_are_complete(service: Api) -> None:
    def streamed() -> tuple[str, bool]:
        answer = service.stream_chat(LONG, max_tokens=16)
        assert answer.of(0)[0]["delta"]["role"] == "assistant"
        assert len(answer.finish_reasons()) == 1
        return answer.text(), answer.done

    def plain() -> tuple[str, bool]:
        choice = service.answer(LONG, max_tokens=16)["choices"][0]
        return choice["message"]["content"], bool(choice["finish_reason"])

    answers = side_by_side([streamed, plain] * 4)

    assert all(text and complete for text, complete in answers)


def change(api: Api, action: str, **fields: Any) -> Any:
    body = {"model": api.model, "backend": api.entry()["backend"]} | fields
    if body["backend"] == "litellm":
        raise NotOffered("there is nothing to load")
    return api.post(f"/v1/models/{action}", body)


@contextmanager
def loaded_again(api: Api) -> Iterator[None]:
    """The model is loaded when the block begins and when it is over."""
    ok(change(api, "load"))
    try:
        yield
    finally:
        ok(change(api, "load"))


@extension
@within(120)
def life_unload_then_autoload__an_unloaded_model_comes_back_with_the_next_chat(service: Api) -> None:
    backend = service.entry()["backend"]
    with loaded_again(service):
        first = ok(change(service, "unload"))
        shown = service.entry()["loaded"]
        ready = service.http.get("/ready").status_code
        second = ok(change(service, "unload"))
        answer = service.text()

    assert {"success": True, "model": service.model, "backend": backend}.items() <= first.items()
    assert first["message"]
    assert (shown, ready, second["success"]) == (False, 200, True)
    assert answer
    assert service.entry()["loaded"] is True


@extension
def life_unload_unknown__it_is_404_and_the_loaded_model_stays(service: Api) -> None:
    names = ("nobody/has-this-model", "../../etc/passwd", "/etc/passwd", "http://127.0.0.1:1/model.gguf")
    with loaded_again(service):
        for action in ("unload", "load"):
            for name in names:
                refused = change(service, action, model=name)
                contract_error(refused, 404, "invalid_request_error", "model_not_found")

    assert service.entry()["loaded"] is True
