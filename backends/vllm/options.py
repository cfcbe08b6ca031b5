"""The knobs of `vllm:` in `bentofile.yaml`, and what they and a card become on the engine's command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from models.card import ModelCard

GIB: Final = 1 << 30

SERVER: Final = "vllm.entrypoints.openai.api_server"
"""The module that is run. The command `vllm` of the CPU build asks for the metadata of a package it is not."""
GUARD: Final = Path(__file__).with_name("guard.py")

Device = Literal["cpu", "gpu"]


@dataclass(frozen=True, kw_only=True)
class VLLMOptions:
    """None leaves a knob to vLLM. Sizes in tokens, times in seconds."""

    python: str | None = None
    """The interpreter that has vLLM; None is the one that runs this."""
    device: Device | None = None
    """None: `gpu` where an NVIDIA one is seen, else `cpu`."""
    num_gpus: int | None = None
    """GPUs that every model may use; the degree of tensor parallelism unless that is given."""
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    distributed_executor_backend: str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    dtype: str | None = None
    gpu_memory_utilization: float = 0.9
    """Of each GPU's memory, what all models together may take."""
    kv_cache_space_gib: float = 4.0
    """KV cache of one model on a CPU."""
    enable_prefix_caching: bool | None = None
    enable_sleep_mode: bool = False
    max_loaded_models: int | None = None
    """Into so many equal parts the GPU's memory is cut. None: one, so that only models whose cards ask for less fit
    beside each other."""
    memory_budget_bytes: int | None = None
    start_timeout_s: float = 900.0
    stop_timeout_s: float = 10.0
    stall_timeout_s: float | None = None
    """How long an engine may have requests and get nothing done; None: for ever."""
    extra_args: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """This process's, of which the engine gets what it needs (`environment_of`)."""

    @property
    def interpreter(self) -> str:
        return self.python or sys.executable

    @property
    def tensor_parallel(self) -> int:
        """Over how many GPUs one model's weights are split, at least."""
        return self.tensor_parallel_size or self.num_gpus or 1

    @property
    def num_parts(self) -> int:
        """Into how many parts a model's weights are cut, each on a GPU of its own."""
        return self.tensor_parallel * (self.pipeline_parallel_size or 1)


def command_of(
    card: ModelCard,
    model: Path,
    socket: Path,
    options: VLLMOptions,
    *,
    memory_share: float | None,
    kv_cache_bytes: int | None,
) -> list[str]:
    """The command that serves `model`, a folder or file of weights, on the Unix socket `socket`.

    `memory_share`: of each GPU's whole memory, 0–1. `kv_cache_bytes` fixes the KV cache instead, which on a CPU is
    the only bound. The card's template must lie beside the socket (`template_file`). What the operator adds comes
    last, so it wins.
    """
    own = card.vllm
    flags: dict[str, object] = {
        "model": model,
        "served-model-name": card.id,
        "uds": socket,
        "disable-uvicorn-access-log": True,
        "uvicorn-log-level": "warning",
        "enable-log-requests": False,
        # The model's own generation_config.json would come between the request's defaults and the engine.
        "generation-config": "vllm",
        "enable-prompt-tokens-details": True,
        # Pictures come in the request. No host is called like this, so none is allowed.
        "allowed-media-domains": "no host/",
        "tensor-parallel-size": options.tensor_parallel if options.tensor_parallel > 1 else None,
        "pipeline-parallel-size": options.pipeline_parallel_size,
        "distributed-executor-backend": options.distributed_executor_backend,
        "max-num-seqs": options.max_num_seqs,
        "max-num-batched-tokens": options.max_num_batched_tokens,
        "max-model-len": _smallest(options.max_model_len, card.context_length),
        "dtype": options.dtype,
        "gpu-memory-utilization": None if memory_share is None else f"{memory_share:.4f}",
        "kv-cache-memory-bytes": kv_cache_bytes,
        "enable-prefix-caching": options.enable_prefix_caching,
        "enable-sleep-mode": True if options.enable_sleep_mode else None,
        "chat-template": template_file(socket) if card.chat_template else None,
        "reasoning-parser": own.reasoning_parser,
        "tool-call-parser": own.tool_call_parser,
        "enable-auto-tool-choice": True if own.tool_call_parser else None,
    }
    return [
        options.interpreter,
        str(GUARD),
        str(socket.parent),
        SERVER,
        *_spelled(flags),
        *options.extra_args,
        *own.extra_args,
    ]


def template_file(socket: Path) -> Path:
    """Where the template of a card that has its own lies."""
    return socket.with_name("chat_template.jinja")


def _spelled(flags: Mapping[str, object]) -> Iterator[str]:
    for name, value in flags.items():
        if value is True:
            yield f"--{name}"
        elif value is False:
            yield f"--no-{name}"
        elif value is not None:
            # One word: a value that begins with a dash stays a value.
            yield f"--{name}={value}"


def _smallest(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


_PASSED_ON: Final = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "MALLOC_CONF", "MALLOC_ARENA_MAX", "CC", "CXX"),
        *("HF_HOME", "HF_HUB_CACHE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"),
    }
)
_PASSED_ON_PREFIXES: Final = (
    *("LC_", "XDG_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "UCX_", "HIP_", "ROCR_", "ROCM_", "HSA_"),
    *("OMP_", "KMP_", "MKL_", "GOMP_", "OPENBLAS_", "TORCH", "PYTORCH_", "TRITON_", "FLASHINFER_"),
    *("TOKENIZERS_", "RAY_", "VLLM_"),
)
_KEPT_BACK: Final = frozenset({"VLLM_API_KEY"})


def environment_of(options: VLLMOptions, folder: Path, device: Device) -> dict[str, str]:
    """The engine's environment: of ours what it needs to find its libraries, devices and caches. Tokens of this
    service, keys of clouds and whatever else we hold stay here."""
    environment = options.environment
    passed = {
        name: value
        for name, value in environment.items()
        if name not in _KEPT_BACK and (name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES))
    }
    if options.python is None and (path := environment.get("PYTHONPATH")):
        passed["PYTHONPATH"] = path
    fixed = {
        # Everything is on this machine by now; nothing may be looked up, and nothing told.
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
        # Its log is read by a program.
        "VLLM_CONFIGURE_LOGGING": "1",
        "VLLM_LOGGING_COLOR": "0",
        "VLLM_LOGGING_PREFIX": "",
        "VLLM_DISABLE_LOG_LOGO": "1",
        "NO_COLOR": "1",
        "TQDM_DISABLE": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": "ignore::DeprecationWarning,ignore::FutureWarning",
        # Its sockets and temporary files go away with the folder; what it compiled stays.
        "VLLM_RPC_BASE_PATH": str(folder),
        "TMPDIR": str(folder),
    }
    defaults = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "VLLM_LOGGING_LEVEL": "INFO",
        "TORCHINDUCTOR_CACHE_DIR": str(_cache_folder(environment) / "torchinductor"),
    }
    if device == "cpu":
        defaults["VLLM_TARGET_DEVICE"] = "cpu"
    return {**defaults, **passed, **fixed}


def _cache_folder(environment: Mapping[str, str]) -> Path:
    """vLLM's own."""
    root = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or "~").expanduser() / ".cache"
    return Path(environment.get("VLLM_CACHE_ROOT") or Path(root) / "vllm")
