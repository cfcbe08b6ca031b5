"""What the wire needs to know, as plain values.

`service.py` fills it from the settings; nothing here reads the environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from openai_compat.media.limits import MediaLimits


@dataclass(frozen=True, kw_only=True, slots=True)
class WireConfig:
    """Every knob of `openai_compat`. Times in seconds, sizes in bytes, counts for the whole service."""

    default_backend: str
    """Kind that serves a request whose model has no card of its own and that names no backend."""
    default_model: str | None = None
    """Card for `/v1/completions` without `model`; None takes the default backend's first card."""
    public_url: str | None = None
    """Where clients reach the service, for `/v1/info`; None: they know it."""

    api_tokens: tuple[bytes, ...] = field(default=(), repr=False)
    """Bearer tokens. With no token and no file the API is open."""
    api_tokens_file: Path | None = None
    """More tokens, one a line or separated by commas, `#` starts a comment. Read again when it changes."""
    principals_file: Path | None = None
    """Named callers, their tokens and what they may do (`principals`). Read again when it changes."""
    metrics_auth: bool = False
    """True: `/metrics` needs a token too."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or CIDRs whose `X-Forwarded-For` counts."""
    cors_origins: tuple[str, ...] = ()
    """Allowed origins, or `("*",)`. Empty: CORS is off."""

    rate_limit_rps: float = 10.0
    """Requests a second and principal; 0 is no limit."""
    rate_limit_burst: int = 20
    """Requests a principal may send at once, >= 1."""
    max_principals: int = 10_000
    """How many principals the rate limiter remembers at once."""

    max_concurrent_completions: int = 10
    queue_size: int = 0
    """Requests that may wait for a completion slot; 0: none waits."""
    queue_timeout_s: float = 0.0
    """Longest wait for a completion slot; 0: none waits."""
    max_concurrent_embeddings: int = 128
    """Embedding, rerank and score requests that run at once; none waits."""

    max_body_bytes: int = 16 * 1024 * 1024
    media: MediaLimits = field(default_factory=MediaLimits)
    """How much a request's pictures may be, and where they may come from."""
    request_timeout_s: float = 300.0
    """The whole request, received to last byte."""
    backstop_s: float | None = None
    """Ends a request that missed that deadline; longer than it. None: nothing does."""
    first_token_timeout_s: float | None = None
    """Admitted to first token; None: only `request_timeout_s` bounds it."""
    idle_timeout_s: float | None = None
    """Longest gap between two tokens; None: only `request_timeout_s` bounds it."""
    load_wait_s: float = 60.0
    """How long a request waits for its model to load."""
    header_hold_s: float = 5.0
    """How long a stream's headers wait for the first content, so that an early error keeps its status."""
    keep_alive_s: float = 15.0
    """Silence on a stream after which a comment line is sent."""
    vllm_disable_thinking: bool = True

    budgets: Mapping[str, float] = field(default_factory=dict)
    """US dollars a day by principal's name, `*` for everybody else."""
    state_dir: Path | None = None
    """Folder for what must survive a restart; None: nothing does."""
    redis_url: str | None = field(default=None, repr=False)
    """Where replicas share the limits and budgets; None: each has its own."""
    redis_prefix: str = "llm-inference:"
    """Beginning of every key there."""

    num_workers: int = 1
    """Gateway processes that share the limits."""
    shared_dir: Path | None = None
    """Folder of this instance where the workers keep the shared limits; needed when `num_workers` > 1."""
    metrics_dir: Path | None = None
    """Folder of this instance where the workers keep their counters; None: one process, its own folder."""
    access_log: bool = True
    access_log_level: str = "INFO"
    """Level of the access log's lines."""

    def __post_init__(self) -> None:
        if self.num_workers > 1 and self.shared_dir is None:
            raise ValueError(
                "shared_dir is needed when num_workers > 1: the limits hold for the whole service"
            )
        if self.rate_limit_burst < 1:
            raise ValueError(f"rate_limit_burst is {self.rate_limit_burst}; it must be at least 1")
        if self.max_concurrent_completions < 1:
            raise ValueError(
                f"max_concurrent_completions is {self.max_concurrent_completions}; it must be at least 1"
            )

        if self.max_concurrent_embeddings < 1:
            raise ValueError(
                f"max_concurrent_embeddings is {self.max_concurrent_embeddings}; it must be at least 1"
            )

    @property
    def auth_enabled(self) -> bool:
        """True when callers must show a token."""
        return bool(self.api_tokens or self.api_tokens_file or self.principals_file)
