"""What travels between the wire and an engine: requests one way, events the other.

Everything here is an immutable msgspec struct, so that it can cross a process boundary as it is
(`backends.runner`) and so that no layer can change what another one accepted. Knows no HTTP.

Order of events of one accepted request:

    Started, (delta | ChoiceFinished)*, Finished            or, instead of the rest, a raised error

A delta is a `TextDelta`, `ReasoningDelta` or `ToolCallDelta`. Exactly one `ChoiceFinished` per choice, after its last
delta; exactly one terminal `Finished`.
An error ends the iterator by being raised (`backends.errors`); nothing follows it.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from backends.provenance import Provenance

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
"""What may reach the wire: a stop string, stop token or end of turn (`stop`); `max_tokens` or the context's end
(`length`); the model called tools; the provider cut the text. An abort or a failure is never a finish reason."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to choose tokens, already resolved: request over card over the service's defaults.

    Ranges are checked before this object is made; engines may rely on them.
    """

    temperature: float = 0.7
    """0–2; 0 is greedy."""
    top_p: float = 1.0
    """0–1; 1 keeps everything. 0 keeps the single best token."""
    top_k: int = 0
    """>= 0; 0 keeps everything."""
    min_p: float = 0.0
    """0–1, relative to the best token's probability."""
    typical_p: float = 1.0
    """0–1; 1 keeps everything."""
    presence_penalty: float = 0.0
    """−2…2, over generated tokens only."""
    frequency_penalty: float = 0.0
    """−2…2, over generated tokens only."""
    repetition_penalty: float = 1.0
    """> 0, over prompt and generated tokens; 1 is off."""
    seed: int | None = None
    """Any int64; None draws one per request."""
    logit_bias: dict[int, float] = {}
    """Token id -> −100…100. Ids are checked by whoever knows the vocabulary."""
    max_tokens: int | None = None
    """Most tokens per choice, 1–1,000,000; None runs to a stop or to the context's end."""
    min_tokens: int = 0
    """No end of turn and no stop before this many tokens."""
    stop: tuple[str, ...] = ()
    """Up to 16 non-empty strings. The text is cut at the match that starts earliest."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    """None: off. Otherwise how many alternatives each token reports, 0–20."""
    grammar: str | None = None
    """GBNF text the whole output must match, or None."""
    explicit: frozenset[str] = frozenset()
    """Names of the fields above that the caller himself set (not the card, not a default)."""


class ChatPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="chat", omit_defaults=True):
    """A conversation, to be rendered by the model's own chat template.

    `messages` are plain dicts, already normalised: `content` is a string (text parts joined by a newline; None
    became ""), or, only where the model takes pictures and there is one, a list of parts: `text`, and `image_url` whose
    `url` is a data URL in base64 of a picture that was looked at; `tool_calls[].function.arguments` is a string of
    JSON; keys whose value was null are absent.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: dict[str, Any] = {}


class TextPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    """Raw text, tokenised as it stands."""

    text: str


class TokenPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="tokens"):
    """Token ids, used as they are after a check against the vocabulary."""

    token_ids: list[int]


Prompt = ChatPrompt | TextPrompt | TokenPrompt


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One accepted request. Choice index = prompt · n + i.

    `stream=False` tells the backend that nobody reads before the end, so it may hold events back and hand them over
    in one batch.
    """

    request_id: str
    model: str
    """The card's id (never an alias)."""
    prompts: tuple[Prompt, ...]
    sampling: SamplingParams
    n: int = 1
    """1–16 choices per prompt."""
    stream: bool = False
    echo: bool = False
    """Put the prompt's text before the generated text (legacy completions)."""
    tool_choice: str | dict[str, Any] | None = None
    """`auto`, `none`, `required` or `{"type": "function", "function": {"name": …}}`; None is `auto` where the
    prompt has tools."""
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    """OpenAI's form, `json_object` or `json_schema`; None is free text."""
    structured_outputs: dict[str, Any] | None = None
    """vLLM's form: exactly one of `json`, `regex`, `choice`, `grammar`, beside options."""
    reasoning_effort: str | None = None
    suffix: str | None = None
    """Text after the answer (legacy completions)."""
    best_of: int | None = None
    """Candidates per prompt, more than `n`; None is `n`."""
    wants_provenance: bool = False
    """`Finished` is to say how the answer was made. No part of the question: nothing of it reaches an engine."""


CONSTRAINT_OPTIONS: Final = (
    "disable_fallback",
    "disable_any_whitespace",
    "disable_additional_properties",
    "whitespace_pattern",
)
"""Members of `structured_outputs` that constrain nothing by themselves; all but the first are about JSON."""

Feature = Literal[
    "tools", "structured_outputs", "reasoning_effort", "suffix", "best_of", "echo_logprobs", "vision"
]
"""What a backend takes beyond text and `SamplingParams`, by the field of `GenerationRequest`; `echo_logprobs` is
`echo` with `logprobs`, `vision` are pictures in messages. Whoever offers a backend refuses the others by name."""


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One token with its natural-log probability (<= 0) and its bytes. `bytes` may be part of a character."""

    token: bytes
    logprob: float


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """The sampled token and the best alternatives in falling order (as many as asked for)."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...] = ()


class Started(msgspec.Struct, frozen=True, array_like=True, tag="b", gc=False):
    """The first sequence of the request got its slot. `queue_ms`: accepted by the backend -> now."""

    queue_ms: float
    prompt_tokens: int


class TextDelta(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    """A non-empty piece of text of one choice (or text held back while a token waits for its other bytes:
    then the logprobs of several tokens come with one delta). `num_tokens`: tokens sampled since the last delta."""

    index: int
    text: str
    num_tokens: int = 1
    logprobs: tuple[TokenLogprobs, ...] | None = None


class ReasoningDelta(msgspec.Struct, frozen=True, array_like=True, tag="r", gc=False):
    """A non-empty piece of what the model thinks before it answers; kept apart from the answer's text."""

    index: int
    text: str
    num_tokens: int = 1


class ToolCallDelta(msgspec.Struct, frozen=True, array_like=True, tag="k", gc=False):
    """A piece of one tool call. The first of a call has `id` and `name`, the others neither; `arguments` are a piece of
    JSON text, "" at most in the first."""

    index: int
    call_index: int
    """0-based, in order of appearance within the choice."""
    arguments: str
    id: str | None = None
    name: str | None = None
    num_tokens: int = 1


class ChoiceFinished(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """One choice ended. `logprobs`: those of tokens that brought no text of their own (a stop, a held-back tail)."""

    index: int
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    """The stop string or stop token id that matched; None for the model's own end of turn."""
    logprobs: tuple[TokenLogprobs, ...] | None = None


class Usage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tokens of the whole request: each prompt counted once, whatever `n`. `cached_tokens`: prompt tokens that
    were not computed again."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    """Of the completion tokens, those that were reasoning; 0 where the engine does not say."""
    is_estimated: bool = False
    """The server did not say, and the tokens were counted here."""
    cost_usd: float | None = None


class Finished(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    """The terminal event. Times in ms: waiting for a slot, first prefill step -> first token, first -> last token."""

    usage: Usage
    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    provenance: Provenance | None = None
    """Where the request wants it."""


Event = Started | TextDelta | ReasoningDelta | ToolCallDelta | ChoiceFinished | Finished

EventBatch = list[Event]
"""What `Backend.generate` yields: every event that was ready at that moment, never empty. Batches rather than single
events, because a reader that is slower than the engine then catches up with one write instead of many."""


class LoadProgress(msgspec.Struct, frozen=True, array_like=True):
    """One step of loading a model. `phase`: "waiting", "fetching", "loading", "ready"."""

    phase: str
    done_bytes: int = 0
    total_bytes: int = 0

    @property
    def fraction(self) -> float:
        """0–1; 1 when ready, 0 while the size is unknown."""
        if self.phase == "ready":
            return 1.0
        return min(1.0, self.done_bytes / self.total_bytes) if self.total_bytes else 0.0


ModelState = Literal["unloaded", "loading", "loaded", "unloading", "failed"]


class ModelStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend says of one model it holds or held. `context_length` in tokens, None until known."""

    id: str
    state: ModelState
    context_length: int | None = None
    message: str | None = None
    running: int = 0
    waiting: int = 0


class BackendHealth(msgspec.Struct, frozen=True, kw_only=True):
    """`healthy`: the runner answers and its `preload` cards are loaded (or were unloaded on request)."""

    healthy: bool
    message: str | None = None
    models: tuple[ModelStatus, ...] = ()


class OfferedModel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model that a backend serves without a card, as far as the backend knows it."""

    id: str
    """Also its name on the backend."""
    context_length: int | None = None
    capabilities: tuple[str, ...] = ()
    """Of `models.card.Capability`."""
    owned_by: str = ""
    price: tuple[float, float] | None = None
    """US dollars for a million tokens of the prompt and of the answer."""


class Offers(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a backend serves without a card. `prefixes`: besides, any name that begins with one of them and a slash."""

    models: tuple[OfferedModel, ...] = ()
    prefixes: tuple[str, ...] = ()
