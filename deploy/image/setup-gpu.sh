#!/usr/bin/env bash
# Runs while the GPU image is built, after requirements/base.txt: clouds beside the service, and vLLM where the base does
# not bring it (`make image-gpu` gives it one that does).
set -euo pipefail
cd "$BENTO_PATH/src"
export UV_NO_CACHE=1 UV_COMPILE_BYTECODE=1

uv pip install --require-hashes -r requirements/base.txt -r requirements/litellm.txt
deploy/image/vllm.sh
