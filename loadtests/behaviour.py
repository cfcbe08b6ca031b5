"""How each kind of user goes about it: one request at a time, each as a Record."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from loadtests.completion_check import check_embeddings, check_model_list
from loadtests.connection import Connection
from loadtests.exchange import Ask, Exchange, stream, whole
from loadtests.record import Record
from loadtests.target import Target
from loadtests.texts import shared_prefix, words
from loadtests.workload import UserMix, Workload

MAX_PAUSE_S = 60.0
"""Longest obedience to a Retry-After: a load test has an end."""


class NotServed(Exception):
    """The service does not offer what this user asks for; he has nothing to do."""


class Behaviour:
    """One user. `number` makes his texts his own: the same number and workload give the same requests.

    Keeps one connection. Not to be stepped twice at once. `on_piece` is called with each piece of a stream.
    """

    def __init__(
        self,
        mix: UserMix,
        workload: Workload,
        target: Target,
        number: int,
        on_piece: Callable[[], None] = lambda: None,
    ) -> None:
        self.kind = mix.kind
        self.pause_s = 0.0
        """What to wait before the next step, in a closed loop."""
        self._mix = mix
        self._workload = workload
        self._target = target
        self._on_piece = on_piece
        self._random = Random(f"{workload.seed} {mix.kind} {number}")
        self._prefix = shared_prefix(workload.seed, workload.shared_prefix)
        self._connection = Connection(target.host, timeout_s=workload.timeout_s)
        self._messages: list[dict[str, str]] = []
        self._turns_left = 0
        self._turn = 1
        if mix.kind == "embedding" and target.embedding_model is None:
            raise NotServed("no model with the capability embeddings is listed")

    def step(self) -> Record:
        """Send one request and see it through.

        Raises: NotServed once the service has said that it never will.
        """
        record = _STEPS[self.kind](self)
        if record.status == 501:
            raise NotServed(record.detail or "501")
        self.pause_s = self._mix.pause_s.draw(self._random)
        if record.retry_after is not None:
            self.pause_s = min(MAX_PAUSE_S, record.retry_after)
        return record

    def close(self) -> None:
        self._connection.close()

    def _chat_stream(self) -> Record:
        return self._stream(
            self._chat_ask([{"role": "user", "content": self._prompt()}], is_streamed=True)
        ).record

    def _chat(self) -> Record:
        ask = self._chat_ask([{"role": "user", "content": self._prompt()}], is_streamed=False)
        return whole(self._connection, self.kind, ask, self._target.headers()).record

    def _completion(self) -> Record:
        ask = self._ask("/v1/completions", {"prompt": self._prompt()}, is_streamed=False)
        return whole(self._connection, self.kind, ask, self._target.headers()).record

    def _completion_stream(self) -> Record:
        return self._stream(self._ask("/v1/completions", {"prompt": self._prompt()}, is_streamed=True)).record

    def _conversation(self) -> Record:
        if self._turns_left == 0:
            self._begin_conversation()
        question = words(self._own_words(), self._random)
        self._messages.append({"role": "user", "content": question})
        exchange = self._stream(self._chat_ask(self._messages, is_streamed=True))
        exchange.record.turn = self._turn
        if exchange.record.outcome == "refused":
            self._messages.pop()  # he asks again later
        elif exchange.record.outcome == "failed" or not exchange.said:
            self._turns_left = 0
        else:
            self._messages.append({"role": "assistant", "content": exchange.said})
            self._turns_left -= 1
            self._turn += 1
        return exchange.record

    def _begin_conversation(self) -> None:
        system = [{"role": "system", "content": self._prefix}] if self._prefix else []
        self._messages, self._turn = system, 1
        self._turns_left = self._mix.turns.draw_int(self._random)

    def _embedding(self) -> Record:
        count = self._mix.inputs.draw_int(self._random)
        inputs = [words(self._mix.text_tokens.draw_int(self._random), self._random) for _ in range(count)]
        ask = Ask(path="/v1/embeddings", body={"model": self._target.embedding_model, "input": inputs})
        return whole(
            self._connection,
            self.kind,
            ask,
            self._target.headers(),
            lambda body: check_embeddings(body, count=count),
        ).record

    def _models(self) -> Record:
        def check(body: Any) -> None:
            check_model_list(body)

        return whole(
            self._connection, self.kind, Ask(path="/v1/models"), self._target.headers(), check
        ).record

    def _abandon(self) -> Record:
        leave_after = self._mix.leave_after.draw_int(self._random)
        messages = [{"role": "user", "content": self._prompt()}]
        return self._stream(self._chat_ask(messages, is_streamed=True, leave_after=leave_after)).record

    def _over_limit(self) -> Record:
        ask = self._ask(
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": words(3, self._random)}]},
            is_streamed=False,
            max_tokens=1,
        )
        return whole(self._connection, self.kind, ask, self._target.headers(is_over_limit=True)).record

    def _prompt(self) -> str:
        text = words(self._own_words(), self._random)
        return f"{self._prefix} {text}" if self._prefix else text

    def _own_words(self) -> int:
        """What a prompt has beside the shared beginning."""
        return max(1, self._workload.prompt.draw_int(self._random) - self._workload.shared_prefix)

    def _chat_ask(
        self, messages: list[dict[str, str]], *, is_streamed: bool, leave_after: int | None = None
    ) -> Ask:
        body = {"messages": messages}
        return self._ask("/v1/chat/completions", body, is_streamed=is_streamed, leave_after=leave_after)

    def _ask(
        self,
        path: str,
        body: dict[str, Any],
        *,
        is_streamed: bool,
        leave_after: int | None = None,
        max_tokens: int | None = None,
    ) -> Ask:
        max_tokens = max_tokens or self._workload.output.draw_int(self._random)
        body = {
            "model": self._target.model,
            **self._workload.request,
            **({"ignore_eos": True} if self._workload.is_exact else {}),
            **({"stream": True, "stream_options": {"include_usage": True}} if is_streamed else {}),
            **body,
            "max_tokens": max_tokens,
        }
        return Ask(
            path=path,
            body=body,
            max_tokens=max_tokens,
            is_chat="messages" in body,
            leave_after=leave_after,
        )

    def _stream(self, ask: Ask) -> Exchange:
        return stream(self._connection, self.kind, ask, self._target.headers(), self._on_piece)


_STEPS: dict[str, Callable[[Behaviour], Record]] = {
    "chat_stream": Behaviour._chat_stream,
    "chat": Behaviour._chat,
    "completion": Behaviour._completion,
    "completion_stream": Behaviour._completion_stream,
    "conversation": Behaviour._conversation,
    "embedding": Behaviour._embedding,
    "models": Behaviour._models,
    "abandon": Behaviour._abandon,
    "over_limit": Behaviour._over_limit,
}
