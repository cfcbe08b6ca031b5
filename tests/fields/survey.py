"""What a backend does with each field of a completion: asked over the wire, with a value that asks for something.

`docs/fields.md` says it for every field and backend; the tests here ask each backend and compare.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
from fastapi import FastAPI

from backends.base import Backend
from backends.types import EventBatch, GenerationRequest
from models.card import ModelCard
from openai_compat.schemas.chat import CHAT
from openai_compat.schemas.completions import COMPLETIONS
from openai_compat.schemas.table import Policy, Table
from tests.openai_compat.wire import Reply, call, make_app

PAGE: Final = Path(__file__).parents[2] / "docs" / "fields.md"
COLUMNS: Final = ("llamacpp", "vllm", "litellm")
BASE: Final[Mapping[str, Mapping[str, Any]]] = {
    "chat": {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 12, "temperature": 0.8},
    "completion": {"prompt": "The sea is", "max_tokens": 12, "temperature": 0.8},
}
PATHS: Final = {"chat": "/v1/chat/completions", "completion": "/v1/completions"}
TABLES: Final[Mapping[str, Table]] = {"chat": CHAT, "completion": COMPLETIONS}

_TOOL: Final = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
_TOOLS: Final = [{"type": "function", "function": _TOOL}]
_SCHEMA: Final = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}

_SAMPLING: Final[Mapping[str, Mapping[str, Any]]] = {
    "temperature": {"temperature": 0.3},
    "max_tokens": {"max_tokens": 5},
    "top_p": {"top_p": 0.5},
    "frequency_penalty": {"frequency_penalty": 0.5},
    "presence_penalty": {"presence_penalty": 0.5},
    "stop": {"stop": ["never in the text"]},
    "n": {"n": 2},
    "seed": {"seed": 7},
    "logit_bias": {"logit_bias": {"5": 1}},
    "top_k": {"top_k": 5},
    "min_p": {"min_p": 0.1},
    "typical_p": {"typical_p": 0.9},
    "repetition_penalty": {"repetition_penalty": 1.1},
    "stop_token_ids": {"stop_token_ids": [5]},
    "ignore_eos": {"ignore_eos": True},
    "min_tokens": {"min_tokens": 2},
    "grammar": {"grammar": 'root ::= "a" | "b"'},
    "response_format": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": _SCHEMA}}
    },
    "structured_outputs": {"structured_outputs": {"json": _SCHEMA}},
    "structured_outputs.regex": {"structured_outputs": {"regex": "[ab]"}},
    "structured_outputs.choice": {"structured_outputs": {"choice": ["a", "b"]}},
    "structured_outputs.grammar": {"structured_outputs": {"grammar": 'root ::= "a" | "b"'}},
    "structured_outputs.disable_any_whitespace": {
        "structured_outputs": {"json": _SCHEMA, "disable_any_whitespace": True}
    },
    "stream": {"stream": True},
    "stream_options": {"stream": True, "stream_options": {"include_usage": True}},
    "privacy": {"privacy": "any"},
    "receipt": {"receipt": True},
    "user": {"user": "somebody"},
    "metadata": {"metadata": {"a": "b"}},
    "store": {"store": True},
    "service_tier": {"service_tier": "flex"},
    "prompt_cache_key": {"prompt_cache_key": "a"},
    "prompt_cache_retention": {"prompt_cache_retention": "24h"},
    "safety_identifier": {"safety_identifier": "a"},
    "guided_json": {"guided_json": _SCHEMA},
    "guided_regex": {"guided_regex": "[ab]"},
    "guided_choice": {"guided_choice": ["a"]},
    "guided_grammar": {"guided_grammar": 'root ::= "a"'},
    "a_field_of_tomorrow": {"a_field_of_tomorrow": 1},
}
VALUES: Final[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
    "chat": {
        **_SAMPLING,
        "max_completion_tokens": {"max_completion_tokens": 5},
        "logprobs": {"logprobs": True},
        "top_logprobs": {"logprobs": True, "top_logprobs": 2},
        "chat_template_kwargs": {"chat_template_kwargs": {"a": 1}},
        "add_generation_prompt": {"add_generation_prompt": False},
        "continue_final_message": {
            "messages": [*BASE["chat"]["messages"], {"role": "assistant", "content": "He"}],
            "continue_final_message": True,
            "add_generation_prompt": False,
        },
        "verbosity": {"verbosity": "low"},
        "reasoning_effort": {"reasoning_effort": "low"},
        "tools": {"tools": _TOOLS},
        "tool_choice": {"tools": _TOOLS, "tool_choice": "required"},
        "parallel_tool_calls": {"tools": _TOOLS, "parallel_tool_calls": False},
        "functions": {"functions": [_TOOL]},
        "function_call": {"functions": [_TOOL], "function_call": {"name": "f"}},
        "modalities": {"modalities": ["text", "audio"]},
        "audio": {"audio": {"voice": "a", "format": "wav"}},
        "prediction": {"prediction": {"type": "content", "content": "a"}},
        "web_search_options": {"web_search_options": {}},
    },
    "completion": {
        **_SAMPLING,
        "logprobs": {"logprobs": 2},
        "echo": {"echo": True},
        "echo with logprobs": {"echo": True, "logprobs": 1},
        "suffix": {"suffix": "and deep."},
        "best_of": {"best_of": 3},
    },
}
"""Kind of completion -> row -> what is added to `BASE`. A row is called after the field that it is about."""
OF_THE_GATEWAY: Final = frozenset({"stream_options", "privacy", "receipt", "echo"})
"""Done before and behind the backend, which is asked the same with and without."""
_NOT_ROWS: Final = frozenset({"messages", "prompt", "model", "backend"})
"""What every request has, and where it goes."""


def rows_needed(kind: str) -> set[str]:
    """Every field of a body that a caller may send."""
    table = TABLES[kind]
    return {name for name, spec in table.items() if spec.policy is not Policy.ROUTING} - _NOT_ROWS


def documented() -> dict[tuple[str, str], dict[str, str]]:
    """`docs/fields.md`: kind and row -> backend -> what it says."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for kind in VALUES:
        _, _, rest = PAGE.read_text().partition(f"<!-- fields:{kind} -->")
        block, _, _ = rest.partition(f"<!-- /fields:{kind} -->")
        for line in block.splitlines():
            if row := re.match(r"\| `([^|]+)` \|(.+)\|$", line):
                cells = [cell.strip() for cell in row[2].split("|")]
                found[kind, row[1]] = dict(zip(COLUMNS, cells, strict=True))
    return found


@dataclass
class Surveyed:
    """A gateway before one backend. `arrived` grows by what each request becomes, as far down as a test can look."""

    app: FastAPI
    models: Mapping[str, str]
    """Kind of completion -> model."""
    arrived: Sequence[Any]
    without: dict[str, list[Any]] = field(default_factory=dict)
    """Kind -> what arrives of a request that asks for nothing."""

    async def does(self, kind: str, row: str) -> str:
        """What becomes of the row's field, in the words of the table. Raises: AssertionError where it is accepted and
        nothing else arrives than without it."""
        name = row.partition(" ")[0].partition(".")[0]
        reply, arrived = await self._ask(kind, VALUES[kind][row])
        if reply.status != 200:
            error = reply.error
            assert error["param"] is None or error["param"].partition(".")[0] == name, error
            return f"{reply.status} `{error['code']}`"
        if name in reply.headers.get("x-llm-ignored", "").split(", "):
            return "named"
        if name not in OF_THE_GATEWAY:
            if kind not in self.without:
                _, self.without[kind] = await self._ask(kind, {})
            assert arrived != self.without[kind], f"{row} is accepted and reaches nobody"
        return "yes"

    async def _ask(self, kind: str, fields: Mapping[str, Any]) -> tuple[Reply, list[Any]]:
        before = len(self.arrived)
        body = {"model": self.models[kind], **BASE[kind], **fields}
        reply = await call(self.app, "POST", PATHS[kind], body)
        return reply, list(self.arrived[before:])


def overheard(backend: Backend) -> list[GenerationRequest]:
    """Grows by what `backend` is asked from now on, without the ids."""
    asked: list[GenerationRequest] = []
    generate = backend.generate

    def listening(request: GenerationRequest) -> AsyncGenerator[EventBatch, None]:
        asked.append(msgspec.structs.replace(request, request_id=""))
        return generate(request)

    setattr(backend, "generate", listening)  # noqa: B010 - a method is not assigned to
    return asked


def app_before(backend: Backend, *cards: ModelCard) -> FastAPI:
    return make_app(backends={backend.kind: backend}, cards=cards, default_backend=backend.kind)
