"""`LLM_…` variables: how the service behaves towards its clients and where things are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, SecretStr
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from models.card import BACKEND_KINDS, BackendKind
from settings import texts
from settings.arguments import Args
from settings.errors import SettingsError
from settings.knob import knob

PREFIX: Final = "LLM_"
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

    default_backend: BackendKind | None = knob(None, f"one of {_KINDS}")
    """Serves requests that name no backend and whose model has no card. Required to serve; there is no
    default."""
    default_model: str | None = knob(None, "a model's id or alias", max_length=256)
    """Model of a `/v1/completions` request without one; unset takes the default backend's first."""
    enabled_backends: Annotated[tuple[BackendKind, ...] | None, NoDecode, BeforeValidator(texts.items)] = (
        knob(None, f"comma-separated, of {_KINDS}")
    )
    """Exactly these backends are served. Unset: the default one, those with an address of their own and those
    with `enabled: true` under `args:`."""

    api_tokens: Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(texts.tokens)] = knob(
        (), "comma-separated tokens without blanks"
    )
    """Bearer tokens that clients must show one of. Unset, with no file either: everybody may."""
    api_tokens_file: Annotated[Path | None, BeforeValidator(texts.path)] = knob(None, "a readable file")
    """More tokens, one a line; read again when it changes."""
    principals_file: Annotated[Path | None, BeforeValidator(texts.path)] = knob(None, "a readable file")
    """Named callers with their tokens, limits, budgets and privacy (docs/policy.md), YAML or JSON; read again when it
    changes. Its tokens count besides those above."""
    metrics_auth: bool = knob(False, "true or false")
    """Whether `/metrics` needs a token too."""
    runner_token: texts.Secret | None = knob(None, "text without blanks")
    """What gateway and runner show each other. Required where a runner is reached over the network."""

    rate_limit_rps: float = knob(10.0, "a number >= 0; 0 is no limit", unit="requests/s", ge=0)
    """Requests each client may send in the long run."""
    rate_limit_burst: int = knob(20, "a whole number >= 1", unit="requests", ge=1)
    """Requests each client may send at once."""
    max_concurrent_completions: int = knob(10, "a whole number >= 1", unit="requests", ge=1)
    """Completions that run at once in the whole service; the next ones wait or get 503. Takes the place of
    `gateway.max_concurrency`."""
    queue_size: int = knob(0, "a whole number >= 0", unit="requests", ge=0)
    """Completions that may wait for one of those places; 0: none. Takes the place of `gateway.queue_size`."""
    queue_timeout_s: float = knob(0.0, "a number >= 0", unit="s", ge=0)
    """Longest wait for a place; 0: none waits."""
    max_concurrent_embeddings: int = knob(128, "a whole number >= 1", unit="requests", ge=1)
    """Embedding, rerank and score requests that run at once in the whole service; the next ones get 503. They take no
    completion's place."""
    redis_url: Annotated[SecretStr, BeforeValidator(texts.redis_url)] | None = knob(
        None, "redis://… or rediss://…"
    )
    """Where several replicas share rate limits, places of completions and budgets. Unset: each replica has its own."""
    redis_prefix: Annotated[str, BeforeValidator(texts.redis_prefix)] = knob(
        "llm-inference:", "1-64 visible ASCII characters"
    )
    """Beginning of every key there. Services that must not share need different ones."""
    budgets: Annotated[dict[str, float], NoDecode, BeforeValidator(texts.budgets)] = knob(
        {}, "comma-separated name=amount, * for everybody else", unit="US dollars a day"
    )
    """What each caller may spend on clouds in a day of UTC; then requests for them get 429 (docs/policy.md). Unset:
    only what the principals file says."""
    state_dir: Annotated[Path | None, BeforeValidator(texts.path)] = knob(None, "a folder")
    """Where spending is kept over a restart, unless in Redis. Unset: `llm-inference` in `$XDG_STATE_HOME` or
    `~/.local/state`."""
    trusted_proxies: Annotated[tuple[str, ...], NoDecode, BeforeValidator(texts.networks)] = knob(
        (), "comma-separated addresses or CIDRs"
    )
    """Peers whose `X-Forwarded-For` says who the client is."""
    cors_origins: Annotated[tuple[str, ...], NoDecode, BeforeValidator(texts.origins)] = knob(
        (), "comma-separated origins (scheme://host[:port]), or *"
    )
    """Browser pages that may call the API. Unset: CORS is off."""
    max_body_bytes: int = knob(16 << 20, "a whole number, 1024-67108864", unit="bytes", ge=1024, le=64 << 20)
    """Largest request body. A runner takes no more than the most that is allowed here."""

    media_allow: Annotated[tuple[str, ...], NoDecode, BeforeValidator(texts.media_hosts)] = knob(
        (), "comma-separated host[:port], *.domain[:port] or address[:port]; or *"
    )
    """Where a request's pictures may be fetched from (docs/vision.md). Unset: nowhere, pictures come as data URLs."""
    media_max_images: int = knob(10, "a whole number, 1-1000", unit="pictures", ge=1, le=1000)
    """Pictures of one request."""
    media_max_bytes: int = knob(10 << 20, "a whole number, 1024-50331648", unit="bytes", ge=1024, le=48 << 20)
    """Largest picture. All those of a request together, in base64, may be as large as its body may."""
    media_max_pixels: int = knob(64_000_000, "a whole number >= 1", unit="pixels", ge=1)
    """Pixels of a request's pictures together: what whoever decodes them makes room for."""
    media_max_frames: int = knob(1, "a whole number >= 1", unit="frames", ge=1)
    """Frames of one picture. Models look at the first."""
    media_timeout_s: float = knob(10.0, "a number > 0", unit="s", gt=0)
    """Longest time for fetching a request's pictures, all together."""
    media_max_fetches: int = knob(8, "a whole number, 1-256", unit="pictures", ge=1, le=256)
    """Pictures that each of the gateway's processes fetches at once."""

    request_timeout_s: float = knob(300.0, "a number > 0, below gateway.timeout", unit="s", gt=0)
    """Longest time for one request, received to last byte."""
    first_token_timeout_s: float | None = knob(None, "a number > 0", unit="s", gt=0)
    """Longest wait for the first token; unset: only the request's time counts."""
    idle_timeout_s: float | None = knob(None, "a number > 0", unit="s", gt=0)
    """Longest gap between two tokens; unset: only the request's time counts."""
    load_wait_s: float = knob(60.0, "a number >= 0", unit="s", ge=0)
    """How long a request waits for its model to load before it gets 503."""
    drain_timeout_s: float = knob(25.0, "a number >= 0", unit="s", ge=0)
    """How long running requests may go on after SIGTERM. Keep it below the supervisor's own patience."""

    model_dirs: Annotated[tuple[Path, ...], NoDecode, BeforeValidator(texts.folders)] = knob(
        (), f"existing folders, separated by commas or {os.pathsep!r}"
    )
    """Folders whose GGUF files are served under their relative path."""
    catalogue: Annotated[Path | None, BeforeValidator(texts.path)] = knob(None, "a readable file")
    """Catalogue that takes the shipped one's place (docs/models.md)."""
    hub_allow: texts.Items = knob((), "comma-separated patterns such as meta-llama/*")
    """Hub ids that may be fetched by naming them as the model. Unset: none."""

    llamacpp_url: texts.RunnerUrl | None = knob(None, "http://host:port or file:///path.sock")
    """A llama.cpp runner that runs elsewhere; none is started here then. Takes the place of
    `llamacpp.url`."""
    vllm_base_url: Annotated[
        tuple[str, ...] | None, NoDecode, BeforeValidator(texts.urls("http", "https"))
    ] = knob(None, "comma-separated http(s)://host:port/v1")
    """vLLM servers, or others that speak OpenAI's API, that run elsewhere with the same models; none is started here
    then."""
    vllm_api_key: texts.Secret | None = knob(None, "text without blanks")
    """The key those servers ask for."""
    vllm_disable_thinking: bool = knob(True, "true or false")
    """Whether vLLM chat requests get `enable_thinking: false` unless they say otherwise themselves."""

    log_level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR"],
        BeforeValidator(lambda value: value.strip().upper() if isinstance(value, str) else value),
    ] = knob("INFO", "DEBUG, INFO, WARNING or ERROR")
    """Least severe messages that are logged."""
    log_format: Literal["text", "json"] = knob("text", "text or json")
    """How each log line is written; the line of a finished request is always JSON."""
    strict_env: bool = knob(False, "true or false")
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
