#!/usr/bin/env bash
# Runs while the GPU image is built, after requirements/base.txt: clouds beside the service, vLLM in an environment of its
# own (its packages pin many of ours), and the C compiler that Triton calls when it first meets a kernel.
set -euo pipefail
cd "$BENTO_PATH/src"
export UV_NO_CACHE=1 UV_COMPILE_BYTECODE=1

apt-get update -qq
apt-get install -qq -y --no-install-recommends gcc libc6-dev libgomp1
rm -rf /var/lib/apt/lists/*
uv pip install --require-hashes -r requirements/base.txt -r requirements/litellm.txt
uv venv --quiet --python /app/.venv/bin/python /app/vllm
uv pip install --python /app/vllm/bin/python --require-hashes --no-deps -r requirements/vllm.txt
