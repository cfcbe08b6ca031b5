"""The service of this checkout, started as its operator would: `bentoml serve .`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from bench.processes import Server, free_port

ROOT = Path(__file__).resolve().parents[1]
UNLIMITED = {"LLM_RATE_LIMIT_RPS": "0", "LLM_MAX_CONCURRENT_COMPLETIONS": "64"}
"""What keeps the service's own limits out of a measurement of speed."""

LEFT_OUT = ("PYTHONDONTWRITEBYTECODE", "PROMETHEUS_MULTIPROC_DIR")
"""Without byte code on disk every start compiles all packages again, which is not how a service is run."""


def our_service(
    *, settings: Mapping[str, str], out: Path, log: str = "service", priority: int | None = None
) -> Server:
    """A server with exactly these `LLM_*` variables. `out` takes its log and BentoML's own folder."""
    port = free_port()
    home = out / "bentoml"
    home.mkdir(parents=True, exist_ok=True)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LLM_", "BENTOML_")) and name not in LEFT_OUT
    }
    environment |= {"BENTOML_HOME": str(home), "BENTOML_DO_NOT_TRACK": "True", **settings}
    command = [str(Path(sys.executable).parent / "bentoml"), "serve", ".", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--timeout-graceful-shutdown", "5"]
    return Server(
        "our service",
        command,
        port=port,
        environment=environment,
        folder=ROOT,
        log=out / "logs" / f"{log}.log",
        priority=priority,
    )


def llamacpp_settings(*, slots: int, ctx_per_slot: int, threads: int) -> dict[str, str]:
    return {
        "LLM_DEFAULT_BACKEND": "llamacpp",
        "LLM_ARGS__LLAMACPP__NUM_SLOTS": str(slots),
        "LLM_ARGS__LLAMACPP__N_CTX": str(slots * ctx_per_slot),
        "LLM_ARGS__LLAMACPP__N_THREADS": str(threads),
        "LLM_ARGS__LLAMACPP__N_THREADS_BATCH": str(threads),
        **UNLIMITED,
    }
