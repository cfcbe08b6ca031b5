"""`POST /tokenize` and `POST /detokenize`, in vLLM's form: their fields, and the requests they become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from backends.types import Feature
from openai_compat.principals import Privacy
from openai_compat.schemas.chat import RESERVED_TEMPLATE_NAMES
from openai_compat.schemas.fields import Boolean, Integer, ListOf, Object, Text
from openai_compat.schemas.messages import Messages
from openai_compat.schemas.problems import Problems
from openai_compat.schemas.sampling import MAX_TOKENS
from openai_compat.schemas.table import PRIVACY, ROUTING, Field, Table, check_body, needs, refused
from openai_compat.schemas.tools import TOOLS, tools_of

_MODEL: Final = Field(
    Text(min_length=1), "A model of GET /v1/models, by id or alias; the default one if absent."
)
_BACKEND: Final = Field(Text(min_length=1), "Ask this backend: litellm, vllm or llamacpp.")

TOKENIZE: Final[Table] = {
    "model": _MODEL,
    "backend": _BACKEND,
    "prompt": Field(Text(), "A text. Either this or messages."),
    "messages": Field(Messages(), "A conversation, which goes through the model's template."),
    "add_special_tokens": Field(
        Boolean(), "Add the model's own marks of a beginning; absent: as a completion has them."
    ),
    "return_token_strs": Field(Boolean(), "Give how the vocabulary spells each token.", default=False),
    "add_generation_prompt": Field(Boolean(), "Begin an assistant turn after the messages.", default=True),
    "continue_final_message": Field(Boolean(), "Leave the last, assistant, message open.", default=False),
    "chat_template_kwargs": Field(
        Object(reserved=RESERVED_TEMPLATE_NAMES), "Variables of the chat template."
    ),
    "tools": needs("tools", TOOLS, "Functions the model is told of."),
    "chat_template": refused(Text(), "Another template than the model's."),
    "mm_processor_kwargs": refused(Object(), "Options for pictures.", unless=lambda value: not value),
    "privacy": PRIVACY,
    **ROUTING,
}

DETOKENIZE: Final[Table] = {
    "model": _MODEL,
    "backend": _BACKEND,
    "tokens": Field(
        ListOf(Integer(0, (1 << 31) - 1), max_items=MAX_TOKENS), "Ids of the model's tokens.", required=True
    ),
    "privacy": PRIVACY,
    **ROUTING,
}

_OF_MESSAGES: Final = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools")


@dataclass(frozen=True, slots=True)
class TokenizeBody:
    """A body that met the schema: `text` or `messages`."""

    model: str | None
    backend: str | None
    privacy: Privacy
    text: str | None
    messages: list[dict[str, Any]] | None
    add_special_tokens: bool | None
    with_strings: bool
    add_generation_prompt: bool
    continue_final_message: bool
    template_kwargs: dict[str, Any]
    tools: list[dict[str, Any]] | None
    ignored: tuple[str, ...]
    refused: tuple[str, ...]
    needed: Mapping[str, Feature]


@dataclass(frozen=True, slots=True)
class DetokenizeBody:
    """A body that met the schema."""

    model: str | None
    backend: str | None
    privacy: Privacy
    token_ids: list[int]
    ignored: tuple[str, ...]


def read_tokenize(body: Mapping[str, Any], *, strict: bool = False) -> TokenizeBody:
    """Check a body. Raises: ValidationFailed with every problem found."""
    problems = Problems()
    checked = check_body(body, TOKENIZE, problems, strict=strict)
    _check_together(body, checked.values, problems)
    problems.raise_if_any()
    values = checked.values
    continues = values.get("continue_final_message", False)
    return TokenizeBody(
        model=values.get("model"),
        backend=values.get("backend"),
        privacy=values.get("privacy", "any"),
        text=values.get("prompt"),
        messages=values.get("messages"),
        add_special_tokens=values.get("add_special_tokens"),
        with_strings=values.get("return_token_strs", False),
        add_generation_prompt=values.get("add_generation_prompt", not continues),
        continue_final_message=continues,
        template_kwargs=values.get("chat_template_kwargs", {}),
        tools=tools_of(values),
        ignored=tuple(checked.ignored),
        refused=tuple(checked.refused),
        needed=checked.needed,
    )


def _check_together(body: Mapping[str, Any], values: dict[str, Any], problems: Problems) -> None:
    has_text, has_messages = body.get("prompt") is not None, body.get("messages") is not None
    if not has_text and not has_messages:
        problems.add("missing", ("prompt",), "Field required: prompt or messages", None)
    elif has_text and has_messages:
        problems.add("value_error", ("messages",), "Only one of prompt and messages may be given", None)
    elif has_text:
        for name in _OF_MESSAGES:
            if name in values:
                problems.add("value_error", (name,), f"{name} is only allowed with messages", None)
    if not values.get("continue_final_message"):
        return
    at = ("continue_final_message",)
    if values.get("add_generation_prompt"):
        msg = "continue_final_message and add_generation_prompt cannot both be true"
        problems.add("value_error", at, msg, True)
    messages = values.get("messages")
    if messages and messages[-1]["role"] != "assistant":
        problems.add(
            "value_error", at, "continue_final_message needs a last message of role 'assistant'", True
        )


def read_detokenize(body: Mapping[str, Any], *, strict: bool = False) -> DetokenizeBody:
    """Check a body. Raises: ValidationFailed with every problem found."""
    problems = Problems()
    checked = check_body(body, DETOKENIZE, problems, strict=strict)
    problems.raise_if_any()
    values = checked.values
    return DetokenizeBody(
        model=values.get("model"),
        backend=values.get("backend"),
        privacy=values.get("privacy", "any"),
        token_ids=values["tokens"],
        ignored=tuple(checked.ignored),
    )
