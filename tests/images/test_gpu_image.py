"""The image with vLLM, started where there is no GPU: everything up to vLLM's own word on that."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import httpx
import pytest

from tests.images.conftest import BASE_URL, HARDENED, Container, docker

# Enough for vLLM to begin; it looks for a device before it reads weights.
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "dtype": "bfloat16",
}
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"hello": 0}, "unk_token": "hello"},
}
NO_TENSORS = (2).to_bytes(8, "little") + b"{}"
"""A safetensors file: the length of its header, the header."""
CATALOGUE = """
models:
  - id: tiny
    sources:
      vllm: {path: /models/tiny}
    capabilities: [chat, completion]
"""


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    models = tmp_path_factory.mktemp("models")
    models.chmod(0o755)
    (models / "tiny").mkdir()
    (models / "tiny" / "config.json").write_text(json.dumps(CONFIG))
    (models / "tiny" / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (models / "tiny" / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (models / "tiny" / "model.safetensors").write_bytes(NO_TENSORS)
    (models / "catalogue.yaml").write_text(CATALOGUE)
    began = Container(
        os.environ["TEST_GPU_IMAGE"],
        *HARDENED,
        # Docker gives 64 MB of shared memory, and vLLM asks for 160.
        *("--network", "none", "--shm-size", "1g", "--volume", f"{models}:/models:ro"),
        *("--env", "LLM_CATALOGUE=/models/catalogue.yaml"),
    )
    try:
        began.wait_until_ready()
        yield began
    finally:
        began.remove()


def test_a_model_fails_to_load_in_vllm_s_own_words(container: Container) -> None:
    with container.network():
        answer = httpx.post(
            f"{BASE_URL}/v1/models/load",
            json={"model": "tiny", "backend": "vllm"},
            timeout=300,
            trust_env=False,
        )

    print(f"loading says {answer.status_code}: {answer.text[:300]}")
    assert answer.status_code == 500
    assert "Failed to infer device type" in answer.text


def test_it_goes_on_and_stops_with_zero(container: Container) -> None:
    with container.network():
        health = httpx.get(f"{BASE_URL}/health", timeout=10, trust_env=False)

    size = int(docker("image", "inspect", "--format", "{{.Size}}", os.environ["TEST_GPU_IMAGE"]))
    print(f"image {size / 1e9:.1f} GB")
    assert health.status_code == 200
    assert container.stop() == 0


def test_triton_could_compile_its_launchers() -> None:
    """They include Python's header."""
    image = os.environ["TEST_GPU_IMAGE"]
    script = (
        "include=$(/opt/vllm/bin/python -c 'import sysconfig; print(sysconfig.get_path(\"include\"))') && "
        "printf '#include <Python.h>\\n' | gcc -fPIC -shared -I$include -x c - -o /tmp/launcher.so"
    )

    docker("run", "--rm", *HARDENED, "--network", "none", "--entrypoint", "sh", image, "-c", script)
