"""What a server's refusal means: first by its status, then by its structured code, last by its words.

Nothing of it reaches a caller unchecked: messages are cut, cleaned and relieved of our key, numbers are only taken from
sentences that are known, and a status is never taken from a body.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from backends.errors import (
    BackendTimeout,
    BackendUnavailable,
    ContextLengthExceeded,
    InvalidGrammar,
    InvalidParameter,
    NotSupported,
    ServiceError,
    TemplateRefused,
    UnsupportedParameter,
    UpstreamAuthFailed,
    UpstreamError,
    UpstreamQuotaExceeded,
    UpstreamRateLimited,
)
from models.errors import ModelError, UnknownModel

MAX_MESSAGE_CHARS: Final = 500
MAX_RETRY_AFTER_S: Final = 3600.0

ELSEWHERE: Final = frozenset({502, 503, 529})
"""Statuses after which another server may do better with the same request."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal as the server put it, in no particular one of its forms."""

    status: int
    message: str
    code: str
    param: str | None
    retry_after_s: float | None = None
    prompt_tokens: int | None = None
    """Of a prompt that is too long, where the server says so."""
    context_length: int | None = None
    is_exact: bool = True
    """vLLM stops counting once a prompt is too long: "at least" so many."""
    is_too_long: bool = False
    """The prompt, or the prompt with the answer's limit, does not fit."""

    @property
    def mentions_model(self) -> bool:
        return (
            self.code == "model_not_found"
            or self.param == "model"
            or bool(_NO_MODEL.search(self.message))
            or self.code == "NotFoundError"
        )


_NO_MODEL = re.compile(
    r"\bmodel\b.*(not exist|not found|not available|not loaded|unknown)|unknown model", re.I
)
_TEMPLATE = re.compile(
    r"jinja|chat.?template|templat(e|ing) error|roles must alternate|conversation roles", re.I
)
_GRAMMAR = re.compile(r"grammar|schema|regex|structured.?output|guided|xgrammar|outlines|ebnf", re.I)
_VOCABULARY = re.compile(r"vocab|token.?ids?\b", re.I)
_UNSUPPORTED = re.compile(
    r"not (currently |yet )?support|only supported (for|with|by)|unsupport|unrecogni[sz]ed"
    r"|not permitted|extra_forbidden|unknown (field|parameter|argument|name)|unexpected keyword|not allowed"
    r"|not implemented",
    re.I,
)
_NO_TOOLS = re.compile(r"tool.?choice.*requires --", re.I)
"""vLLM that was started without a parser of tool calls."""
_NO_SIGHT = re.compile(
    r"not a multi-?modal model|\b(images?|multi-?modal)\b.{0,40}\bnot (supported|possible)"
    r"|\bnot support\b.{0,40}\b(images?|multi-?modal)",
    re.I,
)
_PICTURE = re.compile(r"\bimages?\b", re.I)
_GRAMMAR_PARAMS: Final = ("response_format", "structured_outputs", "grammar")
_PARAM: Final = re.compile(r"[A-Za-z_][\w.\[\]-]{0,99}")

# (prompt tokens, context length), by the name of the group. Each is anchored in a whole sentence of one server.
_N = r"(?P<prompt>\d{1,12})"
_C = r"(?P<context>\d{1,12})"
_TOO_LONG: Final = tuple(
    re.compile(pattern, re.I | re.S)
    for pattern in (
        # vLLM, by age: "contains … input tokens", "has … input tokens", "(… in the messages, … in the completion)"
        rf"maximum context length is {_C} tokens.*?contains (?P<least>at least )?{_N} input tokens",
        rf"maximum context length is {_C} tokens.*?request has {_N} input tokens",
        rf"maximum context length is {_C} tokens.*?\({_N} in the (?:messages|prompt)",
        rf"passed (?P<least>at least )?{_N} input tokens.*?context length is only {_C} tokens",
        rf"prompt \(length {_N}\) is longer than the maximum model length of {_C}",
        # vLLM of a prompt with pictures
        rf"input length \({_N}\) exceeds model's maximum context length \({_C}\)",
        # OpenAI
        rf"maximum context length is {_C} tokens.*?resulted in {_N} tokens",
        # llama-server
        rf"request \({_N} tokens\) exceeds the available context size \({_C} tokens\)",
        # SGLang
        rf"input \({_N} tokens\) is longer than the model's context length \({_C} tokens\)",
        rf"maximum context length of {_C} tokens.*?: {_N} tokens from the input",
        # TGI
        rf"must be <= {_C}\. Given: {_N} `?inputs",
        # Anthropic's wording, which proxies pass on
        rf"prompt is too long: {_N} tokens > {_C} maximum",
        # A prompt that fits with no room for one token, or whose size was not looked at
        rf"maximum context length is {_C} tokens",
        rf"max_(?:completion_)?tokens=\d+ cannot be greater than max_model_len=\s*{_C}",
        r"max_tokens must be at least 1, got (?:0|-\d+)\b",
        r"exceeds? (?:the )?(?:available |maximum )?context (?:size|length|window)",
    )
)
_TOO_LONG_CODES: Final = frozenset(
    {"context_length_exceeded", "exceed_context_size_error", "context_window_exceeded"}
)


def read_refusal(
    status: int, body: bytes, headers: Mapping[bytes, bytes], *, secret: str | None = None
) -> Refusal:
    """What an answer that is not a success says. `secret`: our key, which the text may quote."""
    said = _decoded(body)
    message, code, param = "", "", None
    if isinstance(said, dict):
        error = said.get("error", said)
        inner = error if isinstance(error, dict) else {}
        message = _text(inner.get("message")) or _text(error) or _details(said) or _text(inner.get("detail"))
        code = _text(inner.get("code")) or _text(inner.get("type"))
        if code == "BadRequestError" or not code.strip():
            code = ""
        param = _param(inner.get("param")) or _location(said)
        numbers = (
            inner.get("n_prompt_tokens", inner.get("prompt_tokens")),
            inner.get("n_ctx", inner.get("context_length")),
        )
        if isinstance(inner.get("type"), str) and inner["type"] in _TOO_LONG_CODES:
            code = inner["type"]
    else:
        numbers = None, None
        if body.lstrip()[:1] != b"<":  # a web page
            message = _text(body[:4096].decode("utf-8", "replace"))
    prompt_tokens, context_length, is_exact, is_too_long = _sizes(message)
    if code in _TOO_LONG_CODES:
        is_too_long = True
        if all(type(number) is int and number > 0 for number in numbers):
            prompt_tokens, context_length, is_exact = *numbers, True
    return Refusal(
        status,
        _clean(message, secret),
        code,
        param,
        _retry_after(headers),
        prompt_tokens,
        context_length,
        is_exact,
        is_too_long and status not in (401, 403, 404, 429),
    )


def status_inside(payload: bytes) -> int:
    """The status that an error inside a success stands for: its code where that is one, else 500."""
    said = _decoded(payload)
    error = said.get("error", said) if isinstance(said, dict) else None
    for outer in (error, said):
        code = outer.get("code") if isinstance(outer, dict) else None
        number = int(code) if isinstance(code, str) and code.isdecimal() and len(code) == 3 else code
        if type(number) is int and 400 <= number <= 599:
            return number
    code = error.get("code") or error.get("type") if isinstance(error, dict) else None
    return 400 if code in _TOO_LONG_CODES or code in ("invalid_request_error", "BadRequestError") else 500


def error_of(
    refusal: Refusal, *, model: str, has_chat: bool, pictures: Sequence[str] = ()
) -> ServiceError | ModelError:
    """Our error for a refusal. `model`: the name our caller used; `has_chat`: the request was a conversation;
    `pictures`: the places of those in it.

    A prompt that is too long is ContextLengthExceeded with the numbers the refusal holds, 0 for one it does not.
    """
    status = refusal.status
    if refusal.is_too_long and status < 501:
        return too_long(refusal, has_chat=has_chat)
    if status in (401, 403):
        return UpstreamAuthFailed("The server refused the key that this service shows it")
    if status == 404:
        if refusal.mentions_model:
            return UnknownModel(model)
        return NotSupported("The server has no such operation")
    if status in (405, 501):
        return NotSupported(_sentence("The server cannot do this", refusal))
    if status in (408, 504):
        return BackendTimeout("The server did not answer in time")
    if status == 429 and refusal.code == "insufficient_quota":
        return UpstreamQuotaExceeded("The account at the server has no quota left")
    if status == 429:
        return UpstreamRateLimited(
            "The server takes no more requests for now", retry_after_s=refusal.retry_after_s
        )
    if status in (503, 529):
        return BackendUnavailable(
            _sentence("The server is not available", refusal), retry_after_s=refusal.retry_after_s
        )
    if status == 413:
        return InvalidParameter("The request is larger than the server takes")
    if status in (400, 422):
        return (_of_pictures(refusal, pictures) if pictures else None) or _of_bad_request(refusal, model)
    return UpstreamError(_sentence(f"The server failed with status {status}", refusal))


def too_long(
    refusal: Refusal, *, has_chat: bool, prompt_tokens: int | None = None, context_length: int | None = None
) -> ContextLengthExceeded:
    """ContextLengthExceeded with the best numbers there are: the given ones, then the refusal's."""
    prompt = prompt_tokens or refusal.prompt_tokens or 0
    context = context_length or refusal.context_length or 0
    error = ContextLengthExceeded(
        prompt_tokens=prompt, context_length=context, param="messages" if has_chat else "prompt"
    )
    if not (prompt and context):
        error.message = refusal.message or "The prompt is longer than the model's context"
    return error


def _of_pictures(refusal: Refusal, places: Sequence[str]) -> ServiceError | None:
    """No server says which of several it means."""
    where = places[0] if len(places) == 1 else "messages"
    if _NO_SIGHT.search(refusal.message):
        return UnsupportedParameter(f"{where}: {refusal.message}", param=where)
    if _PICTURE.search(refusal.message):
        return InvalidParameter(f"{where}: {refusal.message}", param=where)
    return None


def _of_bad_request(refusal: Refusal, model: str) -> ServiceError | ModelError:
    message, param, code = refusal.message or "The server refused the request", refusal.param, refusal.code
    if code == "model_not_found" or (param == "model" and _NO_MODEL.search(message)):
        return UnknownModel(model)
    if code == "invalid_schema" or (param or "").split(".")[0] in _GRAMMAR_PARAMS:
        return InvalidGrammar(message, param=param or "response_format")
    if code == "template_refused" or _TEMPLATE.search(message):
        return TemplateRefused(message)
    if code in ("unsupported_parameter", "unsupported_value"):
        return UnsupportedParameter(message, param=param)
    if code == "invalid_value" or param in ("logit_bias", "stop_token_ids") or _VOCABULARY.search(message):
        return InvalidParameter(message, param=param)
    if _NO_TOOLS.search(message):
        return UnsupportedParameter(message, param=param or "tool_choice")
    if _UNSUPPORTED.search(message):
        return UnsupportedParameter(message, param=param)
    if param is None and _GRAMMAR.search(message):
        return InvalidGrammar(message, param="grammar" if "grammar" in message else "response_format")
    return InvalidParameter(message, param=param)


def about(constraint: str | None, error: ServiceError | ModelError) -> ServiceError | ModelError:
    """The error with the constraint of the request where it is about one: the server guesses, or says nothing of it."""
    if constraint is None or not isinstance(error, InvalidGrammar | UnsupportedParameter | InvalidParameter):
        return error
    place = (error.param or "").split(".")[0]
    if isinstance(error, InvalidGrammar):
        is_known = place == constraint.split(".")[0] and "." in (error.param or "")
        return error if is_known else InvalidGrammar(error.message, param=constraint)
    if error.param is None and _GRAMMAR.search(error.message):
        return InvalidGrammar(error.message, param=constraint)
    return error


def _sizes(message: str) -> tuple[int | None, int | None, bool, bool]:
    """(prompt tokens, context length, exact, whether it is about the length at all)"""
    for pattern in _TOO_LONG:
        match = pattern.search(message)
        if match is not None:
            found = match.groupdict()
            prompt, context = found.get("prompt"), found.get("context")
            return (
                int(prompt) if prompt else None,
                int(context) if context else None,
                not found.get("least"),
                True,
            )
    return None, None, True, False


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _text(value: object) -> str:
    """A string as it is; an integer code as a string; nothing else."""
    if isinstance(value, str):
        return value[:4096]
    return str(value) if type(value) is int else ""


def _details(said: Mapping[str, Any]) -> str:
    """FastAPI's `detail`: a sentence, or a list of problems."""
    detail = said.get("detail")
    if isinstance(detail, list):
        texts = [_text(entry.get("msg")) for entry in detail if isinstance(entry, dict)]
        return "; ".join(text for text in texts if text)
    return _text(detail)


def _location(said: Mapping[str, Any]) -> str | None:
    detail = said.get("detail")
    if isinstance(detail, list) and detail and isinstance(detail[0], dict):
        loc = detail[0].get("loc")
        if isinstance(loc, list):
            return _param(".".join(str(part) for part in loc))
    return None


def _param(value: object) -> str | None:
    if not isinstance(value, str):
        return None
    name = value.removeprefix("body.")
    return name if _PARAM.fullmatch(name) else None


def _retry_after(headers: Mapping[bytes, bytes]) -> float | None:
    """Seconds, from `retry-after-ms` or `retry-after` as a number; a date is not read."""
    for name, unit_s in ((b"retry-after-ms", 0.001), (b"retry-after", 1.0)):
        try:
            wait_s = float(headers[name]) * unit_s
        except (KeyError, ValueError):
            continue
        if 0 <= wait_s <= MAX_RETRY_AFTER_S:
            return wait_s
    return None


def _clean(message: str, secret: str | None) -> str:
    if secret:
        message = message.replace(secret, "***")
    return " ".join("".join(c if c.isprintable() else " " for c in message).split())[:MAX_MESSAGE_CHARS]


def _sentence(what: str, refusal: Refusal) -> str:
    return f"{what}: {refusal.message}" if refusal.message else what
