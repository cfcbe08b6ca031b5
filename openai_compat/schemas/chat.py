"""`POST /v1/chat/completions`: its fields, and the request they become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from backends.types import Feature
from openai_compat.principals import Privacy
from openai_compat.schemas.fields import Boolean, Integer, ListOf, Object, OneOf, Text
from openai_compat.schemas.messages import Messages
from openai_compat.schemas.problems import Problems
from openai_compat.schemas.receipt import kept_for_receipt
from openai_compat.schemas.sampling import (
    MAX_TOKENS,
    SAMPLING,
    check_together,
    include_usage,
    sampling_of,
)
from openai_compat.schemas.structured import response_format_of
from openai_compat.schemas.table import ROUTING, Field, Table, check_body, harmless, needs, refused
from openai_compat.schemas.tools import (
    FUNCTION_CALL,
    FUNCTIONS,
    TOOL_CHOICE,
    TOOLS,
    check_tools_together,
    tool_choice_of,
    tools_of,
)

RESERVED_TEMPLATE_NAMES: Final = frozenset(
    {
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "tokenize",
        "chat_template",
    }
)
"""What the template is given by us: a caller's `chat_template_kwargs` must not replace it."""

CHAT: Final[Table] = {
    "messages": Field(Messages(), "The conversation, 1–1000 messages.", required=True),
    "model": Field(Text(min_length=1), "A model of GET /v1/models, by id or alias.", required=True),
    **SAMPLING,
    "max_completion_tokens": Field(Integer(1, MAX_TOKENS), "The same as max_tokens, and wins over it."),
    "logprobs": Field(Boolean(), "Report the probability of each token.", default=False),
    "top_logprobs": Field(Integer(0, 20), "Alternatives per token; needs logprobs."),
    "chat_template_kwargs": Field(
        Object(reserved=RESERVED_TEMPLATE_NAMES), "Variables of the chat template."
    ),
    "add_generation_prompt": Field(Boolean(), "Begin an assistant turn after the messages.", default=True),
    "continue_final_message": Field(Boolean(), "Continue the last, assistant, message.", default=False),
    "verbosity": harmless(Text(), "A hint that models here do not take."),
    "reasoning_effort": needs(
        "reasoning_effort",
        Text(min_length=1, max_length=32),
        "How much the model may think: `none`, `low`, `medium`, `high`, … Ignored where the model does not reason.",
    ),
    "tools": needs("tools", TOOLS, "Functions the model may call."),
    "tool_choice": needs(
        "tools",
        TOOL_CHOICE,
        "Which of the tools to call; absent: as the model decides.",
        unless=lambda choice: choice == "none",
    ),
    "parallel_tool_calls": Field(Boolean(), "Several calls in one answer. Ignored without tools."),
    "functions": needs("tools", FUNCTIONS, "The deprecated form of tools; answers have the current form."),
    "function_call": needs(
        "tools",
        FUNCTION_CALL,
        "The deprecated form of tool_choice.",
        unless=lambda call: call == "none",
    ),
    "modalities": refused(
        ListOf(OneOf("text", "audio", "image"), max_items=3),
        "Kinds of output; text is all there is.",
        unless=lambda kinds: set(kinds) <= {"text"},
    ),
    "audio": refused(Object(), "Audio output."),
    "prediction": refused(Object(), "Predicted output."),
    "web_search_options": refused(Object(), "Web search."),
    **ROUTING,
}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A body that met the schema. `sampling` holds only what the caller set; `tools` and `tool_choice` have the current
    form, whichever one they came in; `tools_field` is that one's name."""

    messages: list[dict[str, Any]]
    model: str
    backend: str | None
    privacy: Privacy
    stream: bool
    include_usage: bool
    n: int
    sampling: dict[str, Any]
    add_generation_prompt: bool
    continue_final_message: bool
    template_kwargs: dict[str, Any]
    tools: list[dict[str, Any]] | None
    tools_field: str
    tool_choice: str | dict[str, Any] | None
    parallel_tool_calls: bool | None
    response_format: dict[str, Any] | None
    structured_outputs: dict[str, Any] | None
    reasoning_effort: str | None
    ignored: tuple[str, ...]
    refused: tuple[str, ...]
    needed: dict[str, Feature]
    receipt: Mapping[str, Any] | None
    """What a receipt is to repeat; None: none is wanted."""


def read_chat(body: Mapping[str, Any], *, strict: bool = False) -> ChatRequest:
    """Check a body. Raises: ValidationFailed with every problem found."""
    problems = Problems()
    checked = check_body(body, CHAT, problems, strict=strict)
    values = checked.values
    receipt = kept_for_receipt(body, checked)
    limit = values.pop("max_completion_tokens", None)
    if limit is not None:
        values["max_tokens"] = limit
    check_together(values, problems)
    _check_chat_together(values, problems)
    problems.raise_if_any()
    if "parallel_tool_calls" in values and "tools" not in values and "functions" not in values:
        checked.ignored.append("parallel_tool_calls")
        del values["parallel_tool_calls"]
    sampling = sampling_of(values)
    if values.get("logprobs"):
        sampling["logprobs"] = values.get("top_logprobs", 0)
    return ChatRequest(
        messages=values["messages"],
        model=values["model"],
        backend=values.get("backend"),
        privacy=values.get("privacy", "any"),
        stream=values.get("stream", False),
        include_usage=include_usage(values),
        n=values.get("n", 1),
        sampling=sampling,
        add_generation_prompt=values.get(
            "add_generation_prompt", not values.get("continue_final_message", False)
        ),
        continue_final_message=values.get("continue_final_message", False),
        template_kwargs=values.get("chat_template_kwargs", {}),
        tools=tools_of(values),
        tools_field="functions" if "functions" in values else "tools",
        tool_choice=tool_choice_of(values),
        parallel_tool_calls=values.get("parallel_tool_calls"),
        response_format=response_format_of(values),
        structured_outputs=values.get("structured_outputs"),
        reasoning_effort=values.get("reasoning_effort"),
        ignored=tuple(checked.ignored),
        refused=tuple(checked.refused),
        needed=_still_needed(checked.needed, values),
        receipt=receipt,
    )


def _check_chat_together(values: dict[str, Any], problems: Problems) -> None:
    if values.get("top_logprobs") is not None and not values.get("logprobs"):
        msg = "top_logprobs is only allowed when logprobs is true"
        problems.add("value_error", ("top_logprobs",), msg, values["top_logprobs"])
    if values.get("continue_final_message"):
        at = ("continue_final_message",)
        if values.get("add_generation_prompt"):
            msg = "continue_final_message and add_generation_prompt cannot both be true"
            problems.add("value_error", at, msg, True)
        messages = values.get("messages")
        if messages and messages[-1]["role"] != "assistant":
            problems.add(
                "value_error", at, "continue_final_message needs a last message of role 'assistant'", True
            )
    check_tools_together(values, problems)


def _still_needed(needed: dict[str, Feature], values: dict[str, Any]) -> dict[str, Feature]:
    """Tools that must not be called ask for nothing."""
    moot = {
        tools
        for choice, tools in (("tool_choice", "tools"), ("function_call", "functions"))
        if values.get(choice) == "none"
    }
    return {name: feature for name, feature in needed.items() if name not in moot}
