"""The request of a receipt, sent once more: to the model and the backend that answered, with the values that took
effect, so that neither a fallback nor another default of the model's card makes a difference."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from typing_extensions import override

from openai_compat.replay.saved import Receipt
from openai_compat.schemas.sampling import SAMPLING_NAMES

MAX_ANSWER_BYTES: Final = 256 << 20
_TAKEN_OVER: Final = sorted(SAMPLING_NAMES - {"grammar"})
"""Parameters that a request may set and a receipt tells."""
_AS_ASKED: Final = frozenset({"litellm"})
"""Backends that refuse what is set although it is only the default: their models do not take everything."""
_STATUSES: Final = {
    401: "unauthorized",
    403: "unauthorized",
    404: "not_found",
    408: "timeout",
    429: "busy",
    503: "busy",
    504: "timeout",
}


class NotAnswered(Exception):
    """There is no answer to compare. `name` is the reason's."""

    def __init__(self, name: str, says: str) -> None:
        super().__init__(says)
        self.name = name


def body_of(receipt: Receipt, request: Mapping[str, Any]) -> dict[str, Any]:
    """`request`: the one that the receipt is of. Asked for whole: the text is the same as a stream's."""
    body = {name: value for name, value in request.items() if name not in ("stream", "stream_options")}
    body |= {"model": receipt.model.id, "backend": receipt.backend, "receipt": True}
    if receipt.sampling is None or receipt.backend in _AS_ASKED:
        return body
    for name in _TAKEN_OVER:
        value = receipt.sampling.get(name)
        # An empty list of stops takes the place of the card's.
        if value is not None and (value not in ({}, []) or name == "stop"):
            body[name] = value
    limit = body.pop("max_completion_tokens", None)
    if body.get("max_tokens") is None and limit is not None:
        body["max_tokens"] = limit
    most, least = body.get("max_tokens"), body.get("min_tokens")
    if isinstance(most, int) and isinstance(least, int) and least > most:
        body["min_tokens"] = most  # the context's end came first
    return body


def ask(
    base_url: str, receipt: Receipt, body: Mapping[str, Any], api_key: str | None, timeout_s: float
) -> Any:
    """The answer's JSON. Raises: NotAnswered."""
    url = base_url.rstrip("/").removesuffix("/v1") + receipt.route
    if not url.lower().startswith(("http://", "https://")):
        raise NotAnswered("unreachable", "the base URL has to begin with http:// or https://")
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    opener = build_opener(ProxyHandler({}), _Stay())
    try:
        data = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        request = Request(url, data=data, headers=headers, method="POST")  # noqa: S310 - the scheme was looked at
        with opener.open(request, timeout=timeout_s) as response:
            answer = response.read(MAX_ANSWER_BYTES + 1)
    except HTTPError as error:
        with error:
            said = _message_in(error.read(1 << 20))
        name = _STATUSES.get(error.code, "refused" if error.code < 500 else "failed")
        raise NotAnswered(name, f"the server answered with status {error.code}: {said}") from None
    except TimeoutError:
        raise NotAnswered("timeout", f"the server did not answer within {timeout_s:g} s") from None
    except URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise NotAnswered("timeout", f"the server did not answer within {timeout_s:g} s") from None
        raise NotAnswered("unreachable", f"the server cannot be reached: {error.reason}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise NotAnswered("unreachable", f"the server cannot be asked: {error}") from None
    except Exception as error:  # http.client has errors of its own for answers that are no HTTP
        raise NotAnswered("failed", f"what answers there makes no sense: {type(error).__name__}") from None
    return _parsed(answer)


def _parsed(answer: bytes) -> Any:
    if len(answer) > MAX_ANSWER_BYTES:
        raise NotAnswered("failed", f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
    try:
        return json.loads(answer)
    except (ValueError, RecursionError):
        raise NotAnswered("failed", "the answer is no JSON") from None


def _message_in(body: bytes) -> str:
    """What an error says of itself, in one line."""
    try:
        said = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        said = ""
    return " ".join(str(said).split())[:500] or "no reason given"


class _Stay(HTTPRedirectHandler):
    """Follows no redirect: the token would go along."""

    @override
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None
