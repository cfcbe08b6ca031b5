"""The same image on Modal, with scale to zero: `modal deploy deploy/modal_app.py`.

Modal pulls the image from a registry: LLM_IMAGE names it, LLM_GPU_IMAGE the one with vLLM. Tokens and keys come from a
Modal secret called `llm-inference`: LLM_API_TOKENS, and whatever providers need.
"""

from __future__ import annotations

import os
import subprocess

import modal

PORT = 14011
MINUTES = 60
# As the image would start by itself; Modal replaces its entrypoint.
SERVE = [
    "/home/bentoml/bento/env/docker/entrypoint.sh",
    *("serve", "--host", "0.0.0.0", "--timeout-graceful-shutdown", "30"),  # noqa: S104  Modal's proxy comes from outside
]

app = modal.App("llm-inference")
secrets = [modal.Secret.from_name("llm-inference")]
# Compiled kernels and fetched weights outlive a container.
cache = modal.Volume.from_name("llm-inference-cache", create_if_missing=True)


def image(variable: str, default: str) -> modal.Image:
    """The image that a variable names, started by the functions below and not by its own entrypoint."""
    return modal.Image.from_registry(os.environ.get(variable, default)).entrypoint([])


@app.function(
    image=image("LLM_IMAGE", "llm-inference:latest"),
    secrets=secrets,
    cpu=2,
    memory=2048,
    timeout=10 * MINUTES,
    scaledown_window=5 * MINUTES,
    max_containers=4,
)
@modal.concurrent(max_inputs=16, target_inputs=12)
@modal.web_server(PORT, startup_timeout=1 * MINUTES)
def cpu() -> None:
    """llama.cpp and clouds."""
    subprocess.Popen(SERVE, env=os.environ | {"LLM_MAX_CONCURRENT_COMPLETIONS": "16"})  # noqa: S603


@app.function(
    image=image("LLM_GPU_IMAGE", "llm-inference-gpu:latest"),
    secrets=secrets,
    volumes={"/cache": cache},
    gpu="L4",
    timeout=20 * MINUTES,
    scaledown_window=10 * MINUTES,
    max_containers=2,
)
@modal.concurrent(max_inputs=64, target_inputs=48)
@modal.web_server(PORT, startup_timeout=15 * MINUTES)
def gpu() -> None:
    """vLLM and clouds."""
    subprocess.Popen(SERVE, env=os.environ | {"LLM_MAX_CONCURRENT_COMPLETIONS": "64"})  # noqa: S603
