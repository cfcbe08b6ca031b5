"""What the fake makes of a request: what it thinks, which tools it calls, what it says.

it thinks      where the template is told `enable_thinking: true`, or an effort other than `none` is asked for
it calls       a tool that is named by the choice; the first for `required`, all of them with `parallel_tool_calls`;
               by itself one whose name the last message, a user's, contains
it says        an instance of the schema it was given, the first of its choices, or what `FakeScript` says
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from backends.errors import UnsupportedParameter
from backends.fake import tokens
from backends.fake.instances import instance
from backends.types import ChatPrompt, GenerationRequest, Prompt


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call; its arguments are JSON in pieces of a token each."""

    name: str
    arguments: list[str]

    @property
    def num_tokens(self) -> int:
        """The name is one token."""
        return 1 + len(self.arguments)


@dataclass(frozen=True, slots=True)
class Intent:
    """Tokens by what they are for. `said`: None leaves it to the script."""

    thoughts: list[str]
    calls: list[Call]
    said: list[str] | None

    @property
    def is_fixed(self) -> bool:
        """Whether more tokens would spoil it."""
        return bool(self.calls) or self.said is not None


def intent_of(prompt: Prompt, request: GenerationRequest) -> Intent:
    """Raises: UnsupportedParameter, InvalidGrammar for an output it cannot make."""
    answer = _constrained(request)
    if not isinstance(prompt, ChatPrompt):
        return Intent([], [], answer)
    thoughts = tokens.split(f"They said: {tokens.text_of(prompt)}") if _thinks(prompt, request) else []
    calls = [
        Call(
            function["name"], tokens.split(_json(instance(function.get("parameters") or {"type": "object"})))
        )
        for function in _called(prompt, request)
    ]
    return Intent(thoughts, calls, answer)


def _thinks(prompt: ChatPrompt, request: GenerationRequest) -> bool:
    asked = prompt.template_kwargs.get("enable_thinking")
    return asked is True or (asked is None and request.reasoning_effort not in (None, "none"))


def _called(prompt: ChatPrompt, request: GenerationRequest) -> list[Mapping[str, Any]]:
    functions = [tool["function"] for tool in prompt.tools or ()]
    choice = request.tool_choice
    if isinstance(choice, dict):
        return [function for function in functions if function["name"] == choice["function"]["name"]]
    if choice == "required":
        return functions if request.parallel_tool_calls else functions[:1]
    last = prompt.messages[-1]
    if choice == "none" or last["role"] != "user":
        return []
    text = tokens.text_of(prompt)
    return [function for function in functions if function["name"] in text][:1]


def _constrained(request: GenerationRequest) -> list[str] | None:
    """The one answer to a constraint; None where there is none."""
    outputs = request.structured_outputs or {}
    if "choice" in outputs:
        return tokens.split(outputs["choice"][0])
    for name in ("regex", "grammar", "structural_tag"):
        if name in outputs:
            raise UnsupportedParameter(
                f"The fake backend cannot honour structured_outputs.{name}",
                param=f"structured_outputs.{name}",
            )
    form = request.response_format or {}
    if "json" in outputs:
        return tokens.split(_json(instance(outputs["json"])))
    if "json_schema" in form:
        return tokens.split(_json(instance(form["json_schema"]["schema"])))
    return ["{", "}"] if form or "json_object" in outputs else None


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
