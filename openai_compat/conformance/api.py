"""The few calls that the checks make again and again, and what every refusal must look like."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from openai_compat.conformance.check import NotOffered
from openai_compat.conformance.event_stream import StreamedAnswer, read_stream
from openai_compat.conformance.raw_http import RawConnection

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
REFUSED = (400, 422)
MAY_REFUSE = (*REFUSED, 501)

T = TypeVar("T")


def user(content: Any) -> dict[str, Any]:
    """One user message."""
    return {"role": "user", "content": content}


def encode(body: Any) -> bytes:
    """JSON in ASCII, so that lone surrogates travel as escapes; NaN and Infinity as Python writes them."""
    return json.dumps(body, ensure_ascii=True).encode("ascii")


@dataclass
class Api:
    """One server under test. `token` goes with every request unless the request brings its own headers."""

    base_url: str
    model: str
    token: str | None = None
    http: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.http = httpx.Client(base_url=self.base_url, timeout=120, trust_env=False, headers=self.auth)

    @property
    def auth(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def connect(self, timeout_s: float = 30) -> RawConnection:
        """A socket to the server, for what a client library would not send."""
        parts = urlsplit(self.base_url)
        is_tls = parts.scheme == "https"
        return RawConnection(
            (parts.hostname or "127.0.0.1", parts.port or (443 if is_tls else 80)),
            host=parts.netloc.rpartition("@")[2],
            prefix=parts.path.rstrip("/"),
            is_tls=is_tls,
            timeout_s=timeout_s,
        )

    def chat_body(self, content: Any = "Write a long story about the sea.", **fields: Any) -> dict[str, Any]:
        """A greedy chat of at most 8 tokens; `fields` replace and add."""
        messages = [user(content)]
        return {"model": self.model, "messages": messages, "max_tokens": 8, "temperature": 0} | fields

    def completion_body(self, prompt: Any = "The sea is", **fields: Any) -> dict[str, Any]:
        """A greedy completion of at most 8 tokens; `fields` replace and add."""
        return {"model": self.model, "prompt": prompt, "max_tokens": 8, "temperature": 0} | fields

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        """POST `body` (bytes as they are, everything else as JSON)."""
        content = body if isinstance(body, bytes) else encode(body)
        headers = {"Content-Type": "application/json"} | dict(options.pop("headers", {}))
        return self.http.post(path, content=content, headers=headers, **options)

    def chat(self, content: Any = "Write a long story about the sea.", **fields: Any) -> httpx.Response:
        return self.post(CHAT, self.chat_body(content, **fields))

    def complete(self, prompt: Any = "The sea is", **fields: Any) -> httpx.Response:
        return self.post(COMPLETIONS, self.completion_body(prompt, **fields))

    def answer(self, content: Any = "Write a long story about the sea.", **fields: Any) -> dict[str, Any]:
        """The body of a chat that must succeed."""
        return ok(self.chat(content, **fields))

    def completion(self, prompt: Any = "The sea is", **fields: Any) -> dict[str, Any]:
        """The body of a completion that must succeed. Raises: NotOffered, where no model completes text."""
        return ok(_offered(self.complete(prompt, **fields)))

    def text(self, content: Any = "Write a long story about the sea.", **fields: Any) -> str:
        """The text of a chat that must succeed."""
        text = self.answer(content, **fields)["choices"][0]["message"]["content"]
        assert isinstance(text, str)
        return text

    def stream(self, path: str, body: Mapping[str, Any], **options: Any) -> StreamedAnswer:
        """The whole event stream of a request; one that is answered otherwise fails the test."""
        headers = {"Content-Type": "application/json"} | dict(options.pop("headers", {}))
        content = encode({**body, "stream": True})
        with self.http.stream("POST", path, content=content, headers=headers, **options) as response:
            _offered(response)
            return read_stream(response.status_code, response.headers, response.iter_raw())

    def stream_chat(
        self, content: Any = "Write a long story about the sea.", **fields: Any
    ) -> StreamedAnswer:
        return self.stream(CHAT, self.chat_body(content, **fields))

    def prompt_tokens(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """How many tokens these messages become, the template included."""
        tokens = self.answer(messages=list(messages), max_tokens=1)["usage"]["prompt_tokens"]
        assert isinstance(tokens, int)
        return tokens

    def models(self) -> list[dict[str, Any]]:
        data = ok(self.http.get("/v1/models"))["data"]
        assert isinstance(data, list)
        return data

    def entry(self) -> dict[str, Any]:
        """The list's entry of the model under test."""
        return next(entry for entry in self.models() if entry["id"] == self.model)

    @cached_property
    def unending(self) -> dict[str, Any]:
        """The field that keeps an answer from ending by itself, where the server takes it: OpenAI's API has none."""
        return {"ignore_eos": True} if self.chat(max_tokens=1, ignore_eos=True).status_code == 200 else {}

    def assert_alive(self) -> None:
        """The server still answers a plain chat."""
        assert self.answer(max_tokens=1)["choices"]


def ok(response: httpx.Response) -> dict[str, Any]:
    """The JSON object of a 200."""
    assert response.status_code == 200, f"{response.status_code}: {response.text[:500]}"
    body = json.loads(response.content, parse_constant=not_json)
    assert isinstance(body, dict)
    return body


def offered(response: httpx.Response) -> dict[str, Any]:
    """The body of a 200, for what OpenAI's API lets a server leave out. Raises: NotOffered for a refusal that a client
    can read."""
    if response.status_code in MAY_REFUSE:
        raise NotOffered(f"{response.status_code} {error_of(response, MAY_REFUSE).get('message')}")
    return ok(response)


def _offered(response: httpx.Response) -> httpx.Response:
    if response.status_code == httpx.codes.NOT_IMPLEMENTED:
        response.read()
        raise NotOffered(f"501 {error_of(response, (501,)).get('message')}")
    return response


def not_json(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def error_of(response: httpx.Response, statuses: Collection[int] = REFUSED) -> dict[str, Any]:
    """The `error` object of a refusal, or the body where there is none. Only the status and that it is JSON are looked
    at: what the object has to hold is a behaviour of its own (`error_object`)."""
    assert response.status_code in statuses, f"{response.status_code}: {response.text[:500]}"
    kind = response.headers.get("content-type", "")
    assert kind.startswith("application/json"), f"{response.status_code} of type {kind!r}"
    body = json.loads(response.content.decode("utf-8"), parse_constant=not_json)
    assert isinstance(body, dict), body
    error = body.get("error")
    return error if isinstance(error, dict) else body


def error_object(response: httpx.Response, statuses: Collection[int] = REFUSED) -> dict[str, Any]:
    """The `error` object of a refusal, with everything that OpenAI's clients read."""
    error = error_of(response, statuses)
    assert isinstance(response.json().get("error"), dict), response.text[:500]
    for name, kinds in (
        ("message", str),
        ("type", str),
        ("code", str | None),
        ("param", str | None),
    ):
        assert isinstance(error.get(name), kinds), f"error.{name} is {error.get(name)!r}"
    assert error["message"], error
    return error


def contract_error(
    response: httpx.Response, status: int, kind: str, code: str | None, param: str | None = None
) -> dict[str, Any]:
    """The `error` object of a refusal in the contract's own form, `detail` beside it."""
    error = error_object(response, (status,))
    assert (error["type"], error["code"]) == (kind, code), error
    if param is not None:
        assert error["param"] == param, error
    detail = response.json()["detail"]
    if status == 401:
        assert set(detail) == {"error", "message"}, detail
    elif status == 422 and isinstance(detail, list):
        assert all({"type", "loc", "msg", "input"} <= set(entry) for entry in detail), detail
    else:
        assert detail == error["message"], response.text
    return error


def side_by_side(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Run every call in a thread of its own and give the results in order."""
    with ThreadPoolExecutor(max_workers=len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]
