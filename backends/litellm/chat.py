"""The ways into LiteLLM's chat: its `acompletion`, and a shorter one for the providers that most calls go to.

`acompletion` hands `completion` to a thread and awaits the coroutine that comes back. Around it, it looks for caches,
hooks and guardrails that are not used here, and prices the answer for its loggers, who are not there either: half of
what a call costs. On the short way `completion` gives its coroutine without a thread and is given a book that nobody
reads; errors are mapped by the same function.

The short way is for providers whose `completion` does nothing that blocks before it gives its coroutine (others ask a
cloud for a token there). Pictures for Anthropic go the long way, since LiteLLM takes their data URLs apart; so do
conversations with tool calls, whose ids `acompletion` cleans of what Gemini hides in them.

For OpenAI itself LiteLLM can take the client that it uses for the others, which costs half of OpenAI's SDK. A variable
of the environment says so, for all providers of that format at once; some of them have no such client, or another
address on it. So it is set for the moment in which a call to OpenAI looks at it, on this thread, and never while a
thread of the long way may look.
"""

from __future__ import annotations

import datetime
import importlib
import secrets
from collections.abc import Callable, Mapping, MutableMapping
from inspect import isawaitable
from typing import Any, Final

from backends.litellm.deployment import Deployment

PROVIDERS: Final = frozenset({"anthropic", "hosted_vllm", "openai", "openrouter"})
LIGHT_CLIENT: Final = "EXPERIMENTAL_OPENAI_BASE_LLM_HTTP_HANDLER"
_NEEDS_SDK: Final = ("OPENAI_ORGANIZATION", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_CUSTOM_HEADERS")
"""Variables that OpenAI's SDK turns into headers, and the other client does not."""

_UNREAD: Final = ("pre_call", "post_call", "response_cost_calculator")
"""What a book would write down, and the price that it would put on an answer; ours is put on it elsewhere."""


class Chat:
    """LiteLLM's chat. `environ`: the process's own environment."""

    def __init__(self, litellm: Any, environ: MutableMapping[str, str]) -> None:
        self._litellm = litellm
        self._environ = environ
        self._in_threads = 0
        # The public name sends a call with `acompletion=True` back to `acompletion`.
        self._completion: Callable[..., Any] = importlib.import_module("litellm.main").completion
        logging = importlib.import_module("litellm.litellm_core_utils.litellm_logging").Logging
        self._book = type("Book", (logging,), dict.fromkeys(_UNREAD, _nothing))
        self._is_light = not any(environ.get(name) for name in _NEEDS_SDK)
        # The C library moves the whole environment when a name is added to it, but not when one changes its value.
        environ[LIGHT_CLIENT] = "False"

    async def acompletion(self, deployment: Deployment, arguments: Mapping[str, Any]) -> Any:
        """Raises: what LiteLLM's `acompletion` raises."""
        if is_short(deployment, arguments):
            return await self._short(arguments, is_light=self._is_light and deployment.provider == "openai")
        self._in_threads += 1
        try:
            return await self._litellm.acompletion(**arguments)
        finally:
            self._in_threads -= 1

    async def _short(self, arguments: Mapping[str, Any], *, is_light: bool) -> Any:
        number = secrets.token_hex(8)
        book = self._book(
            model=arguments["model"],
            messages=arguments["messages"],
            stream=arguments.get("stream", False),
            call_type="acompletion",
            start_time=datetime.datetime.now(),
            litellm_call_id=number,
            litellm_trace_id=number,
            function_id="",
        )
        own = {"acompletion": True, "litellm_logging_obj": book, "litellm_call_id": number}
        try:
            if is_light and not self._in_threads:
                self._environ[LIGHT_CLIENT] = "True"
                try:
                    answer = self._completion(**arguments, **own)
                finally:
                    self._environ[LIGHT_CLIENT] = "False"
            else:
                answer = self._completion(**arguments, **own)
            return await answer if isawaitable(answer) else answer
        except Exception as exc:
            raise self._mapped(exc, arguments) from exc

    def _mapped(self, exc: Exception, arguments: Mapping[str, Any]) -> Exception:
        """`exception_type` raises what it finds, or gives back what needs no mapping."""
        try:
            found = self._litellm.exception_type(
                model=arguments["model"],
                custom_llm_provider=arguments["custom_llm_provider"],
                original_exception=exc,
                completion_kwargs=dict(arguments),
                extra_kwargs={},
            )
        except Exception as mapped:
            return mapped
        return found if isinstance(found, Exception) else exc


def is_short(deployment: Deployment, arguments: Mapping[str, Any]) -> bool:
    """Whether a call may go the short way. Models of the Responses API, and those that LiteLLM may send there for
    reasoning between tool calls, may not."""
    if deployment.provider not in PROVIDERS or deployment.mode != "chat":
        return False
    if "tools" in arguments and "reasoning_effort" in arguments:
        return False
    messages = arguments["messages"]
    if deployment.provider == "anthropic" and any(map(_has_media, messages)):
        return False
    return not any("tool_calls" in one or "tool_call_id" in one for one in messages)


def _has_media(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(part.get("type") != "text" for part in content)


def _nothing(*_: Any, **__: Any) -> None:
    return None
