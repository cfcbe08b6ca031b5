"""From whatever a call raised to an error of ours.

The order: the status that the provider's HTTP answered with, then the structured code in its body, then words in its
message. LiteLLM's own class decides only where there was no answer. A message never holds a key, and no address.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final

from backends.errors import (
    BackendTimeout,
    BackendUnavailable,
    ContextLengthExceeded,
    InvalidParameter,
    RequestError,
    ServiceError,
    UnsupportedParameter,
    UpstreamAuthFailed,
    UpstreamError,
    UpstreamQuotaExceeded,
    UpstreamRateLimited,
)
from backends.litellm.deployment import Deployment
from backends.litellm.transport import Connection
from models.errors import ModelError, UnknownModel

_log = logging.getLogger(__name__)

MAX_MESSAGE_CHARS: Final = 500
MAX_READ_CHARS: Final = 8192
"""Of a provider's words, those that are looked at. They may quote the prompt, whose author would choose how long the
patterns below take."""
MAX_RETRY_AFTER_S: Final = 3600.0

_PARAMETERS: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "seed",
    "stop",
    "max_tokens",
    "max_completion_tokens",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "reasoning_effort",
)
_CONTEXT_NUMBERS: Final = (
    # OpenAI, vLLM and those who copy their words; OpenRouter; Anthropic; Google
    re.compile(r"context length is (?P<limit>\d+) tokens\D+resulted in (?P<used>\d+) tokens"),
    re.compile(
        r"context length is (?P<limit>\d+) tokens.*?\((?P<used>\d+) (?:in the messages|of text input)"
    ),
    re.compile(r"context length is (?P<limit>\d+) tokens\D+requested (?:about )?(?P<used>\d+) tokens"),
    re.compile(r"prompt is too long: (?P<used>\d+) tokens > (?P<limit>\d+)"),
    re.compile(
        r"request \((?P<used>\d+) tokens\) exceeds the available context size \((?P<limit>\d+) tokens\)"
    ),
    re.compile(
        r"input token count \(?(?P<used>\d+)\)? exceeds the maximum number of tokens allowed \(?(?P<limit>\d+)"
    ),
)
_CONTEXT_WORDS: Final = re.compile(
    r"context[_ ](?:length|window)[_ ]exceeded|maximum context length|prompt is too long"
    r"|input token count .* exceeds|exceeds? the (?:model'?s |available )?context",
    re.IGNORECASE,
)
_ROOM_WORDS: Final = re.compile(r"`?max_tokens`? exceed context limit|max_tokens is too large", re.IGNORECASE)
_POLICY_CODES: Final = frozenset(
    {"content_policy_violation", "content_filter", "moderation_blocked", "responsible_ai_policy_violation"}
)
_QUOTA_CODES: Final = frozenset({"insufficient_quota", "billing_hard_limit_reached", "credits_exhausted"})
_UNSUPPORTED_CODES: Final = frozenset({"unsupported_value", "unsupported_parameter", "unknown_parameter"})
_STATUS_OF_CODE: Final[Mapping[str, int]] = {
    "authentication_error": 401,
    "invalid_api_key": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "api_error": 500,
    "server_error": 500,
    "overloaded_error": 529,
    "invalid_request_error": 400,
}
"""What an error inside a stream would have been before it: its status is a 200."""

_STATUS_OF_WORDS: Final = (
    (re.compile(r"\boverloaded\b", re.IGNORECASE), 529),
    (re.compile(r"\brate limit", re.IGNORECASE), 429),
)
"""LiteLLM drops the type of an error in Anthropic's streams; its message is all there is."""


@dataclass(frozen=True, slots=True)
class _Said:
    """A provider's own words about an error."""

    message: str = ""
    code: str = ""
    type: str = ""
    param: str | None = None
    status: int | None = None
    """A status inside the body: OpenRouter's numeric code."""


class Translator:
    """Knows the secrets that no message may show."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = tuple(secrets)

    def translate(
        self, exc: BaseException, deployment: Deployment, connection: Connection, *, model: str
    ) -> ServiceError | ModelError:
        """The error to be raised `from None`: what the call raised quotes prompts and addresses.

        `model`: the name the caller knows it by.
        """
        if isinstance(exc, ServiceError | ModelError):
            return exc
        if isinstance(exc, TimeoutError):
            return BackendTimeout(f"The provider {deployment.provider!r} did not answer in time")
        if connection.exceeded is not None:
            return UpstreamError(f"The provider {deployment.provider!r} sent {connection.exceeded}")
        watch = connection.watch
        said = (_of_body({"error": watch.error}) if watch is not None else None) or _said(exc)
        kinds = " < ".join(dict.fromkeys(type(link).__name__ for link in _chain(exc)))
        _log.info("a call to %s failed: status %s, %s", deployment.label, connection.status, kinds)
        _log.debug("it said: %s", self.clean(said.message))
        status = _status(exc, said, connection)
        if status is None:
            return self._without_answer(exc, said, deployment, connection)
        wait_s = _retry_after(exc, connection)
        return self._of_status(status, said, deployment, model, wait_s)

    def _of_status(
        self, status: int, said: _Said, deployment: Deployment, model: str, wait_s: float | None
    ) -> ServiceError | ModelError:
        provider = deployment.provider
        words = self.clean(said.message)
        codes = {said.code, said.type}
        if codes & _POLICY_CODES:
            return RequestError(f"The provider {provider!r} refused the content: {words}")
        if codes & _QUOTA_CODES or status == 402:
            return UpstreamQuotaExceeded(f"The account at the provider {provider!r} has no quota left")
        if status in (401, 403):
            if status == 403 and re.search(r"moderation|flagged", words, re.IGNORECASE):
                return RequestError(f"The provider {provider!r} refused the content: {words}")
            return UpstreamAuthFailed(f"The provider {provider!r} refused this server's key")
        if status == 404:
            return self._not_found(said, provider, model)
        if status == 429:
            return UpstreamRateLimited(
                f"The provider {provider!r} takes no more requests for now", retry_after_s=wait_s
            )
        if status in (408, 504):
            return BackendTimeout(f"The provider {provider!r} did not answer in time")
        if status in (503, 529):
            state = "not available" if status == 503 else "overloaded"
            message = f"The provider {provider!r} is {state}"
            return BackendUnavailable(message, retry_after_s=wait_s)
        if 400 <= status < 500:
            return self._of_request(said, deployment, words)
        return UpstreamError(f"The provider {provider!r} answered with an error of its own ({status})")

    def _of_request(self, said: _Said, deployment: Deployment, words: str) -> ServiceError:
        provider = deployment.provider
        if _ROOM_WORDS.search(said.message):
            return InvalidParameter(
                f"The provider {provider!r} refused the request: {words}", param="max_tokens"
            )
        if said.code == "context_length_exceeded" or _CONTEXT_WORDS.search(said.message):
            return _too_long(said.message, deployment)
        param = said.param or _named(said.message)
        sentence = f"The provider {provider!r} refused the request: {words or 'no reason given'}"
        if said.code in _UNSUPPORTED_CODES or (param is not None and _top(param) in _PARAMETERS):
            return UnsupportedParameter(sentence, param=_top(param) if param else None)
        return RequestError(sentence, param=param)

    def _not_found(self, said: _Said, provider: str, model: str) -> ServiceError | ModelError:
        if said.code or said.type or "model" in said.message.lower():
            return UnknownModel(model)
        return UpstreamError(f"The provider {provider!r} has no such address (404)")

    def _without_answer(
        self, exc: BaseException, said: _Said, deployment: Deployment, connection: Connection
    ) -> ServiceError | ModelError:
        provider = deployment.provider
        names = {cls.__name__ for link in _chain(exc) for cls in type(link).__mro__}
        if "UnsupportedParamsError" in names:
            param = _named(said.message)
            words = self.clean(said.message.partition(" To drop")[0])
            return UnsupportedParameter(f"The model does not support this: {words}", param=param)
        if names & {"Timeout", "APITimeoutError", "TimeoutException"}:
            return BackendTimeout(f"The provider {provider!r} did not answer in time")
        if connection.response is not None:
            return UpstreamError(f"The provider {provider!r} broke off, or its answer makes no sense")
        if names & {"AuthenticationError"} or re.search(r"api[_ ]?key", said.message, re.IGNORECASE):
            return UpstreamAuthFailed(f"This server has no key for the provider {provider!r}")
        if names & {"APIConnectionError", "ClientError", "TransportError", "ConnectionError"}:
            return BackendUnavailable(f"The provider {provider!r} cannot be reached")
        if names & {"BadRequestError"}:
            return self._of_request(said, deployment, self.clean(said.message))
        return UpstreamError(f"The call to the provider {provider!r} failed")

    def clean(self, text: str) -> str:
        """One line of at most 500 characters, without keys, addresses and LiteLLM's class names."""
        for secret in self._secrets:
            text = text.replace(secret, "…")
        text = re.sub(r"https?://\S+", "…", text)
        text = re.sub(r"\b(?:sk|pk|rk|key|xai|gsk)-[\w*-]{4,}|\bBearer\s+\S+|\bAIza[\w-]{8,}", "…", text)
        text = re.sub(r"\b(?:litellm\.)?\w+(?:Error|Exception)(?::| -) ", "", text)
        return " ".join(text.split())[:MAX_MESSAGE_CHARS]


def _chain(exc: BaseException) -> Iterator[BaseException]:
    """The exception, what it says it wraps, and what it was raised from, outermost first."""
    seen: set[int] = set()
    todo: list[BaseException] = [exc]
    while todo:
        link = todo.pop(0)
        if id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        for inner in (getattr(link, "original_exception", None), link.__cause__, link.__context__):
            if isinstance(inner, BaseException):
                todo.append(inner)


def _said(exc: BaseException) -> _Said:
    message = ""
    for link in _chain(exc):
        text = str(getattr(link, "message", "") or link)
        message = message or text[:MAX_READ_CHARS]
        for body in (getattr(link, "body", None), _json_in(text)):
            if isinstance(body, Mapping) and (found := _of_body(body)) is not None:
                return found
    return _Said(message=message)


def _of_body(body: Mapping[str, Any]) -> _Said | None:
    inner = body.get("error", body)
    if isinstance(inner, str):
        return _Said(message=inner[:MAX_READ_CHARS])
    if not isinstance(inner, Mapping) or not isinstance(inner.get("message"), str):
        return None
    code = inner.get("code")
    return _Said(
        message=inner["message"][:MAX_READ_CHARS],
        code=code if isinstance(code, str) else "",
        type=inner["type"] if isinstance(inner.get("type"), str) else "",
        param=inner["param"] if isinstance(inner.get("param"), str) else None,
        status=code if isinstance(code, int) and 400 <= code < 600 else None,
    )


def _json_in(text: str) -> object:
    start = text.find("{")
    if start < 0:
        return None
    try:
        return json.JSONDecoder().raw_decode(text[start:])[0]
    except (ValueError, RecursionError):
        return None


def _status(exc: BaseException, said: _Said, connection: Connection) -> int | None:
    """None where nothing came back that says what is wrong."""
    if connection.status is not None and connection.status >= 400:
        return connection.status
    if said.status is not None:
        return said.status
    for code in (said.code, said.type):
        if code in _STATUS_OF_CODE:
            return _STATUS_OF_CODE[code]
    if connection.response is not None:
        return next((status for words, status in _STATUS_OF_WORDS if words.search(said.message)), None)
    # Roads that do not go through our pool. A 500 there may be LiteLLM's own invention.
    status = getattr(exc, "status_code", None)
    if isinstance(status, int) and status >= 400 and status != 500 and _was_answered(exc):
        return status
    return None


def _was_answered(exc: BaseException) -> bool:
    return any(getattr(getattr(link, "response", None), "headers", None) for link in _chain(exc))


def _retry_after(exc: BaseException, connection: Connection) -> float | None:
    """Seconds, from the provider's own header; None where it gave none that makes sense."""
    value = connection.header("retry-after-ms")
    if value is not None and _number(value) is not None:
        return _bounded(float(value) / 1000)
    value = connection.header("retry-after")
    if value is None:
        for link in _chain(exc):
            headers = getattr(getattr(link, "response", None), "headers", None)
            value = headers.get("retry-after") if headers is not None else None
            if value is not None:
                break
    if value is None:
        return None
    number = _number(value)
    if number is not None:
        return _bounded(number)
    try:
        moment = parsedate_to_datetime(value)
        from datetime import UTC, datetime

        return _bounded((moment - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if number == number else None  # noqa: PLR0124 - NaN is not itself


def _bounded(seconds: float) -> float:
    return min(max(0.0, seconds), MAX_RETRY_AFTER_S)


def _too_long(message: str, deployment: Deployment) -> ContextLengthExceeded:
    plain = message.replace(",", "")
    for pattern in _CONTEXT_NUMBERS:
        found = pattern.search(plain)
        if found is not None:
            return ContextLengthExceeded(prompt_tokens=int(found["used"]), context_length=int(found["limit"]))
    limit = deployment.context_length or 0
    return ContextLengthExceeded(prompt_tokens=limit + 1, context_length=limit)


def _named(message: str) -> str | None:
    """The first of our parameters that the message names."""
    found = [(at.start(), name) for name in _PARAMETERS if (at := re.search(rf"\b{name}\b", message))]
    return min(found)[1] if found else None


def _top(param: str) -> str:
    """`messages[0].content` and `messages.0.content` are about `messages`."""
    return re.split(r"[.\[]", param, maxsplit=1)[0]
