"""The short way into LiteLLM's chat: its own `completion` on this event loop, with a book that nobody reads.

`acompletion` hands `completion` to a thread and awaits the coroutine that comes back. Around it, it looks for caches,
hooks and guardrails that are not used here, and prices the answer for its loggers, who are not there either: half of
what a call costs. Here the coroutine is fetched without a thread, and errors are mapped by the same function.

Only for providers whose `completion` does nothing that blocks before it gives its coroutine (others ask a cloud for a
token there). A conversation with tool calls goes the long way: `acompletion` cleans their ids of what Gemini hides in
them.
"""

from __future__ import annotations

import datetime
import importlib
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from backends.litellm.deployment import Deployment

PROVIDERS: Final = frozenset({"anthropic", "hosted_vllm", "openai", "openrouter"})


class Shortcut:
    """`completion` has the signature of LiteLLM's `acompletion`."""

    def __init__(self, litellm: Any) -> None:
        self._litellm = litellm
        # The public name sends a call with `acompletion=True` back to `acompletion`.
        self._completion: Callable[..., Any] = importlib.import_module("litellm.main").completion
        logging = importlib.import_module("litellm.litellm_core_utils.litellm_logging").Logging
        self._book = type("Book", (logging,), dict.fromkeys(_UNREAD, _nothing))

    def leads_to(self, deployment: Deployment, arguments: Mapping[str, Any]) -> bool:
        """Whether a call may go this way. Models of the Responses API, and those that LiteLLM may send there for
        reasoning between tool calls, may not."""
        if deployment.provider not in PROVIDERS or deployment.mode != "chat":
            return False
        if "tools" in arguments and "reasoning_effort" in arguments:
            return False
        return not any("tool_calls" in one or "tool_call_id" in one for one in arguments["messages"])

    async def acompletion(self, **arguments: Any) -> Any:
        """Raises: what LiteLLM's `acompletion` raises."""
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
        try:
            answer = self._completion(
                **arguments, acompletion=True, litellm_logging_obj=book, litellm_call_id=number
            )
            return await answer if isinstance(answer, Awaitable) else answer
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


_UNREAD: Final = ("pre_call", "post_call", "response_cost_calculator")
"""What a book would write down, and the price that it would put on an answer; ours is put on it elsewhere."""


def _nothing(*_: Any, **__: Any) -> None:
    return None
