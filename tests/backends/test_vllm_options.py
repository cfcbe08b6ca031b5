"""Knobs and cards become vLLM's command line; of our environment an engine gets what it needs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from backends.vllm.options import SERVER, VLLMOptions, command_of, environment_of
from models.card import FileSource, ModelCard

SOCKET = Path("/run/vllm-x/api.sock")


def card(**fields: Any) -> ModelCard:
    return ModelCard(id="m", backend="vllm", sources={"vllm": FileSource(path="/models/m")}, **fields)


def command(
    card: ModelCard, memory_share: float | None = None, kv: int | None = None, **options: Any
) -> list[str]:
    return command_of(
        card, Path("/models/m"), SOCKET, VLLMOptions(**options), memory_share=memory_share, kv_cache_bytes=kv
    )


def test_the_command_runs_the_server_below_its_guard_on_the_socket_under_the_cards_id():
    words = command(card())

    assert words[0] == sys.executable
    assert words[1].endswith("guard.py")
    assert words[2:4] == ["/run/vllm-x", SERVER]
    assert {"--model=/models/m", "--served-model-name=m", f"--uds={SOCKET}"} <= set(words)


def test_no_prompt_gets_into_its_log_and_no_generation_config_into_its_sampling():
    assert {"--no-enable-log-requests", "--disable-uvicorn-access-log", "--generation-config=vllm"} <= set(
        command(card())
    )


def test_it_is_started_so_that_it_fetches_nothing():
    words = command(card())

    (allowed,) = [word.partition("=")[2] for word in words if word.startswith("--allowed-media-domains")]
    assert "/" in allowed  # what no host of a URL holds
    assert not any(word.startswith("--allowed-local-media-path") for word in words)
    assert (
        environment_of(VLLMOptions(environment={"VLLM_MEDIA_URL_ALLOW_REDIRECTS": "1"}), Path("/run"), "cpu")[
            "VLLM_MEDIA_URL_ALLOW_REDIRECTS"
        ]
        == "0"
    )


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"max_num_seqs": 8}, "--max-num-seqs=8"),
        ({"max_num_batched_tokens": 512}, "--max-num-batched-tokens=512"),
        ({"max_model_len": 4096}, "--max-model-len=4096"),
        ({"dtype": "bfloat16"}, "--dtype=bfloat16"),
        ({"enable_prefix_caching": True}, "--enable-prefix-caching"),
        ({"enable_prefix_caching": False}, "--no-enable-prefix-caching"),
        ({"enable_sleep_mode": True}, "--enable-sleep-mode"),
        ({"num_gpus": 2}, "--tensor-parallel-size=2"),
        ({"num_gpus": 2, "tensor_parallel_size": 4}, "--tensor-parallel-size=4"),
        ({"pipeline_parallel_size": 2}, "--pipeline-parallel-size=2"),
        ({"distributed_executor_backend": "ray"}, "--distributed-executor-backend=ray"),
        ({"python": "/opt/vllm/bin/python"}, "/opt/vllm/bin/python"),
    ],
)
def test_a_knob_becomes_an_argument_and_is_absent_without_it(options: dict[str, Any], word: str):
    assert word in command(card(), **options)
    assert word not in command(card())


def test_the_share_of_a_gpu_and_the_size_of_a_cpus_cache_are_told():
    assert "--gpu-memory-utilization=0.4500" in command(card(), memory_share=0.45)
    assert "--kv-cache-memory-bytes=123" in command(card(), kv=123)


def test_the_card_lowers_the_context_and_names_its_parsers_and_template():
    own = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
    words = command(card(context_length=512, vllm=own, chat_template="{{ x }}"), max_model_len=1024)

    assert {
        "--max-model-len=512",
        "--enable-auto-tool-choice",
        "--tool-call-parser=hermes",
        "--reasoning-parser=qwen3",
        "--chat-template=/run/vllm-x/chat_template.jinja",
    } <= set(words)


def test_what_the_operator_adds_comes_last_and_the_cards_own_after_that():
    words = command(card(vllm={"extra_args": ("--seed=2",)}), extra_args=("--enforce-eager", "--seed=1"))

    assert words[-3:] == ["--enforce-eager", "--seed=1", "--seed=2"]


def test_an_id_that_looks_like_an_argument_stays_a_value():
    odd = ModelCard(id="--help", backend="vllm", sources={"vllm": FileSource(path="/m")})

    assert "--served-model-name=--help" in command(odd)
    assert "--help" not in command(odd)


SECRETS = {
    "LLM_API_TOKENS": "a",
    "LLM_RUNNER_TOKEN": "b",
    "OPENAI_API_KEY": "c",
    "HF_TOKEN": "d",
    "VLLM_API_KEY": "e",
    "AWS_SECRET_ACCESS_KEY": "f",
    "BENTOML_HOME": "g",
    "https_proxy": "http://user:pass@proxy",
}
NEEDED = {
    "PATH": "/bin",
    "CUDA_VISIBLE_DEVICES": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0",
    "NCCL_DEBUG": "INFO",
    "LD_LIBRARY_PATH": "/cuda",
    "HOME": "/home/x",
}


def environment(**options: Any) -> dict[str, str]:
    given = {**SECRETS, **NEEDED, "PYTHONPATH": "/ours", "TMPDIR": "/big"}
    return environment_of(VLLMOptions(environment=given, **options), Path("/run/vllm-x"), "cpu")


def test_the_engine_gets_what_it_needs_and_no_secret():
    assert not set(SECRETS) & set(environment())
    assert NEEDED.items() <= environment().items()


def test_it_looks_nothing_up_tells_nothing_and_leaves_nothing_behind():
    assert {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "TMPDIR": "/run/vllm-x",
        "TORCHINDUCTOR_CACHE_DIR": "/home/x/.cache/vllm/torchinductor",
    }.items() <= environment().items()


def test_our_search_path_is_not_another_interpreters():
    assert environment()["PYTHONPATH"] == "/ours"
    assert "PYTHONPATH" not in environment(python="/opt/vllm/bin/python")


def test_the_environment_does_not_show_in_the_options():
    assert "OPENAI" not in repr(VLLMOptions(environment=SECRETS))
