"""What each kind of user sends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from loadtests.behaviour import MAX_PAUSE_S, Behaviour, NotServed
from loadtests.target import Target
from loadtests.workload import USERS, parse_workload
from tests.loadtests.scripted_server import Scripted, ScriptedServer, good_chunks, streamed, usage

WORKLOAD = """
question: does it?
seed: 1
duration_s: 10
arrival: {kind: closed, users: 1}
users:
  chat_stream: {weight: 1, pause_s: 0.5}
  chat: 1
  completion: 1
  completion_stream: 1
  conversation: {weight: 1, turns: 2}
  embedding: {weight: 1, inputs: 3, text_tokens: 4}
  models: 1
  abandon: {weight: 1, leave_after: 1}
  over_limit: 1
prompt: {tokens: 12, shared_prefix: 10}
output: {tokens: 2, exact: true}
request: {temperature: 0}
"""
Begin = Callable[..., tuple[Behaviour, ScriptedServer]]


def answer(method: str, path: str, body: Any) -> Scripted:
    if path == "/v1/models":
        return Scripted(body={"data": [{"id": "m"}]})
    if path == "/v1/embeddings":
        rows = [{"index": i, "embedding": [0.5]} for i in range(len(body["input"]))]
        return Scripted(body={"data": rows, "usage": {"prompt_tokens": 1, "total_tokens": 1}})
    is_chat = path == "/v1/chat/completions"
    if body.get("stream"):
        if is_chat:
            return streamed(*good_chunks())
        head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}
        choice = {"index": 0, "text": "Hello", "finish_reason": "length"}
        return streamed({**head, "choices": [choice]}, {**head, "choices": [], "usage": usage()})
    choice = {
        "finish_reason": "stop",
        **({"message": {"content": "Hello"}} if is_chat else {"text": "Hello"}),
    }
    completion = min(2, body["max_tokens"])
    kind = "chat.completion" if is_chat else "text_completion"
    return Scripted(
        body={"id": "c", "object": kind, "choices": [choice], "usage": usage(completion=completion)}
    )


@pytest.fixture
def begin() -> Iterator[Begin]:
    with ExitStack() as stack:

        def begin(
            kind: str, answer: Callable[[str, str, Any], Scripted] = answer, number: int = 0, **target: Any
        ) -> tuple[Behaviour, ScriptedServer]:
            server = stack.enter_context(ScriptedServer(answer).running())
            workload = parse_workload(WORKLOAD, name="w")
            mix = workload.user(kind)
            assert mix is not None
            chosen = {"model": "m", "embedding_model": "v", "token": "t", "over_limit_token": "o", **target}
            behaviour = Behaviour(mix, workload, Target(host=server.url, **chosen), number)
            stack.callback(behaviour.close)
            return behaviour, server

        yield begin


@pytest.mark.parametrize("kind", USERS)
def test_every_kind_gets_its_answer(begin: Begin, kind: str) -> None:
    behaviour, _ = begin(kind)

    record = behaviour.step()

    assert (record.user, record.outcome, record.error) == (
        kind,
        "abandoned" if kind == "abandon" else "ok",
        None,
    )


def test_completion_is_asked_for_as_the_workload_says(begin: Begin) -> None:
    behaviour, server = begin("chat_stream")

    behaviour.step()

    body = server.asked[0][3]
    prompt = body.pop("messages")[0]["content"]
    assert len(prompt.split()) == 12
    assert body == {
        "model": "m",
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 2,
    }


def test_all_prompts_share_their_beginning_and_nothing_else(begin: Begin) -> None:
    prompts = []
    for kind, number in (("chat_stream", 0), ("chat_stream", 1), ("chat", 0)):
        behaviour, server = begin(kind, number=number)
        behaviour.step()
        prompts.append(server.asked[0][3]["messages"][0]["content"].split())

    assert prompts[0][:10] == prompts[1][:10] == prompts[2][:10]
    assert len({tuple(prompt[10:]) for prompt in prompts}) == 3


def test_same_number_sends_the_same_again(begin: Begin) -> None:
    bodies = []
    for _ in range(2):
        behaviour, server = begin("completion", number=3)
        behaviour.step()
        behaviour.step()
        bodies.append([asked[3] for asked in server.asked])

    assert bodies[0] == bodies[1]
    assert bodies[0][0] != bodies[0][1]


def test_conversation_goes_on_and_then_begins_anew(begin: Begin) -> None:
    behaviour, server = begin("conversation")

    turns = [behaviour.step().turn for _ in range(3)]

    sent = [[message["role"] for message in asked[3]["messages"]] for asked in server.asked]
    assert turns == [1, 2, 1]
    assert sent == [["system", "user"], ["system", "user", "assistant", "user"], ["system", "user"]]
    assert server.asked[1][3]["messages"][2]["content"] == "Hello"


def test_refused_question_is_asked_again(begin: Begin) -> None:
    script = [Scripted(status=503, body={"detail": "x"}, headers={"Retry-After": "3"})]
    behaviour, server = begin("conversation", lambda *a: script.pop() if script else answer(*a))

    behaviour.step()
    assert behaviour.pause_s == 3.0
    behaviour.step()

    assert [len(asked[3]["messages"]) for asked in server.asked] == [2, 2]


def test_conversation_that_failed_begins_anew(begin: Begin) -> None:
    behaviour, server = begin("conversation", lambda *_: Scripted(status=500, body={"detail": "x"}))

    assert [behaviour.step().turn for _ in range(2)] == [1, 1]
    assert [len(asked[3]["messages"]) for asked in server.asked] == [2, 2]


def test_user_over_the_limit_waits_as_long_as_he_is_told(begin: Begin) -> None:
    refusal = Scripted(status=429, body={"detail": "x"}, headers={"Retry-After": "7"})
    behaviour, server = begin("over_limit", lambda *_: refusal)

    record = behaviour.step()

    assert (record.outcome, behaviour.pause_s) == ("refused", 7.0)
    assert server.asked[0][2]["Authorization"] == "Bearer o"


def test_patience_has_an_end(begin: Begin) -> None:
    refusal = Scripted(status=429, body={"detail": "x"}, headers={"Retry-After": "86400"})
    behaviour, _ = begin("over_limit", lambda *_: refusal)

    behaviour.step()

    assert behaviour.pause_s == MAX_PAUSE_S


def test_pause_is_the_workloads_after_an_answer(begin: Begin) -> None:
    behaviour, _ = begin("chat_stream")

    behaviour.step()

    assert behaviour.pause_s == 0.5


def test_vectors_are_asked_for_where_they_are_served_only(begin: Begin) -> None:
    behaviour, server = begin("embedding")
    behaviour.step()

    body = server.asked[0][3]
    assert body["model"] == "v"
    assert [len(text.split()) for text in body["input"]] == [4, 4, 4]
    with pytest.raises(NotServed):
        begin("embedding", embedding_model=None)


def test_whoever_asks_for_what_is_not_implemented_has_nothing_to_do(begin: Begin) -> None:
    behaviour, _ = begin(
        "completion", lambda *_: Scripted(status=501, body={"detail": "no completions here"})
    )

    with pytest.raises(NotServed, match="no completions here"):
        behaviour.step()
