"""From our request to the body an OpenAI-compatible server takes, and what is left for us to do with its answer.

Streamed upstream only what the caller streams, or what must end before the server would end it (stops it is not told
of). A whole answer is one JSON document instead of one event per token, made and read once: the server encodes and we
decode one object instead of hundreds, and nobody would have read the pieces.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import msgspec

from backends.errors import InvalidGrammar, InvalidParameter, UnsupportedParameter
from backends.gbnf.nodes import BadGrammar, Unsatisfiable
from backends.gbnf.shape import shape_of
from backends.gbnf.syntax import parse
from backends.pictures import own_messages
from backends.types import ChatPrompt, GenerationRequest, SamplingParams, TextPrompt, TokenPrompt
from backends.vllm.calls import told_tools
from backends.vllm.constraints import translated
from backends.vllm.dialect import OPENAI_MAX_STOPS, Dialect
from backends.vllm.schemas import unenforced, unenforced_in_calls

CHAT_PATH: Final = "/v1/chat/completions"
TEXT_PATH: Final = "/v1/completions"
INJECTED: Final = {"enable_thinking": False}
"""The template variable that the gateway sets by itself (`LLM_VLLM_DISABLE_THINKING`)."""

Quirk = Literal["no_template_kwargs", "no_chunk_counts", "no_usage_option", "max_completion_tokens"]
"""What one server turned out not to take, of the fields that no caller asked for."""

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One call of the server. Its choice `j` of prompt `p` stands for our choices `p · n + j·copies …`."""

    path: str
    body: dict[str, Any]
    stream: bool
    num_prompts: int
    n: int
    """Our choices per prompt."""
    copies: int = 1
    """How many of our choices one of the server's stands for: greedy ones are all equal, and vLLM refuses to make them
    more than once."""
    stops: tuple[str, ...] = ()
    """Cut here, whether or not the server cuts too."""
    stops_unknown: bool = False
    """The server has not been told of the stops: once all choices are cut the call is closed."""
    counts_here: bool = False
    """The server counts the tokens of one of several choices only."""
    min_tokens: int = 0
    """Tokens of a choice before `stops` count."""
    num_top: int | None = None
    """Alternatives per token; None: no log probabilities."""
    echo: tuple[str, ...] = ()
    """Texts of the prompts, put before the answers here. Empty: the server echoes, or nobody does."""
    echoed_chars: tuple[int, ...] = ()
    """Of what the server echoes itself, per prompt: no stop is looked for in it."""

    @property
    def is_chat(self) -> bool:
        return self.path == CHAT_PATH

    def encode(self) -> bytes:
        """Raises: InvalidParameter for a value that JSON or UTF-8 cannot hold."""
        try:
            return _encode(self.body)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidParameter(f"The request holds a value that cannot be passed on: {error}") from None

    @property
    def limit(self) -> int | None:
        """The most tokens of a choice, as the server is told."""
        limit: int | None = self.body.get(self._limit_name)
        return limit

    def with_limit(self, limit: int) -> Plan:
        """The same call with a smaller one."""
        return replace(self, body={**self.body, self._limit_name: limit})

    @property
    def _limit_name(self) -> str:
        return "max_completion_tokens" if "max_completion_tokens" in self.body else "max_tokens"


def plan_of(
    request: GenerationRequest,
    served_name: str,
    dialect: Dialect,
    *,
    context_length: int | None,
    quirks: Collection[Quirk] = (),
) -> Plan:
    """What to send. `context_length`: the model's on that server, where it says so.

    Raises: UnsupportedParameter for what such a server cannot honour, InvalidParameter.
    """
    sampling = request.sampling
    _refuse(request, dialect)
    if dialect.drops_keywords:
        _refuse_unenforced(request)
    is_chat = isinstance(request.prompts[0], ChatPrompt)
    body: dict[str, Any] = {"model": served_name}
    body.update(_chat(request, quirks) if is_chat else _text(request))
    if dialect.drops_keywords and "tools" in body:
        body["tools"] = told_tools(request, body["tools"])
    is_greedy = sampling.temperature == 0 or sampling.top_p == 0
    body.update(_sampling(sampling, dialect, is_greedy=is_greedy))
    if request.structured_outputs is not None:
        body.update(translated(request.structured_outputs, dialect))
    limit = _max_tokens(sampling.max_tokens, context_length, is_chat=is_chat)
    if limit is not None:
        name = "max_completion_tokens" if is_chat and "max_completion_tokens" in quirks else "max_tokens"
        body[name] = limit
    copies = request.n if is_greedy else 1
    if request.n > copies:
        body["n"] = request.n
    tell_stops = len(sampling.stop) <= OPENAI_MAX_STOPS and not (
        sampling.stop and request.stream and dialect.loses_held_text
    )
    if sampling.stop and tell_stops:
        body["stop"] = list(sampling.stop)
    counts_here = dialect.counts_first_only and request.n > copies
    stream = request.stream or not tell_stops or counts_here
    if stream:
        body["stream"] = True
        options: dict[str, Any] = {} if "no_usage_option" in quirks else {"include_usage": True}
        if not tell_stops and dialect.counts_per_chunk and "no_chunk_counts" not in quirks:
            options["continuous_usage_stats"] = True
            if sampling.min_tokens:
                body["return_token_ids"] = True
        if options:
            body["stream_options"] = options
    if sampling.logprobs is not None:
        num_top = max(sampling.logprobs, dialect.least_logprobs)
        body |= {"logprobs": True, "top_logprobs": num_top} if is_chat else {"logprobs": num_top}
    plan = Plan(
        path=CHAT_PATH if is_chat else TEXT_PATH,
        body=body,
        stream=stream,
        num_prompts=len(request.prompts),
        n=request.n,
        copies=copies,
        # With `min_tokens` only the server knows which token is which; where it knows the stops it is left to it.
        stops=() if tell_stops and sampling.min_tokens else sampling.stop,
        stops_unknown=not tell_stops,
        counts_here=counts_here,
        min_tokens=sampling.min_tokens,
        num_top=sampling.logprobs,
    )
    return _with_echo(plan, request) if request.echo else plan


def _refuse(request: GenerationRequest, dialect: Dialect) -> None:
    off = SamplingParams()
    for name in dialect.refuses:
        if getattr(request.sampling, name) != getattr(off, name):
            raise UnsupportedParameter(f"The server cannot honour {name!r}", param=name)
    if request.best_of is not None and request.best_of > request.n:
        raise UnsupportedParameter("The server cannot honour 'best_of'", param="best_of")
    for prompt in request.prompts:
        if isinstance(prompt, TokenPrompt) and any(i < 0 for i in prompt.token_ids):
            raise InvalidParameter("A token id is not negative", param="prompt")


def _refuse_unenforced(request: GenerationRequest) -> None:
    """Raises: InvalidGrammar for a schema that the server would take and not enforce as a whole."""
    asked: list[tuple[str, Any]] = []
    form, outputs = request.response_format, request.structured_outputs
    for place, grammar in _grammars(request):
        if _is_unsatisfiable(grammar):
            raise InvalidGrammar(f"{place}: nothing satisfies it", param=place)
    if form is not None and form["type"] == "json_schema":
        asked.append(("response_format.json_schema.schema", form["json_schema"].get("schema")))
    if outputs is not None and "json" in outputs:
        asked.append(("structured_outputs.json", outputs["json"]))
    # Beside tools its compiler gets the schema as it gets those of calls.
    check = unenforced_in_calls if _may_call(request) else unenforced
    for place, schema in asked:
        if (keyword := check(schema)) is not None:
            raise InvalidGrammar(
                f"{place}: vLLM would not enforce {keyword!r} where it stands here", param=place
            )


def _may_call(request: GenerationRequest) -> bool:
    prompt = request.prompts[0]
    return isinstance(prompt, ChatPrompt) and bool(prompt.tools) and request.tool_choice != "none"


def _grammars(request: GenerationRequest) -> list[tuple[str, str]]:
    """Where they stand, and their texts."""
    grammars = [
        ("grammar", request.sampling.grammar),
        ("structured_outputs.grammar", (request.structured_outputs or {}).get("grammar")),
    ]
    return [(place, text) for place, text in grammars if text is not None]


def grammar_chars(request: GenerationRequest) -> int:
    """How much of its grammars `plan_of` has to read."""
    return sum(len(text) for _, text in _grammars(request))


def _is_unsatisfiable(grammar: str) -> bool:
    try:
        shape_of(parse(grammar))
    except Unsatisfiable:
        return True
    except BadGrammar:
        return False  # the server may read more than is read here
    return False


def _chat(request: GenerationRequest, quirks: Collection[Quirk]) -> dict[str, Any]:
    (prompt,) = request.prompts
    assert isinstance(prompt, ChatPrompt)
    body: dict[str, Any] = {"messages": own_messages(prompt.messages)}
    if prompt.tools:
        body["tools"] = prompt.tools
        body |= _given(tool_choice=request.tool_choice, parallel_tool_calls=request.parallel_tool_calls)
    body |= _given(
        response_format=request.response_format,
        reasoning_effort=request.reasoning_effort,
    )
    kwargs = prompt.template_kwargs
    if kwargs and not ("no_template_kwargs" in quirks and kwargs == INJECTED):
        body["chat_template_kwargs"] = kwargs
    if prompt.continue_final_message:
        body["continue_final_message"] = True
    if prompt.continue_final_message or not prompt.add_generation_prompt:
        body["add_generation_prompt"] = False
    return body


def _text(request: GenerationRequest) -> dict[str, Any]:
    prompts: list[str | list[int]] = []
    for prompt in request.prompts:
        assert not isinstance(prompt, ChatPrompt)
        prompts.append(prompt.text if isinstance(prompt, TextPrompt) else prompt.token_ids)
    if len({type(prompt) for prompt in prompts}) > 1:
        raise InvalidParameter("Prompts of text and of token ids cannot be mixed", param="prompt")
    return {
        "prompt": prompts if len(prompts) > 1 else prompts[0],
        **_given(
            suffix=request.suffix,
            response_format=request.response_format,
        ),
    }


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _sampling(sampling: SamplingParams, dialect: Dialect, *, is_greedy: bool) -> dict[str, Any]:
    """OpenAI's own fields always, whatever their value: the server's defaults are not the contract's. The extensions
    where they are set, or where the dialect knows how they are switched off."""
    body: dict[str, Any] = {
        # 0 keeps the single best token, which vLLM refuses to hear as a `top_p`.
        "temperature": 0.0 if is_greedy else sampling.temperature,
        "top_p": 1.0 if is_greedy else sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        **dialect.off,
    }
    off = SamplingParams()
    for name in ("top_k", "min_p", "typical_p", "repetition_penalty", "min_tokens", "ignore_eos"):
        value = getattr(sampling, name)
        if value != getattr(off, name):
            body[dialect.names.get(name, name)] = value
    if sampling.stop_token_ids:
        body["stop_token_ids"] = list(sampling.stop_token_ids)
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    if sampling.grammar is not None and dialect.grammar is not None:
        outer, _, inner = dialect.grammar.partition(".")
        body[outer] = {inner: sampling.grammar} if inner else sampling.grammar
    return body


def _max_tokens(asked: int | None, context_length: int | None, *, is_chat: bool) -> int | None:
    """vLLM refuses more than the context, and without a limit ends a text completion after 16 tokens."""
    if context_length is None:
        return asked
    if asked is None:
        return None if is_chat else context_length
    return min(asked, context_length)


def _with_echo(plan: Plan, request: GenerationRequest) -> Plan:
    """Text is echoed here, which works with every server. What only the server has, the text of token ids and the
    prompt's log probabilities, it must echo itself."""
    texts = [prompt.text for prompt in request.prompts if isinstance(prompt, TextPrompt)]
    if len(texts) == plan.num_prompts and plan.num_top is None:
        return replace(plan, echo=tuple(texts))
    if len(texts) < plan.num_prompts and plan.stops_unknown:
        raise UnsupportedParameter(
            f"With 'echo' of token ids the server takes up to {OPENAI_MAX_STOPS} stop strings", param="stop"
        )
    is_text = len(texts) == plan.num_prompts
    return replace(
        plan,
        body={**plan.body, "echo": True},
        stops=plan.stops if is_text else (),
        echoed_chars=tuple(map(len, texts)) if is_text else (),
    )
