"""`args:` of the bentofile: how the processes are cut and the engines sized."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator

from models.card import BackendKind
from settings import texts
from settings.errors import SettingsError
from settings.knob import knob
from settings.overrides import merged_args, problems_of


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class Resources(_Section):
    """What a service of the Bento asks its platform for. On a bare host they only steer GPU assignment."""

    cpu: float | str | None = knob(None, "cores: a number > 0, or text such as 500m")
    """Cores."""
    memory: float | str | None = knob(None, "GiB: a number > 0, or text such as 512Mi")
    """Memory."""
    gpu: texts.Int | None = knob(None, "a whole number >= 1", ge=1)
    """GPUs per worker."""
    gpu_type: str | None = knob(None, "a name of the platform")
    """Kind of GPU, for platforms that offer several."""


class Batch(_Section):
    """Adaptive batching of calls that take lists (embeddings). Never of chat."""

    max_batch_size: texts.Int = knob(32, "a whole number >= 1", unit="inputs", ge=1)
    """Inputs in one batch; 1 computes each by itself."""
    max_latency_ms: texts.Int = knob(30_000, "a whole number >= 1", unit="ms", ge=1)
    """What would wait longer for its batch is refused (503), not delayed: ten times a full batch at the least."""


class _Process(_Section):
    """What every service of the Bento has."""

    workers: texts.Count | Literal["cpu_count"] = knob(
        1, "a whole number >= 1, or cpu_count", unit="processes"
    )
    """Processes."""
    timeout: texts.Float = knob(600.0, "a number > 0, above LLM_REQUEST_TIMEOUT_S", unit="s", gt=0, le=86_400)
    """The longest that a request may take whatever else went wrong, loads aside. Of a runner elsewhere: above
    LLM_REQUEST_TIMEOUT_S of its gateways."""
    resources: Resources = knob(Resources(), "a section")
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

    max_concurrency: texts.Int = knob(10, "a whole number >= 1", unit="requests", ge=1)
    """Completions that run at once in the whole service, over all workers."""
    queue_size: texts.Int = knob(0, "a whole number >= 0", unit="requests", ge=0)
    """Completions that may wait for one of those places."""
    url: texts.HttpUrl | None = knob(None, "http(s)://host[:port]")
    """Address under which clients reach the service, for `/v1/info`."""


class BackendArgs(_Process):
    """A backend, in a runner process of its own or elsewhere."""

    enabled: bool | None = knob(None, "true, false or null")
    """true: served. false: never. null: served if it is the default backend or has an address."""
    url: texts.RunnerUrl | None = knob(None, "http://host:port or file:///path.sock")
    """A runner that runs elsewhere; none is started here then."""
    batch: Batch = knob(Batch(), "a section")
    """Adaptive batching of embeddings on llama.cpp; the other engines do it themselves."""

    def is_enabled(self, *, default: bool) -> bool:
        """`enabled`, or `default` where it is null."""
        return default if self.enabled is None else self.enabled


class LlamaCppArgs(BackendArgs):
    """The llama.cpp engine and its runner."""

    workers: texts.Int = knob(1, "1: one process owns the models", unit="processes", ge=1, le=1)
    """Processes."""
    num_slots: texts.Int = knob(16, "a whole number, 1-256", unit="sequences", ge=1, le=256)
    """Sequences that run at once per model."""
    n_ctx: texts.Int = knob(8192, "a whole number >= 64", unit="tokens", ge=64)
    """Most tokens of one sequence (prompt and answer), as far as the model was trained for them. The KV cache
    begins with 1,024 a slot and grows to this where a sequence needs it and the memory is there."""
    prefill_chunk_tokens: texts.Int = knob(96, "a whole number >= 1", unit="tokens", ge=1)
    """Prompt tokens beside decoding sequences in one step: more is a sooner first token, less is steadier
    output."""
    n_batch: texts.Int = knob(128, "a whole number >= 16", unit="tokens", ge=16)
    """Tokens in one step. A request that is aborted waits for the step in hand."""
    n_threads: texts.Int | None = knob(None, "a whole number >= 1", unit="threads", ge=1)
    """Threads that decode; null takes the cores that it may use: fewer than the machine has where a container has a
    limit."""
    n_threads_batch: texts.Int | None = knob(None, "a whole number >= 1", unit="threads", ge=1)
    """Threads that prefill and embed; null takes `n_threads`, and half of the cores for embeddings."""
    n_gpu_layers: texts.Int = knob(-1, "-1 (all) or a whole number >= 0", unit="layers", ge=-1)
    """Layers on the GPU, in builds that have one (CUDA, Metal)."""
    kv_unified: bool = knob(False, "true or false")
    """One pool of `n_ctx` KV cells for all slots from the start: least memory, and a sequence that finds no cell
    is computed again later. Otherwise each slot has cells of its own, which is faster: attention then reads one
    sequence's cells, not everybody's."""
    max_loaded_models: texts.Int | None = knob(None, "a whole number >= 1", unit="models", ge=1)
    """Models in memory at once; null leaves it to the memory."""
    memory_budget_bytes: texts.Int | None = knob(None, "a whole number >= 1", unit="bytes", ge=1)
    """Memory for models and their KV cells; null takes what the machine or its control group has."""


class VLLMArgs(BackendArgs):
    """vLLM's engines and the runner that starts them. null leaves a knob to vLLM."""

    workers: texts.Int = knob(1, "1: one process owns the engines", unit="processes", ge=1, le=1)
    """Processes."""
    python: str | None = knob(None, "the path of an interpreter", min_length=1)
    """The Python that has vLLM; null takes the service's own. An environment of its own keeps vLLM's packages
    apart from the service's."""
    device: Literal["cpu", "gpu"] | None = knob(None, "cpu, gpu or null")
    """null: `gpu` where an NVIDIA driver shows one, else `cpu`."""
    max_num_seqs: texts.Int | None = knob(None, "a whole number >= 1", unit="sequences", ge=1)
    """Sequences that run at once per model."""
    max_num_batched_tokens: texts.Int | None = knob(None, "a whole number >= 16", unit="tokens", ge=16)
    """Tokens in one step."""
    max_model_len: texts.Int | None = knob(None, "a whole number >= 16", unit="tokens", ge=16)
    """Most tokens of one sequence, prompt and answer; a card's `context_length` can only lower it."""
    gpu_memory_utilization: texts.Float = knob(0.9, "a number, 0-1", gt=0, le=1)
    """Of each GPU's memory, what all models together may take."""
    kv_cache_space_gib: texts.Float = knob(4.0, "a number > 0", unit="GiB", gt=0)
    """KV cache of one model on a CPU."""
    max_loaded_models: texts.Int | None = knob(None, "a whole number >= 1", unit="models", ge=1)
    """Models in memory at once; the GPUs' memory is cut into so many equal parts. null: a model takes all of it unless
    its card says less."""
    memory_budget_bytes: texts.Int | None = knob(None, "a whole number >= 1", unit="bytes", ge=1)
    """Memory for models, of each GPU or on a CPU; null takes `gpu_memory_utilization` of the GPU, or what the machine
    or its control group has."""
    enable_prefix_caching: bool | None = knob(None, "true, false or null")
    """Whether prompts reuse the KV cache of earlier ones."""
    enable_sleep_mode: bool = knob(False, "true or false")
    """vLLM's `--enable-sleep-mode`."""
    tensor_parallel_size: texts.Int | None = knob(None, "a whole number >= 1", unit="GPUs", ge=1)
    """GPUs that share each layer; null takes `resources.gpu`."""
    pipeline_parallel_size: texts.Int | None = knob(None, "a whole number >= 1", unit="stages", ge=1)
    """Groups of GPUs that share the layers."""
    distributed_executor_backend: Literal["mp", "ray", "uni"] | None = knob(None, "mp, ray, uni or null")
    """How those processes are started; `ray` over several machines (docs/scale-out.md)."""
    dtype: str | None = knob(None, "a dtype of vLLM, such as bfloat16", pattern=r"^[a-z0-9_]+$")
    """Type of the weights and activations."""
    start_timeout_s: texts.Float = knob(900.0, "a number > 0", unit="s", gt=0)
    """Longest time from a load to an engine that answers."""
    stall_timeout_s: texts.Float | None = knob(300.0, "a number >= 1, or null for never", unit="s", ge=1)
    """How long an engine may have requests and get nothing done before it is taken for hung and started anew."""
    extra_args: texts.Words = knob((), "a list of words, or text as a shell would split it")
    """More of vLLM's own command-line arguments; they win over those above."""

    def options(self) -> dict[str, Any]:
        """The fields of `VLLMOptions`, this process's environment among them."""
        ours = {"workers", "timeout", "resources", "enabled", "url", "batch"}
        knobs = self.model_dump(exclude=ours)
        return {**knobs, "num_gpus": self.resources.gpu, "environment": dict(os.environ)}


class LiteLLMArgs(BackendArgs):
    """LiteLLM and its runner. Keys and addresses of providers are variables of their own (docs/litellm.md)."""

    idle_timeout_s: texts.Float = knob(60.0, "a number > 0", unit="s", gt=0)
    """Longest gap in a provider's stream once it has begun."""
    max_retries: texts.Int = knob(2, "a whole number, 0-10", unit="calls", ge=0, le=10)
    """Calls beyond the first when a provider fails before anything was passed on."""
    cooldown_after: texts.Int = knob(5, "a whole number >= 1", unit="failures", ge=1)
    """Failures in a row after which a model of a provider is left alone for a while."""
    cooldown_s: texts.Float = knob(10.0, "a number >= 0", unit="s", ge=0)
    """How long it is left alone, unless the provider names a longer time."""


class Args(_Section):
    """`args:` of bentofile.yaml with what overrides it, in rising order: the file, `--arg key=JSON`, `--arg
    a.b=1`, `LLM_ARGS__A__B=1`, and the older variable where one stands for the same knob. Every level refuses
    unknown keys.

    Raises SettingsError, not pydantic's error.
    """

    gateway: GatewayArgs = knob(GatewayArgs(), "a section")
    """The gateway."""
    llamacpp: LlamaCppArgs = knob(LlamaCppArgs(), "a section")
    """llama.cpp."""
    vllm: VLLMArgs = knob(VLLMArgs(), "a section")
    """vLLM."""
    litellm: LiteLLMArgs = knob(LiteLLMArgs(), "a section")
    """LiteLLM."""
    fake: BackendArgs = knob(BackendArgs(), "a section")
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
        merged = merged_args(data, os.environ, cls.OLDER_NAMES, origins)
        try:
            return handler(merged)
        except ValidationError as error:
            raise SettingsError(*problems_of(error, cls, origins)) from None
