"""The fields that say how tokens are chosen, the same for chat and for text completions."""

from __future__ import annotations

from typing import Any, Final

from openai_compat.schemas.fields import (
    TOKEN_ID,
    Anything,
    Boolean,
    Integer,
    ListOf,
    LogitBias,
    Number,
    Object,
    Record,
    Stop,
    Text,
)
from openai_compat.schemas.problems import Problems
from openai_compat.schemas.receipt import RECEIPT
from openai_compat.schemas.structured import (
    RESPONSE_FORMAT,
    StructuredOutputs,
    check_constraints_together,
)
from openai_compat.schemas.table import PRIVACY, Field, Table, harmless, needs, refused

MAX_TOKENS: Final = 1_000_000
MAX_GRAMMAR_CHARS: Final = 65_536
STREAM_OPTIONS_DOC = "`include_usage`: a last chunk with the usage of the whole request. Only with stream."


STREAM_OPTIONS: Final = Record({"include_usage": Boolean()})
"""Other members are accepted: OpenAI adds some (`include_obfuscation`)."""

SAMPLING: Final[Table] = {
    "temperature": Field(Number(0, 2), "Sampling temperature; 0 is greedy.", default=0.7),
    "max_tokens": Field(
        Integer(1, MAX_TOKENS), "Most tokens per choice; absent: to a stop or the context's end."
    ),
    "top_p": Field(Number(0, 1), "Nucleus sampling; 1 keeps everything."),
    "frequency_penalty": Field(Number(-2, 2), "By how often a token was generated."),
    "presence_penalty": Field(Number(-2, 2), "By whether a token was generated."),
    "stop": Field(Stop(), "The text ends before the earliest of these."),
    "n": Field(Integer(1, 16), "Choices per prompt.", default=1),
    "seed": Field(Integer(-(2**63), 2**63 - 1), "One seed gives one text for one request."),
    "logit_bias": Field(LogitBias(), "Token id to a bias of −100…100."),
    "top_k": Field(Integer(-1, 2**31 - 1), "Keep the k likeliest tokens; 0 and −1 keep all."),
    "min_p": Field(Number(0, 1), "Keep tokens at least this likely, relative to the likeliest."),
    "typical_p": Field(Number(0, 1), "Locally typical sampling; 1 is off."),
    "repetition_penalty": Field(Number(None, 10, above=0), "Over prompt and answer; 1 is off."),
    "stop_token_ids": Field(ListOf(TOKEN_ID, max_items=128), "Tokens that end the text."),
    "ignore_eos": Field(Boolean(), "Go on past the model's own end of turn.", default=False),
    "min_tokens": Field(Integer(0, MAX_TOKENS), "No end before this many tokens; at most max_tokens."),
    "grammar": Field(
        Text(min_length=1, max_length=MAX_GRAMMAR_CHARS), "GBNF that the whole answer must match."
    ),
    "response_format": needs(
        "structured_outputs",
        RESPONSE_FORMAT,
        "The form of the answer.",
        unless=lambda form: form["type"] == "text",
    ),
    "structured_outputs": needs(
        "structured_outputs", StructuredOutputs(), "vLLM's form of constrained output."
    ),
    "stream": Field(Boolean(), "Answer with server-sent events.", default=False),
    "stream_options": Field(STREAM_OPTIONS, STREAM_OPTIONS_DOC),
    "backend": Field(Text(min_length=1), "Serve on this backend: litellm, vllm or llamacpp."),
    "user": harmless(Text(), "An end user's id."),
    "metadata": harmless(Object(), "Tags of a stored answer."),
    "store": harmless(Boolean(), "Keep the answer: nothing is kept here."),
    "service_tier": harmless(Text(), "A paid tier."),
    "prompt_cache_key": harmless(Text(), "A cache hint: prefixes are found without one."),
    "prompt_cache_retention": harmless(Text(), "A cache hint: prefixes are found without one."),
    "safety_identifier": harmless(Text(), "An end user's id."),
    "privacy": PRIVACY,
    "receipt": RECEIPT,
    "guided_json": refused(Anything(), "vLLM's older form of constrained output."),
    "guided_regex": refused(Text(), "vLLM's older form of constrained output."),
    "guided_choice": refused(ListOf(Text(), max_items=1024), "vLLM's older form of constrained output."),
    "guided_grammar": refused(Text(), "vLLM's older form of constrained output."),
}

SAMPLING_NAMES: Final = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "typical_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "seed",
        "logit_bias",
        "max_tokens",
        "min_tokens",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "grammar",
    }
)
"""Fields that reach `SamplingParams` under the same name."""


def check_together(values: dict[str, Any], problems: Problems) -> None:
    """Rules between fields, and the spellings that mean the same made one."""
    if "stream_options" in values and not values.get("stream"):
        msg = "stream_options is only allowed when stream is true"
        problems.add("value_error", ("stream_options",), msg, values["stream_options"])
    max_tokens, min_tokens = values.get("max_tokens"), values.get("min_tokens")
    if max_tokens is not None and min_tokens is not None and min_tokens > max_tokens:
        msg = f"min_tokens is {min_tokens}, more than max_tokens, which is {max_tokens}"
        problems.add("value_error", ("min_tokens",), msg, min_tokens)
    check_constraints_together(values, problems)
    if values.get("top_k") == -1:
        values["top_k"] = 0


def sampling_of(values: dict[str, Any]) -> dict[str, Any]:
    """The part of checked values that the caller set for `SamplingParams`."""
    return {name: value for name, value in values.items() if name in SAMPLING_NAMES}


def include_usage(values: dict[str, Any]) -> bool:
    """Whether a stream ends with a usage chunk."""
    options = values.get("stream_options")
    return bool(options and options.get("include_usage"))
