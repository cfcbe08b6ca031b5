"""Every setting of the service, and the only reader of the environment.

Two trees, for two readers:

- `Settings`: how the service behaves towards its clients and where things are. Variables `LLM_…`.
- `Args`: how the processes are cut and the engines sized. `args:` in `bentofile.yaml`, which
  `bentoml.use_arguments` hands over (`service.py` calls it; nothing here imports bentoml).

What wins is written once, in docs/configuration.md, whose tables `python settings.py` prints.
"""

from __future__ import annotations

import difflib
import functools
import ipaddress
import json
import logging
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from models.card import BACKEND_KINDS, BackendKind

PREFIX: Final = "LLM_"
ARGS_PREFIX: Final = "LLM_ARGS__"

_log = logging.getLogger(__name__)

# What Kubernetes puts into every container for a service whose name begins with "llm", and Docker for a link.
_INJECTED: Final = re.compile(
    r"LLM_(?:[A-Z0-9_]+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?"
    r"|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?)"
)


class SettingsError(Exception):
    """The service cannot start like this. The message is for the operator: one problem per line, each with
    the key, its value (masked where it is secret) and what is allowed. Not a ValueError: pydantic lets it
    pass unwrapped."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def _knob(default: Any, allowed: str, *, unit: str | None = None, **limits: Any) -> Any:
    """A field with the words that its error message and its row in the documentation use."""
    return Field(default=default, json_schema_extra={"allowed": allowed, "unit": unit or ""}, **limits)


def _items(value: object) -> object:
    """Comma-separated text as a tuple; blanks around an item and empty items do not count."""
    if isinstance(value, str):
        return tuple(item for item in (part.strip() for part in value.split(",")) if item)
    return value


def _tokens(value: object) -> object:
    tokens = _items(value)
    if isinstance(value, str) and not tokens:
        # Set, but to nothing usable: taking it for "no authentication" would open the service.
        raise ValueError("it holds no token")
    if isinstance(tokens, tuple) and any(re.search(r"[\s\x00-\x1f\x7f]", str(token)) for token in tokens):
        raise ValueError("a token holds a blank")
    return tokens


def _secret(value: object) -> object:
    """Without the line break that a secret read from a file often ends in."""
    if isinstance(value, str):
        value = value.strip()
        if not value or re.search(r"[\s\x00-\x1f\x7f]", value):
            raise ValueError("it is blank or holds a blank")
    return value


def _redis_url(value: object) -> object:
    if isinstance(value, str):
        parts = urlsplit(value.strip())
        if parts.scheme not in ("redis", "rediss") or not parts.hostname:
            raise ValueError("it is not such an address")
        _ = parts.port  # raises ValueError for a port that is none
    return _secret(value)


def _budgets(value: object) -> object:
    """`name=dollars` pairs as a mapping."""
    if not isinstance(value, str):
        return value
    found: dict[str, float] = {}
    for item in filter(None, (part.strip() for part in value.split(","))):
        name, equals, amount = (part.strip() for part in item.partition("="))
        if not equals or not re.fullmatch(r"\*|[A-Za-z0-9][A-Za-z0-9._@:-]{0,63}", name):
            raise ValueError(f"{item!r} is no pair name=amount")
        if name in found:
            raise ValueError(f"{name!r} stands there twice")
        found[name] = float(amount)
        if not 0 <= found[name] <= 1e9:
            raise ValueError(f"{amount!r} is no amount")
    if not found:
        raise ValueError("it holds no budget")
    return found


def _redis_prefix(value: object) -> object:
    if isinstance(value, str) and not re.fullmatch(r"[\x21-\x7e]{1,64}", value):
        raise ValueError("it is no such text")
    return value


def _folders(value: object) -> object:
    if isinstance(value, str):
        parts = (part.strip() for part in re.split(rf"[,{re.escape(os.pathsep)}]", value))
        return tuple(_path(part) for part in parts if part)
    return value


def _path(value: object) -> object:
    return Path(os.path.abspath(Path(value).expanduser())) if isinstance(value, str) else value


def _networks(value: object) -> object:
    items = _items(value)
    return (
        tuple(str(ipaddress.ip_network(item, strict=False)) for item in items)
        if isinstance(items, tuple)
        else items
    )


def _origins(value: object) -> object:
    items = _items(value)
    for item in items if isinstance(items, tuple) else ():
        parts = urlsplit(item)
        if item != "*" and (not parts.scheme or not parts.netloc or parts.path or parts.query):
            raise ValueError(f"{item!r} is not an origin")
    return items


def _url(*schemes: str) -> Callable[[object], object]:
    def check(value: object) -> object:
        if isinstance(value, str):
            parts = urlsplit(value)
            place = parts.path if parts.scheme == "file" else parts.hostname
            if parts.scheme not in schemes or not place or "@" in parts.netloc:
                raise ValueError("it is not such an address")
            _ = parts.port  # raises ValueError for a port that is none
            return value.rstrip("/")
        return value

    return check


def _urls(*schemes: str) -> Callable[[object], object]:
    check = _url(*schemes)

    def check_all(value: object) -> object:
        items = _items(value)
        if not isinstance(items, tuple):
            return items
        if not items:
            raise ValueError("it holds no address")
        return tuple(check(item) for item in items)

    return check_all


_Secret = Annotated[SecretStr, BeforeValidator(_secret)]
_Items = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_items)]
_HttpUrl = Annotated[str, BeforeValidator(_url("http", "https"))]
_RunnerUrl = Annotated[str, BeforeValidator(_url("http", "https", "file"))]
_KINDS: Final = ", ".join(BACKEND_KINDS)


class Settings(BaseSettings):
    """What `LLM_…` variables say. An empty variable counts as unset. Made by `load_settings`."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
    )

    default_backend: BackendKind | None = _knob(None, f"one of {_KINDS}")
    """Serves requests that name no backend and whose model has no card. Required to serve; there is no
    default."""
    default_model: str | None = _knob(None, "a model's id or alias", max_length=256)
    """Model of a `/v1/completions` request without one; unset takes the default backend's first."""
    enabled_backends: Annotated[tuple[BackendKind, ...] | None, NoDecode, BeforeValidator(_items)] = _knob(
        None, f"comma-separated, of {_KINDS}"
    )
    """Exactly these backends are served. Unset: the default one, those with an address of their own and those
    with `enabled: true` under `args:`."""

    api_tokens: Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(_tokens)] = _knob(
        (), "comma-separated tokens without blanks"
    )
    """Bearer tokens that clients must show one of. Unset, with no file either: everybody may."""
    api_tokens_file: Annotated[Path | None, BeforeValidator(_path)] = _knob(None, "a readable file")
    """More tokens, one a line; read again when it changes."""
    principals_file: Annotated[Path | None, BeforeValidator(_path)] = _knob(None, "a readable file")
    """Named callers with their tokens, limits, budgets and privacy (docs/policy.md), YAML or JSON; read again when it
    changes. Its tokens count besides those above."""
    metrics_auth: bool = _knob(False, "true or false")
    """Whether `/metrics` needs a token too."""
    runner_token: _Secret | None = _knob(None, "text without blanks")
    """What gateway and runner show each other. Required where a runner is reached over the network."""

    rate_limit_rps: float = _knob(10.0, "a number >= 0; 0 is no limit", unit="requests/s", ge=0)
    """Requests each client may send in the long run."""
    rate_limit_burst: int = _knob(20, "a whole number >= 1", unit="requests", ge=1)
    """Requests each client may send at once."""
    max_concurrent_completions: int = _knob(10, "a whole number >= 1", unit="requests", ge=1)
    """Completions that run at once in the whole service; the next ones wait or get 503. Takes the place of
    `gateway.max_concurrency`."""
    queue_size: int = _knob(0, "a whole number >= 0", unit="requests", ge=0)
    """Completions that may wait for one of those places; 0: none. Takes the place of `gateway.queue_size`."""
    queue_timeout_s: float = _knob(0.0, "a number >= 0", unit="s", ge=0)
    """Longest wait for a place; 0: none waits."""
    max_concurrent_embeddings: int = _knob(128, "a whole number >= 1", unit="requests", ge=1)
    """Embedding, rerank and score requests that run at once in the whole service; the next ones get 503. They take no
    completion's place."""
    redis_url: Annotated[SecretStr, BeforeValidator(_redis_url)] | None = _knob(
        None, "redis://… or rediss://…"
    )
    """Where several replicas share rate limits, places of completions and budgets. Unset: each replica has its own."""
    redis_prefix: Annotated[str, BeforeValidator(_redis_prefix)] = _knob(
        "llm-inference:", "1-64 visible ASCII characters"
    )
    """Beginning of every key there. Services that must not share need different ones."""
    budgets: Annotated[dict[str, float], NoDecode, BeforeValidator(_budgets)] = _knob(
        {}, "comma-separated name=amount, * for everybody else", unit="US dollars a day"
    )
    """What each caller may spend on clouds in a day of UTC; then requests for them get 429 (docs/policy.md). Unset:
    only what the principals file says."""
    state_dir: Annotated[Path | None, BeforeValidator(_path)] = _knob(None, "a folder")
    """Where spending is kept over a restart, unless in Redis. Unset: `llm-inference` in `$XDG_STATE_HOME` or
    `~/.local/state`."""
    trusted_proxies: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_networks)] = _knob(
        (), "comma-separated addresses or CIDRs"
    )
    """Peers whose `X-Forwarded-For` says who the client is."""
    cors_origins: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_origins)] = _knob(
        (), "comma-separated origins (scheme://host[:port]), or *"
    )
    """Browser pages that may call the API. Unset: CORS is off."""
    max_body_bytes: int = _knob(16 * 1024 * 1024, "a whole number >= 1024", unit="bytes", ge=1024)
    """Largest request body."""

    request_timeout_s: float = _knob(300.0, "a number > 0, below gateway.timeout", unit="s", gt=0)
    """Longest time for one request, received to last byte."""
    first_token_timeout_s: float | None = _knob(None, "a number > 0", unit="s", gt=0)
    """Longest wait for the first token; unset: only the request's time counts."""
    idle_timeout_s: float | None = _knob(None, "a number > 0", unit="s", gt=0)
    """Longest gap between two tokens; unset: only the request's time counts."""
    load_wait_s: float = _knob(60.0, "a number >= 0", unit="s", ge=0)
    """How long a request waits for its model to load before it gets 503."""
    drain_timeout_s: float = _knob(25.0, "a number >= 0", unit="s", ge=0)
    """How long running requests may go on after SIGTERM. Keep it below the supervisor's own patience."""

    model_dirs: Annotated[tuple[Path, ...], NoDecode, BeforeValidator(_folders)] = _knob(
        (), f"existing folders, separated by commas or {os.pathsep!r}"
    )
    """Folders whose GGUF files are served under their relative path."""
    catalogue: Annotated[Path | None, BeforeValidator(_path)] = _knob(None, "a readable file")
    """Catalogue that takes the shipped one's place (docs/models.md)."""
    hub_allow: _Items = _knob((), "comma-separated patterns such as meta-llama/*")
    """Hub ids that may be fetched by naming them as the model. Unset: none."""

    llamacpp_url: _RunnerUrl | None = _knob(None, "http://host:port or file:///path.sock")
    """A llama.cpp runner that runs elsewhere; none is started here then. Takes the place of
    `llamacpp.url`."""
    vllm_base_url: Annotated[tuple[str, ...] | None, NoDecode, BeforeValidator(_urls("http", "https"))] = (
        _knob(None, "comma-separated http(s)://host:port/v1")
    )
    """vLLM servers, or others that speak OpenAI's API, that run elsewhere with the same models; none is started here
    then."""
    vllm_api_key: _Secret | None = _knob(None, "text without blanks")
    """The key those servers ask for."""
    vllm_disable_thinking: bool = _knob(True, "true or false")
    """Whether vLLM chat requests get `enable_thinking: false` unless they say otherwise themselves."""

    log_level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR"],
        BeforeValidator(lambda value: value.strip().upper() if isinstance(value, str) else value),
    ] = _knob("INFO", "DEBUG, INFO, WARNING or ERROR")
    """Least severe messages that are logged."""
    log_format: Literal["text", "json"] = _knob("text", "text or json")
    """How each log line is written; the line of a finished request is always JSON."""
    strict_env: bool = _knob(False, "true or false")
    """Whether an unknown `LLM_…` variable stops the start instead of being warned about."""

    def require_default_backend(self) -> BackendKind:
        """The default backend, for the process that is about to serve. A build or an import never asks.

        Raises: SettingsError naming the allowed values.
        """
        if self.default_backend is None:
            raise SettingsError(
                f"LLM_DEFAULT_BACKEND is not set and has no default; set it to one of {_KINDS}"
            )
        return self.default_backend

    def backends_to_serve(self, args: Args) -> tuple[BackendKind, ...]:
        """The enabled backends, the default one first. Empty where nothing names any (a build).

        Raises: SettingsError if the default backend is switched off.
        """
        kinds: list[BackendKind]
        if self.enabled_backends is not None:
            kinds = [kind for kind in BACKEND_KINDS if kind in self.enabled_backends]
            off = "LLM_ENABLED_BACKENDS does not name it"
        else:
            elsewhere = {"llamacpp": self.llamacpp_url or args.llamacpp.url, "vllm": self.vllm_base_url}
            kinds = [
                kind
                for kind in BACKEND_KINDS
                if args.section(kind).is_enabled(
                    default=kind == self.default_backend or bool(elsewhere.get(kind))
                )
            ]
            off = f"args say {self.default_backend}.enabled: false"
        if self.default_backend is not None:
            if self.default_backend not in kinds:
                raise SettingsError(f"LLM_DEFAULT_BACKEND is {self.default_backend!r}, but {off}")
            kinds.sort(key=lambda kind: kind != self.default_backend)
        return tuple(kinds)

    @property
    def api_token_bytes(self) -> tuple[bytes, ...]:
        """The tokens in clear, as they are compared. Keep them out of logs."""
        return tuple(token.get_secret_value().encode() for token in self.api_tokens)

    @property
    def needs_token(self) -> bool:
        """Whether callers must show one."""
        return bool(self.api_tokens or self.api_tokens_file or self.principals_file)

    @property
    def state_folder(self) -> Path:
        """`state_dir`, or where a user's programs keep their state."""
        if self.state_dir is not None:
            return self.state_dir
        home = os.environ.get("XDG_STATE_HOME", "")
        base = Path(home) if os.path.isabs(home) else Path("~/.local/state").expanduser()
        return base / "llm-inference"


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("it is not a number")  # noqa: TRY004 - pydantic turns only a ValueError into a problem
    return value


_Int = Annotated[int, BeforeValidator(_no_bool)]
_Count = Annotated[int, Field(ge=1), BeforeValidator(_no_bool)]
_Float = Annotated[float, BeforeValidator(_no_bool)]


def _words_of(value: object) -> object:
    return tuple(shlex.split(value)) if isinstance(value, str) else value


_Words = Annotated[tuple[str, ...], BeforeValidator(_words_of)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class Resources(_Section):
    """What a service of the Bento asks its platform for. On a bare host they only steer GPU assignment."""

    cpu: float | str | None = _knob(None, "cores: a number > 0, or text such as 500m")
    """Cores."""
    memory: float | str | None = _knob(None, "GiB: a number > 0, or text such as 512Mi")
    """Memory."""
    gpu: _Int | None = _knob(None, "a whole number >= 1", ge=1)
    """GPUs per worker."""
    gpu_type: str | None = _knob(None, "a name of the platform")
    """Kind of GPU, for platforms that offer several."""


class Batch(_Section):
    """Adaptive batching of calls that take lists (embeddings). Never of chat."""

    max_batch_size: _Int = _knob(32, "a whole number >= 1", unit="inputs", ge=1)
    """Inputs in one batch; 1 computes each by itself."""
    max_latency_ms: _Int = _knob(30_000, "a whole number >= 1", unit="ms", ge=1)
    """What would wait longer for its batch is refused (503), not delayed: ten times a full batch at the least."""


class _Process(_Section):
    """What every service of the Bento has."""

    workers: _Count | Literal["cpu_count"] = _knob(1, "a whole number >= 1, or cpu_count", unit="processes")
    """Processes."""
    timeout: _Float = _knob(600.0, "a number > 0, above LLM_REQUEST_TIMEOUT_S", unit="s", gt=0, le=86_400)
    """The longest that a request may take whatever else went wrong, loads aside. Of a runner elsewhere: above
    LLM_REQUEST_TIMEOUT_S of its gateways."""
    resources: Resources = _knob(Resources(), "a section")
    """What the service asks its platform for."""

    def bento(self) -> dict[str, Any]:
        """The arguments of `@bentoml.service` for this section.

        The request log, metrics and traces are this service's own, and a runner's connections must not be closed under
        running requests every 100 calls or 300 s, as BentoML does by default.
        """
        options: dict[str, Any] = {
            "workers": self.workers,
            "traffic": {"timeout": self.timeout},
            "tracing": {"excluded_urls": [".*"]},
            "logging": {"access": {"enabled": False}},
            "metrics": {"enabled": False},
            "runner_connection": {"max_requests": 2**31 - 1, "max_age": 1e9},
        }
        resources = self.resources.model_dump(exclude_none=True)
        return {**options, "resources": resources} if resources else options


class GatewayArgs(_Process):
    """The process that speaks HTTP with clients."""

    max_concurrency: _Int = _knob(10, "a whole number >= 1", unit="requests", ge=1)
    """Completions that run at once in the whole service, over all workers."""
    queue_size: _Int = _knob(0, "a whole number >= 0", unit="requests", ge=0)
    """Completions that may wait for one of those places."""
    url: _HttpUrl | None = _knob(None, "http(s)://host[:port]")
    """Address under which clients reach the service, for `/v1/info`."""


class BackendArgs(_Process):
    """A backend, in a runner process of its own or elsewhere."""

    enabled: bool | None = _knob(None, "true, false or null")
    """true: served. false: never. null: served if it is the default backend or has an address."""
    url: _RunnerUrl | None = _knob(None, "http://host:port or file:///path.sock")
    """A runner that runs elsewhere; none is started here then."""
    batch: Batch = _knob(Batch(), "a section")
    """Adaptive batching of embeddings on llama.cpp; the other engines do it themselves."""

    def is_enabled(self, *, default: bool) -> bool:
        """`enabled`, or `default` where it is null."""
        return default if self.enabled is None else self.enabled


class LlamaCppArgs(BackendArgs):
    """The llama.cpp engine and its runner."""

    workers: _Int = _knob(1, "1: one process owns the models", unit="processes", ge=1, le=1)
    """Processes."""
    num_slots: _Int = _knob(16, "a whole number, 1-256", unit="sequences", ge=1, le=256)
    """Sequences that run at once per model."""
    n_ctx: _Int = _knob(8192, "a whole number >= 64", unit="tokens", ge=64)
    """Most tokens of one sequence (prompt and answer), as far as the model was trained for them. The KV cache
    begins with 1,024 a slot and grows to this where a sequence needs it and the memory is there."""
    prefill_chunk_tokens: _Int = _knob(96, "a whole number >= 1", unit="tokens", ge=1)
    """Prompt tokens beside decoding sequences in one step: more is a sooner first token, less is steadier
    output."""
    n_batch: _Int = _knob(128, "a whole number >= 16", unit="tokens", ge=16)
    """Tokens in one step. A request that is aborted waits for the step in hand."""
    n_threads: _Int | None = _knob(None, "a whole number >= 1", unit="threads", ge=1)
    """Threads that decode; null takes the cores that it may use: fewer than the machine has where a container has a limit."""
    n_threads_batch: _Int | None = _knob(None, "a whole number >= 1", unit="threads", ge=1)
    """Threads that prefill and embed; null takes `n_threads`, and half of the cores for embeddings."""
    n_gpu_layers: _Int = _knob(-1, "-1 (all) or a whole number >= 0", unit="layers", ge=-1)
    """Layers on the GPU, in builds that have one (CUDA, Metal)."""
    kv_unified: bool = _knob(False, "true or false")
    """One pool of `n_ctx` KV cells for all slots from the start: least memory, and a sequence that finds no cell
    is computed again later. Otherwise each slot has cells of its own, which is faster: attention then reads one
    sequence's cells, not everybody's."""
    max_loaded_models: _Int | None = _knob(None, "a whole number >= 1", unit="models", ge=1)
    """Models in memory at once; null leaves it to the memory."""
    memory_budget_bytes: _Int | None = _knob(None, "a whole number >= 1", unit="bytes", ge=1)
    """Memory for models and their KV cells; null takes what the machine or its control group has."""


class VLLMArgs(BackendArgs):
    """vLLM's engines and the runner that starts them. null leaves a knob to vLLM."""

    workers: _Int = _knob(1, "1: one process owns the engines", unit="processes", ge=1, le=1)
    """Processes."""
    python: str | None = _knob(None, "the path of an interpreter", min_length=1)
    """The Python that has vLLM; null takes the service's own. An environment of its own keeps vLLM's packages
    apart from the service's."""
    device: Literal["cpu", "gpu"] | None = _knob(None, "cpu, gpu or null")
    """null: `gpu` where an NVIDIA driver shows one, else `cpu`."""
    max_num_seqs: _Int | None = _knob(None, "a whole number >= 1", unit="sequences", ge=1)
    """Sequences that run at once per model."""
    max_num_batched_tokens: _Int | None = _knob(None, "a whole number >= 16", unit="tokens", ge=16)
    """Tokens in one step."""
    max_model_len: _Int | None = _knob(None, "a whole number >= 16", unit="tokens", ge=16)
    """Most tokens of one sequence, prompt and answer; a card's `context_length` can only lower it."""
    gpu_memory_utilization: _Float = _knob(0.9, "a number, 0-1", gt=0, le=1)
    """Of each GPU's memory, what all models together may take."""
    kv_cache_space_gib: _Float = _knob(4.0, "a number > 0", unit="GiB", gt=0)
    """KV cache of one model on a CPU."""
    max_loaded_models: _Int | None = _knob(None, "a whole number >= 1", unit="models", ge=1)
    """Models in memory at once; the GPUs' memory is cut into so many equal parts. null: a model takes all of it unless
    its card says less."""
    memory_budget_bytes: _Int | None = _knob(None, "a whole number >= 1", unit="bytes", ge=1)
    """Memory for models, of each GPU or on a CPU; null takes `gpu_memory_utilization` of the GPU, or what the machine
    or its control group has."""
    enable_prefix_caching: bool | None = _knob(None, "true, false or null")
    """Whether prompts reuse the KV cache of earlier ones."""
    enable_sleep_mode: bool = _knob(False, "true or false")
    """vLLM's `--enable-sleep-mode`."""
    tensor_parallel_size: _Int | None = _knob(None, "a whole number >= 1", unit="GPUs", ge=1)
    """GPUs that share each layer; null takes `resources.gpu`."""
    pipeline_parallel_size: _Int | None = _knob(None, "a whole number >= 1", unit="stages", ge=1)
    """Groups of GPUs that share the layers."""
    distributed_executor_backend: Literal["mp", "ray", "uni"] | None = _knob(None, "mp, ray, uni or null")
    """How those processes are started; `ray` over several machines (docs/scale-out.md)."""
    dtype: str | None = _knob(None, "a dtype of vLLM, such as bfloat16", pattern=r"^[a-z0-9_]+$")
    """Type of the weights and activations."""
    start_timeout_s: _Float = _knob(900.0, "a number > 0", unit="s", gt=0)
    """Longest time from a load to an engine that answers."""
    stall_timeout_s: _Float | None = _knob(300.0, "a number >= 1, or null for never", unit="s", ge=1)
    """How long an engine may have requests and get nothing done before it is taken for hung and started anew."""
    extra_args: _Words = _knob((), "a list of words, or text as a shell would split it")
    """More of vLLM's own command-line arguments; they win over those above."""

    def options(self) -> dict[str, Any]:
        """The fields of `VLLMOptions`, this process's environment among them."""
        ours = {"workers", "timeout", "resources", "enabled", "url", "batch"}
        knobs = self.model_dump(exclude=ours)
        return {**knobs, "num_gpus": self.resources.gpu, "environment": dict(os.environ)}


class LiteLLMArgs(BackendArgs):
    """LiteLLM and its runner. Keys and addresses of providers are variables of their own (docs/litellm.md)."""

    idle_timeout_s: _Float = _knob(60.0, "a number > 0", unit="s", gt=0)
    """Longest gap in a provider's stream once it has begun."""
    max_retries: _Int = _knob(2, "a whole number, 0-10", unit="calls", ge=0, le=10)
    """Calls beyond the first when a provider fails before anything was passed on."""
    cooldown_after: _Int = _knob(5, "a whole number >= 1", unit="failures", ge=1)
    """Failures in a row after which a model of a provider is left alone for a while."""
    cooldown_s: _Float = _knob(10.0, "a number >= 0", unit="s", ge=0)
    """How long it is left alone, unless the provider names a longer time."""


class Args(_Section):
    """`args:` of bentofile.yaml with what overrides it, in rising order: the file, `--arg key=JSON`, `--arg
    a.b=1`, `LLM_ARGS__A__B=1`, and the older variable where one stands for the same knob. Every level refuses
    unknown keys.

    Raises SettingsError, not pydantic's error.
    """

    gateway: GatewayArgs = _knob(GatewayArgs(), "a section")
    """The gateway."""
    llamacpp: LlamaCppArgs = _knob(LlamaCppArgs(), "a section")
    """llama.cpp."""
    vllm: VLLMArgs = _knob(VLLMArgs(), "a section")
    """vLLM."""
    litellm: LiteLLMArgs = _knob(LiteLLMArgs(), "a section")
    """LiteLLM."""
    fake: BackendArgs = _knob(BackendArgs(), "a section")
    """The deterministic stand-in for tests."""

    OLDER_NAMES: ClassVar[Mapping[str, str]] = {
        "LLM_MAX_CONCURRENT_COMPLETIONS": "gateway.max_concurrency",
        "LLM_QUEUE_SIZE": "gateway.queue_size",
        "LLM_LLAMACPP_URL": "llamacpp.url",
    }

    def section(self, kind: BackendKind) -> BackendArgs:
        """The section of one backend."""
        section: BackendArgs = getattr(self, kind)
        return section

    @model_validator(mode="wrap")
    @classmethod
    def _overlay(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(data, Mapping):
            return handler(data)
        origins: dict[str, str] = {}
        merged = _merge_args(data, os.environ, origins)
        try:
            return handler(merged)
        except ValidationError as error:
            raise SettingsError(*_arg_problems(error, cls, origins)) from None


def load_settings(args: Args | None = None) -> Settings:
    """Read the environment. With `args`, the knobs that stand in both trees have their final value in the
    result: `queue_size`, `max_concurrent_completions` and `llamacpp_url`.

    Raises: SettingsError with everything that is wrong. `LLM_DEFAULT_BACKEND` may be missing here; see
    `Settings.require_default_backend`.
    """
    problems: list[str] = []
    try:
        settings = Settings()
    except ValidationError as error:
        raise SettingsError(
            *_variable_problems(error), *_unknown_variables(os.environ, strict=_asks_for_strictness())
        ) from None
    problems += _unknown_variables(os.environ, strict=settings.strict_env)
    if args is not None:
        shared = {
            "queue_size": args.gateway.queue_size,
            "max_concurrent_completions": args.gateway.max_concurrency,
            "llamacpp_url": args.llamacpp.url,
        }
        settings = settings.model_copy(update=shared)
        problems += _too_short(settings, args)
    problems += _misfits(settings)
    if problems:
        raise SettingsError(*problems)
    return settings


def environment() -> MutableMapping[str, str]:
    """The process's own environment, for the one library that reads it by itself: LiteLLM finds its providers' keys and
    addresses there."""
    return os.environ


@functools.cache
def is_in_container() -> bool:
    """Whether BentoML's image runs us; there the port is published on purpose. Looked up once: the variable is taken
    away afterwards (supervision.py)."""
    return "BENTOML_CONTAINERIZED" in os.environ


def _misfits(settings: Settings) -> Iterator[str]:
    for folder in settings.model_dirs:
        if not folder.is_dir():
            yield f"LLM_MODEL_DIRS names {str(folder)!r}, which is no folder; create it or correct the name"
    files = {
        "LLM_CATALOGUE": settings.catalogue,
        "LLM_API_TOKENS_FILE": settings.api_tokens_file,
        "LLM_PRINCIPALS_FILE": settings.principals_file,
    }
    for name, file in files.items():
        if file is not None and not (file.is_file() and os.access(file, os.R_OK)):
            yield f"{name} is {str(file)!r}; allowed: a readable file"
    if settings.runner_token is None and settings.llamacpp_url and not _is_local(settings.llamacpp_url):
        yield f"LLM_RUNNER_TOKEN is not set; the runner at {settings.llamacpp_url}, on the network, needs one"


def _too_short(settings: Settings, args: Args) -> Iterator[str]:
    """The backstop must not act before the deadline that it is there for."""
    for name in ("gateway", *settings.backends_to_serve(args)):
        timeout: float = getattr(args, name).timeout
        if timeout <= settings.request_timeout_s:
            yield (
                f"{name}.timeout is {timeout:g}; allowed: more than LLM_REQUEST_TIMEOUT_S, "
                f"which is {settings.request_timeout_s:g}"
            )


def _is_local(url: str) -> bool:
    parts = urlsplit(url)
    if parts.scheme == "file" or parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


def _asks_for_strictness() -> bool:
    return os.environ.get("LLM_STRICT_ENV", "").strip().lower() in ("1", "true", "yes", "on")


def _unknown_variables(environment: Mapping[str, str], *, strict: bool) -> list[str]:
    """Problems if `strict`, else warnings."""
    known = [PREFIX + name.upper() for name in Settings.model_fields]
    sentences = []
    for name in sorted(environment):
        if (
            not name.startswith(PREFIX)
            or name in known
            or name.startswith(ARGS_PREFIX)
            or _INJECTED.fullmatch(name)
        ):
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
        hint = f"; did you mean {near[0]}?" if near else ""
        sentences.append(f"{name} is not a setting of this service{hint}")
    if strict:
        return sentences
    for sentence in sentences:
        _log.warning("%s", sentence)
    return []


def _variable_problems(error: ValidationError) -> list[str]:
    problems = []
    for name in dict.fromkeys(str(problem["loc"][0]) for problem in error.errors()):
        field = Settings.model_fields[name]
        variable = PREFIX + name.upper()
        value = os.environ.get(variable, "")
        shown = "****" if "Secret" in str(field.annotation) or "@" in value else repr(value[:200])
        problems.append(f"{variable} is {shown}; allowed: {_words(field, 'allowed')}")
    return problems


def _merge_args(
    data: Mapping[str, Any], environment: Mapping[str, str], origins: MutableMapping[str, str]
) -> dict[str, Any]:
    """`data` with the overrides on top. Notes in `origins` which path of keys came from which override."""
    merged: dict[str, Any] = {}
    overrides: list[tuple[str, str, Any]] = []
    for key, value in data.items():
        if "." in key:
            overrides.append((f"--arg {key}", key, value))
        else:
            _put(merged, [key], _parsed(value), f"--arg {key}", origins)
    overrides += [
        (name, name.removeprefix(ARGS_PREFIX).lower().replace("__", "."), value)
        for name, value in sorted(environment.items())
        if name.startswith(ARGS_PREFIX) and value
    ]
    overrides += [
        (name, path, environment[name]) for name, path in Args.OLDER_NAMES.items() if environment.get(name)
    ]
    for origin, path, value in overrides:
        _put(merged, path.split("."), _parsed(value), origin, origins)
    return merged


def _put(
    tree: dict[str, Any], path: Sequence[str], value: Any, origin: str, origins: MutableMapping[str, str]
) -> None:
    node = tree
    for key in path[:-1]:
        child = node.get(key)
        node[key] = node = dict(child) if isinstance(child, Mapping) else {}
    old = node.get(path[-1])
    if isinstance(value, Mapping) and isinstance(old, Mapping):
        for key, inner in value.items():
            _put(tree, [*path, str(key)], inner, origin, origins)
        return
    node[path[-1]] = value
    if not origin.startswith("--arg") or len(path) > 1:
        origins[".".join(path)] = origin


def _parsed(value: Any) -> Any:
    """Overrides arrive as text: JSON for a whole section, `null` for nothing, else what pydantic makes of
    it."""
    if not isinstance(value, str):
        return value
    if value.strip().lower() in ("null", "none"):
        return None
    if value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _arg_problems(error: ValidationError, model: type[BaseModel], origins: Mapping[str, str]) -> list[str]:
    problems: dict[str, None] = {}
    for problem in error.errors():
        owner: type[BaseModel] = model
        path: list[str] = []
        field: FieldInfo | None = None
        for key in map(str, problem["loc"]):
            field = owner.model_fields.get(key)
            path.append(key)
            inner = field.annotation if field is not None else None
            if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
                break
            owner = inner
        dotted = ".".join(path)
        name = dotted
        for at, origin in origins.items():
            if f"{dotted}.".startswith(f"{at}."):
                name = origin if at == dotted else f"{dotted} (from {origin})"
        if field is None and problem["type"] == "extra_forbidden":
            near = difflib.get_close_matches(path[-1], owner.model_fields, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(owner.model_fields)}"
            where = f" (from {name})" if name != dotted and "(" not in name else ""
            problems[f"{dotted} is not an argument{where}{hint}"] = None
        else:
            problems[f"{name} is {problem['input']!r:.200}; allowed: {_words(field, 'allowed')}"] = None
    return list(problems)


def _words(field: FieldInfo | None, which: Literal["allowed", "unit"]) -> str:
    extra = field.json_schema_extra if field is not None else None
    return str(extra.get(which, "")) if isinstance(extra, dict) else ""


def reference() -> dict[str, str]:
    """The tables of docs/configuration.md, Markdown: one of the variables, one per section of the
    arguments."""
    tables = {"variables": _table(Settings, PREFIX, str.upper)}
    for name, field in Args.model_fields.items():
        assert isinstance(field.annotation, type)
        tables[name] = _table(field.annotation, f"{name}.", str)
    return tables


def _table(model: type[BaseModel], prefix: str, spelling: Callable[[str], str]) -> str:
    lines = ["| Name | Default | Allowed | What it does |", "|---|---|---|---|"]
    for name, field in _leaves(model, prefix, spelling):
        unit = _words(field, "unit")
        allowed = _words(field, "allowed") + (f" ({unit})" if unit else "")
        text = " ".join((field.description or "").split())
        lines.append(
            "| " + " | ".join((f"`{name}`", _shown(field.default), allowed, text)).replace("\n", " ") + " |"
        )
    return "\n".join(lines)


def _leaves(
    model: type[BaseModel], prefix: str, spelling: Callable[[str], str]
) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _leaves(inner, f"{prefix}{spelling(name)}.", spelling)
        else:
            yield prefix + spelling(name), field


def _shown(default: Any) -> str:
    if default is None or default in ((), {}):
        return "–"
    return f"`{json.dumps(default)}`"


if __name__ == "__main__":
    for title, table in reference().items():
        print(f"<!-- {title} -->\n{table}\n<!-- end -->\n")
