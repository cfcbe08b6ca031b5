"""`POST /v1/completions`: its fields, and the request they become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from typing_extensions import override

from backends.types import Feature
from openai_compat.principals import Privacy
from openai_compat.schemas.fields import (
    TOKEN_ID,
    Boolean,
    Integer,
    Kind,
    ListOf,
    Schema,
    Text,
    check_length,
)
from openai_compat.schemas.problems import INVALID, Loc, Problems
from openai_compat.schemas.receipt import kept_for_receipt
from openai_compat.schemas.sampling import SAMPLING, check_together, include_usage, sampling_of
from openai_compat.schemas.structured import response_format_of
from openai_compat.schemas.table import ROUTING, Field, Table, check_body, needs

MAX_PROMPTS: Final = 1000
MAX_PROMPT_TOKENS: Final = 4_000_000
"""Of one prompt given as token ids: beyond any context, so that the model's own limit speaks first."""
MAX_CHOICES: Final = 1024
"""Prompts times `n`."""


class PromptKind(Kind):
    """A string, a list of strings, token ids, or a list of lists of them. Gives one entry per prompt."""

    _text = Text(min_length=1)
    _tokens = ListOf(TOKEN_ID, min_items=1, max_items=MAX_PROMPT_TOKENS)

    def __init__(self, *, max_prompts: int = MAX_PROMPTS) -> None:
        self._max_prompts = max_prompts

    @override
    def check(self, value: Any, loc: Loc, problems: Problems) -> Any:
        if type(value) is str:
            return self._list(self._text.check(value, loc, problems))
        if type(value) is not list:
            msg = "Input should be a string, a list of strings, or token ids"
            return problems.add("string_type", loc, msg, value)
        if not check_length(value, 1, MAX_PROMPT_TOKENS, loc, problems):
            return INVALID
        kinds = {type(item) for item in value}
        if kinds <= {int, float}:
            return self._list(self._tokens.check(value, loc, problems))
        if not check_length(value, 1, self._max_prompts, loc, problems):
            return INVALID
        kind: Kind = self._text
        if kinds == {list}:
            kind = self._tokens
        elif kinds != {str}:
            msg = "Input should hold only strings, only token ids, or only lists of token ids"
            return problems.add("value_error", loc, msg, value)
        before = problems.count
        prompts = [kind.check(item, (*loc, index), problems) for index, item in enumerate(value)]
        return INVALID if problems.count > before else prompts

    @staticmethod
    def _list(prompt: Any) -> Any:
        return prompt if prompt is INVALID else [prompt]

    @property
    @override
    def schema(self) -> Schema:
        texts = {"type": "array", "items": self._text.schema, "minItems": 1, "maxItems": self._max_prompts}
        tokens = {"type": "array", "items": self._tokens.schema, "minItems": 1, "maxItems": self._max_prompts}
        return {"anyOf": [self._text.schema, texts, self._tokens.schema, tokens]}


COMPLETIONS: Final[Table] = {
    "prompt": Field(PromptKind(), "Prompt or prompts; choice index = prompt · n + i.", required=True),
    "model": Field(Text(min_length=1), "A model of GET /v1/models; absent: the server's default model."),
    **SAMPLING,
    "logprobs": Field(Integer(0, 20), "Alternatives per token."),
    "echo": Field(Boolean(), "Put the prompt before the text.", default=False),
    "suffix": needs("suffix", Text(), "Text after the answer.", unless=lambda suffix: suffix == ""),
    "best_of": Field(Integer(1, 20), "Candidates per prompt; more than n needs a backend that has it."),
    **ROUTING,
}


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A body that met the schema. `prompts`: texts or token ids. `sampling`: only what the caller set."""

    prompts: list[str | list[int]]
    model: str | None
    backend: str | None
    privacy: Privacy
    stream: bool
    include_usage: bool
    n: int
    echo: bool
    sampling: dict[str, Any]
    response_format: dict[str, Any] | None
    structured_outputs: dict[str, Any] | None
    suffix: str | None
    best_of: int | None
    ignored: tuple[str, ...]
    refused: tuple[str, ...]
    needed: dict[str, Feature]
    receipt: Mapping[str, Any] | None
    """What a receipt is to repeat; None: none is wanted."""


def read_completion(body: Mapping[str, Any], *, strict: bool = False) -> CompletionRequest:
    """Check a body. Raises: ValidationFailed with every problem found."""
    problems = Problems()
    checked = check_body(body, COMPLETIONS, problems, strict=strict)
    values = checked.values
    receipt = kept_for_receipt(body, checked)
    check_together(values, problems)
    n = values.get("n", 1)
    prompts = values.get("prompt", ())
    if len(prompts) * n > MAX_CHOICES:
        msg = (
            f"{len(prompts)} prompts with n = {n} make {len(prompts) * n} choices; the limit is {MAX_CHOICES}"
        )
        problems.add("value_error", ("n",), msg, n)
    best_of = values.get("best_of")
    if best_of is not None and best_of < n:
        problems.add("value_error", ("best_of",), f"best_of is {best_of}, less than n, which is {n}", best_of)
    elif best_of is not None and best_of > n and values.get("stream"):
        problems.add("value_error", ("best_of",), "best_of is not allowed when stream is true", best_of)
    problems.raise_if_any()
    needed = checked.needed
    if best_of is not None and best_of > n:
        needed["best_of"] = "best_of"
    sampling = sampling_of(values)
    if "logprobs" in values:
        sampling["logprobs"] = values["logprobs"]
        if values.get("echo"):
            needed["echo"] = "echo_logprobs"
    return CompletionRequest(
        prompts=list(prompts),
        model=values.get("model"),
        backend=values.get("backend"),
        privacy=values.get("privacy", "any"),
        stream=values.get("stream", False),
        include_usage=include_usage(values),
        n=n,
        echo=values.get("echo", False),
        sampling=sampling,
        response_format=response_format_of(values),
        structured_outputs=values.get("structured_outputs"),
        suffix=values.get("suffix") or None,
        best_of=best_of if "best_of" in needed else None,
        ignored=tuple(checked.ignored),
        refused=tuple(checked.refused),
        needed=needed,
        receipt=receipt,
    )
