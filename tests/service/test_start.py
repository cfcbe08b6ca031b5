"""A start that cannot work ends at once, with one sentence that says what to do."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import httpx
import pytest

from tests.conformance.conftest import Instance
from tests.service.conftest import Start


def _ended(instance: Instance, within_s: float = 8.0) -> tuple[int, str]:
    code = instance.process.wait(within_s)
    return code, instance.log.read_text()


def test_without_a_default_backend_the_start_stops_and_names_the_choices(start: Start) -> None:
    begun = time.monotonic()

    code, said = _ended(start(wait=False, LLM_DEFAULT_BACKEND=""))

    assert code != 0
    assert time.monotonic() - begun < 8
    assert "LLM_DEFAULT_BACKEND" in said
    assert all(name in said for name in ("llamacpp", "vllm", "litellm"))
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"LLM_DEFAULT_BACKEND": "llama"}, "LLM_DEFAULT_BACKEND is 'llama'; allowed: one of"),
        ({"LLM_RATE_LIMIT_RPS": "fast"}, "LLM_RATE_LIMIT_RPS is 'fast'; allowed:"),
        ({"LLM_MODEL_DIRS": "/nowhere/at/all"}, "LLM_MODEL_DIRS names '/nowhere/at/all'"),
        ({"LLM_CATALOGUE": "/nowhere.yaml"}, "LLM_CATALOGUE is '/nowhere.yaml'; allowed: a readable file"),
        ({"LLM_RATE_LIMT_RPS": "3", "LLM_STRICT_ENV": "1"}, "did you mean LLM_RATE_LIMIT_RPS?"),
        ({"LLM_ARGS__LLAMACPP__NUM_SLOTS": "many"}, "NUM_SLOTS"),
    ],
)
def test_a_setting_that_cannot_be_used_stops_the_start(
    start: Start, settings: dict[str, str], sentence: str
) -> None:
    code, said = _ended(start(wait=False, **settings))

    assert code != 0
    assert sentence in said
    assert "Traceback" not in said


def test_a_taken_port_stops_the_start_and_says_so(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        monkeypatch.setattr(Instance, "free_port", staticmethod(lambda: port))

        code, said = _ended(start(wait=False, LLM_DEFAULT_BACKEND="fake"))

    assert code != 0
    assert f"port {port} on 127.0.0.1 cannot be used" in said
    assert "choose another with --port" in said


def test_a_misspelt_variable_is_warned_about_with_the_near_miss(start: Start) -> None:
    instance = start(LLM_DEFAULT_BACKEND="fake", LLM_RATE_LIMT_RPS="3")

    assert "did you mean LLM_RATE_LIMIT_RPS?" in instance.log.read_text()


def test_a_broken_file_in_a_model_folder_is_a_422_and_the_service_goes_on(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + b"\0" * 64)
    (tmp_path / "text.gguf").write_text("not a model")
    instance = start(LLM_MODEL_DIRS=str(tmp_path), LLM_RATE_LIMIT_RPS="0")

    answers = [
        httpx.post(
            f"{instance.base_url}/v1/models/load", json={"model": name, "backend": "llamacpp"}, timeout=30
        )
        for name in ("broken", "text")
    ]
    chat = httpx.post(
        f"{instance.base_url}/v1/chat/completions",
        json={
            "model": "smollm2-135m-instruct",
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 2,
        },
        timeout=60,
    )

    assert [answer.status_code for answer in answers] == [422, 422]
    assert all(str(tmp_path) not in answer.text for answer in answers)
    assert chat.status_code == 200
