"""From a request to the arguments of LiteLLM's calls, and to what has to be done on this side of them.

A default is sent where the model takes it, and left out where it does not. What the caller set himself is sent or
refused by name, never dropped. Three things are done here when the provider cannot: `n`, more stop strings than it
takes, and `echo`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from backends.errors import InvalidParameter, NotSupported, UnsupportedParameter
from backends.litellm.deployment import Deployment
from backends.pictures import own_messages
from backends.types import (
    CONSTRAINT_OPTIONS,
    ChatPrompt,
    GenerationRequest,
    Prompt,
    SamplingParams,
    TextPrompt,
    TokenPrompt,
)

MAX_TOKEN_ID: Final = 1 << 20
"""The largest vocabularies have a quarter of this."""
PLAIN: Final = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed")
NEUTRAL: Final[Mapping[str, object]] = {
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "seed": None,
    "top_k": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repetition_penalty": 1.0,
    "min_tokens": 0,
    "stop_token_ids": (),
    "ignore_eos": False,
    "grammar": None,
}
"""Values that mean the same as leaving the parameter out; temperature has none, since providers' defaults differ."""

_VLLM: Final = frozenset(
    {"top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids", "ignore_eos"}
)
_EXTENSIONS: Final[Mapping[str, frozenset[str]]] = {
    "anthropic": frozenset({"top_k"}),
    "fireworks_ai": frozenset({"top_k", "min_p", "repetition_penalty"}),
    "gemini": frozenset({"top_k"}),
    "hosted_vllm": _VLLM,
    "openrouter": frozenset({"top_k", "min_p", "repetition_penalty"}),
    "together_ai": frozenset({"top_k", "min_p", "repetition_penalty"}),
    "vertex_ai": frozenset({"top_k"}),
}
"""Provider -> which of our extensions its own API documents, under the same names."""
_IN_EXTRA_BODY: Final = frozenset({"fireworks_ai", "hosted_vllm", "openrouter", "together_ai"})
"""Providers that speak OpenAI's format: what is not OpenAI's goes into the body as it is."""

_MAX_STOPS: Final[Mapping[str, int]] = {
    "anthropic": 16,
    "bedrock": 4,
    "gemini": 5,
    "hosted_vllm": 16,
    "vertex_ai": 5,
}
_FEWEST_STOPS: Final = 4
"""OpenAI's limit, and that of most who copied its API."""
_TAKES_N: Final = frozenset({"openai", "azure", "text-completion-openai", "hosted_vllm"})
"""Providers that answer with `n` choices. Others take the parameter and answer with one."""
_ONE_OF_TWO: Final = frozenset({"anthropic", "bedrock", "vertex_ai"})
"""Their newer models refuse `temperature` beside `top_p`."""


@dataclass(frozen=True, slots=True)
class Part:
    """One call: the choices it fills and its arguments."""

    choices: tuple[int, ...]
    prompt: int
    """Index of its prompt in the request."""
    is_text: bool
    """A call of the completions endpoint, not of chat."""
    arguments: Mapping[str, Any]
    echo: str = ""
    """Text that comes before the answer."""

    def own_arguments(self) -> dict[str, Any]:
        """The arguments as an attempt may have them: LiteLLM writes into the messages that it is given."""
        messages = self.arguments.get("messages")
        if messages is None:
            return dict(self.arguments)
        return {**self.arguments, "messages": list(map(_copy, messages))}


@dataclass(frozen=True, slots=True)
class Plan:
    """All calls of a request. `stops`: cut here, since the provider cannot; `defaults`: parameters that nobody asked
    for and that may be left out when the provider refuses them."""

    parts: tuple[Part, ...]
    stops: tuple[str, ...] = ()
    defaults: frozenset[str] = frozenset()
    stream: bool = field(default=False)
    """Whether the provider is asked for a stream: where the caller reads one, or where a stop here may end it early."""


def _copy(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [dict(part) for part in content]}
    return dict(message)


def plan(request: GenerationRequest, deployment: Deployment) -> Plan:
    """Raises: UnsupportedParameter naming what the model or its provider cannot do; NotSupported for a text prompt to a
    model that only chats."""
    is_text = not isinstance(request.prompts[0], ChatPrompt)
    if is_text and not deployment.does_text:
        raise NotSupported(f"The model {request.model!r} does chat only; use /v1/chat/completions")
    if not is_text and not deployment.does_chat:
        raise UnsupportedParameter(f"The model {request.model!r} does not do chat", param="model")
    arguments, defaults = _sampling(request, deployment, is_text=is_text)
    stops = _stops(request.sampling.stop, deployment, arguments)
    stream = request.stream or bool(stops)
    if stream:
        arguments["stream"] = True
        if "stream_options" in deployment.supported:
            arguments["stream_options"] = {"include_usage": True}
    else:
        _set_n(request, deployment, arguments)
    per_call = arguments.get("n", 1)
    parts = []
    for number, prompt in enumerate(request.prompts):
        own = _prompt_arguments(request, prompt, deployment)
        if "extra_body" in arguments and "extra_body" in own:
            own["extra_body"] = {**arguments["extra_body"], **own["extra_body"]}
        first = number * request.n
        echo = _echo(prompt) if request.echo else ""
        for at in range(first, first + request.n, per_call):
            parts.append(Part(tuple(range(at, at + per_call)), number, is_text, {**arguments, **own}, echo))
    return Plan(tuple(parts), stops, frozenset(defaults), stream)


def _sampling(
    request: GenerationRequest, deployment: Deployment, *, is_text: bool
) -> tuple[dict[str, Any], set[str]]:
    sampling = request.sampling
    arguments: dict[str, Any] = {}
    defaults: set[str] = set()
    for name in PLAIN:
        value, is_explicit = getattr(sampling, name), name in sampling.explicit
        if not is_explicit and name in NEUTRAL and value == NEUTRAL[name]:
            continue
        if is_explicit:
            if name not in deployment.supported:
                raise _refused(request, name)
            arguments[name] = value
        elif name in deployment.supported and name not in deployment.unsendable:
            arguments[name] = value
            defaults.add(name)
    _settle_pair(request, deployment, arguments, defaults)
    _extensions(request, deployment, arguments)
    if sampling.logit_bias:
        if "logit_bias" not in deployment.supported:
            raise _refused(request, "logit_bias")
        arguments["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    _limit(sampling, deployment, arguments)
    if sampling.logprobs is not None:
        if is_text or "logprobs" not in deployment.supported:
            raise _refused(request, "logprobs")
        arguments["logprobs"] = True
        if sampling.logprobs:
            arguments["top_logprobs"] = sampling.logprobs
    return arguments, defaults


def _settle_pair(
    request: GenerationRequest, deployment: Deployment, arguments: dict[str, Any], defaults: set[str]
) -> None:
    """A default temperature gives way where the provider would refuse it beside what the caller chose."""
    gives_way = "top_p" in arguments or request.reasoning_effort not in (None, "none")
    if gives_way and deployment.provider in _ONE_OF_TWO and "temperature" in defaults:
        defaults.discard("temperature")
        del arguments["temperature"]


def _extensions(request: GenerationRequest, deployment: Deployment, arguments: dict[str, Any]) -> None:
    taken = _EXTENSIONS.get(deployment.provider, frozenset())
    own: dict[str, Any] = {}
    for name, neutral in NEUTRAL.items():
        if name in PLAIN:
            continue
        value = getattr(request.sampling, name)
        if value == neutral:
            continue
        if name in taken:
            own[name] = list(value) if isinstance(value, tuple) else value
        elif name in request.sampling.explicit:
            raise _refused(request, name)
    if deployment.provider in _IN_EXTRA_BODY:
        if own:
            arguments["extra_body"] = own
    else:
        arguments.update(own)


def _limit(sampling: SamplingParams, deployment: Deployment, arguments: dict[str, Any]) -> None:
    """Providers refuse a limit beyond what the model can write; the contract asks for as much as there is."""
    limit = sampling.max_tokens
    if limit is None:
        return
    if deployment.max_output_tokens is not None:
        limit = min(limit, deployment.max_output_tokens)
    name = "max_tokens" if "max_tokens" in deployment.supported else "max_completion_tokens"
    arguments[name] = limit


def _stops(stops: tuple[str, ...], deployment: Deployment, arguments: dict[str, Any]) -> tuple[str, ...]:
    """Those that are cut here: all of them, or none. The provider's would hide from ours where its text ended."""
    if not stops:
        return ()
    most = _MAX_STOPS.get(deployment.provider, _FEWEST_STOPS)
    are_blank = deployment.provider == "anthropic" and any(not stop.strip() for stop in stops)
    if len(stops) > most or are_blank or "stop" not in deployment.supported:
        return stops
    arguments["stop"] = list(stops)
    return ()


def _set_n(request: GenerationRequest, deployment: Deployment, arguments: dict[str, Any]) -> None:
    # Streams are never asked for several choices: LiteLLM passes on one finish reason for all of them.
    takes_n = "n" in deployment.supported and "n" not in deployment.unsendable
    if request.n > 1 and takes_n and deployment.provider in _TAKES_N:
        arguments["n"] = request.n


def _prompt_arguments(request: GenerationRequest, prompt: Prompt, deployment: Deployment) -> dict[str, Any]:
    if not isinstance(prompt, ChatPrompt):
        return _text_arguments(request, prompt)
    _check_template(request, prompt, deployment)
    arguments: dict[str, Any] = {"messages": own_messages(prompt.messages)}
    if prompt.tools:
        if "tools" not in deployment.supported:
            raise _refused(request, "tools")
        arguments["tools"] = prompt.tools
        for name in ("tool_choice", "parallel_tool_calls"):
            value = getattr(request, name)
            if value is None:
                continue
            if name not in deployment.supported:
                raise _refused(request, name)
            arguments[name] = value
    schema = request.response_format or _json_schema(request, deployment, arguments)
    if schema is not None:
        if "response_format" not in deployment.supported:
            raise _refused(request, "response_format" if request.response_format else "structured_outputs")
        arguments["response_format"] = schema
    if request.reasoning_effort is not None:
        if "reasoning_effort" not in deployment.supported:
            raise _refused(request, "reasoning_effort")
        arguments["reasoning_effort"] = request.reasoning_effort
    return arguments


def _text_arguments(request: GenerationRequest, prompt: TextPrompt | TokenPrompt) -> dict[str, Any]:
    for name in ("response_format", "structured_outputs"):  # no provider's text completions know them
        if getattr(request, name):
            raise _refused(request, name)
    if isinstance(prompt, TextPrompt):
        return {"prompt": prompt.text}
    _check_ids(prompt)
    return {"prompt": list(prompt.token_ids)}


def _check_ids(prompt: TokenPrompt) -> None:
    """Only what is in nobody's vocabulary; the provider knows its own."""
    for token in prompt.token_ids:
        if not 0 <= token < MAX_TOKEN_ID:
            raise InvalidParameter(f"The token id {token} is in no vocabulary", param="prompt")


def _check_template(request: GenerationRequest, prompt: ChatPrompt, deployment: Deployment) -> None:
    """There is no template on this side of a cloud."""
    if prompt.template_kwargs:
        raise _refused(request, "chat_template_kwargs")
    if prompt.continue_final_message and not deployment.prefills:
        raise _refused(request, "continue_final_message")
    if not prompt.add_generation_prompt and not prompt.continue_final_message:
        raise _refused(request, "add_generation_prompt")


def _json_schema(
    request: GenerationRequest, deployment: Deployment, arguments: dict[str, Any]
) -> dict[str, Any] | None:
    """vLLM's form as OpenAI's, where there is such a form."""
    asked = request.structured_outputs
    if not asked:
        return None
    for option in CONSTRAINT_OPTIONS:
        if asked.get(option) not in (None, False):
            # vLLM takes these from its command line, and would drop them in silence.
            raise _refused(request, f"structured_outputs.{option}")
    if deployment.provider == "hosted_vllm":
        arguments["extra_body"] = {"structured_outputs": asked}
        return None
    if asked.get("json_object"):
        return {"type": "json_object"}
    schema = asked.get("json")
    if schema is None:
        raise _refused(request, "structured_outputs")
    if isinstance(schema, str):
        schema = json.loads(schema)
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def _echo(prompt: Prompt) -> str:
    if isinstance(prompt, TextPrompt):
        return prompt.text
    raise UnsupportedParameter(
        "'echo' of token ids is not possible: their text is not known here", param="echo"
    )


def _refused(request: GenerationRequest, name: str) -> UnsupportedParameter:
    return UnsupportedParameter(
        f"The model {request.model!r} does not support {name!r} with this value", param=name
    )
