"""Receipts of the shipped model through a served instance, and their replay by the command that people run."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.backends.shipped_model import gguf
from tests.conformance.conftest import ROOT, Instance

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]

MODEL = "smollm2"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}},
    "required": ["name"],
    "additionalProperties": False,
}
MESSAGES: Any = [{"role": "user", "content": "Tell me about rivers in two sentences."}]


def post(instance: Instance, path: str, **body: Any) -> httpx.Response:
    with httpx.Client(base_url=instance.base_url, timeout=120, trust_env=False) as http:
        return http.post(path, json={"model": MODEL, "receipt": True, **body}).raise_for_status()


def chat(instance: Instance, **body: Any) -> dict[str, Any]:
    answer: dict[str, Any] = post(
        instance, "/v1/chat/completions", **{"messages": MESSAGES, "max_tokens": 40, **body}
    ).json()
    return answer


def replay(file: Path, base_url: str, *options: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "openai_compat", "replay", str(file), "--base-url", base_url, "--json"]
    done = subprocess.run(
        [*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, json.loads(done.stdout)


def kept(tmp_path: Path, content: Any) -> Path:
    file = tmp_path / "receipt.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def test_a_receipt_of_the_real_engine_has_all_that_it_should(instance: Instance) -> None:
    receipt = chat(instance, user="me")["llm_receipt"]

    assert receipt["model"]["sha256"] == hashlib.sha256(gguf().read_bytes()).hexdigest()
    assert (receipt["backend"], receipt["repeats"]) == ("llamacpp", "exact")
    assert receipt["engine"]["name"] == "llama.cpp"
    assert receipt["engine"]["version"].startswith("llama-cpp-python ")
    assert isinstance(receipt["sampling"]["seed"], int)
    assert receipt["ignored"] == ["user"]
    assert {"field": "model", "from": MODEL, "to": "smollm2-135m-instruct"} in receipt["rewritten"]
    assert receipt["timing"]["decode_ms"] > 0
    assert receipt["usage"]["prompt_tokens"] > 0
    assert "/" not in json.dumps([receipt["model"], receipt["engine"]])


TOOL = {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}


@pytest.mark.parametrize(
    "body",
    [
        {"temperature": 0},
        {"temperature": 1.2},
        {"temperature": 0.9, "n": 3},
        {"temperature": 1, "max_tokens": 100, "tools": [TOOL], "tool_choice": "required"},
        {
            "temperature": 1,
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}},
        },
    ],
)
def test_a_receipt_is_replayed_to_the_same_text(
    instance: Instance, tmp_path: Path, body: dict[str, Any]
) -> None:
    answer = chat(instance, **body)
    # What the cache holds meanwhile must not matter.
    chat(instance, messages=[*MESSAGES, {"role": "assistant", "content": "Rivers"}], temperature=1)

    whole = replay(kept(tmp_path, answer), instance.base_url)
    alone = replay(kept(tmp_path, answer["llm_receipt"]), f"{instance.base_url}/v1")

    assert whole == alone == (0, {**whole[1], "result": "same text", "reasons": [], "notes": []})


def test_a_saved_stream_is_replayed_to_the_same_text(instance: Instance, tmp_path: Path) -> None:
    stream = post(
        instance, "/v1/chat/completions", messages=MESSAGES, max_tokens=40, temperature=1, stream=True
    ).text

    assert replay(kept(tmp_path, stream), instance.base_url)[0] == 0


def test_a_text_completion_and_embeddings_are_replayed(instance: Instance, tmp_path: Path) -> None:
    completion = post(
        instance, "/v1/completions", prompt=["A river is", "The sea is"], max_tokens=20, temperature=1, n=2
    )
    vectors = post(instance, "/v1/embeddings", model="all-minilm-l6-v2", input=["a", "b"])

    assert replay(kept(tmp_path, completion.text), instance.base_url)[0] == 0
    assert replay(kept(tmp_path, vectors.text), instance.base_url)[0] == 0


def test_another_seed_is_another_text_and_the_edited_receipt_is_the_reason(
    instance: Instance, tmp_path: Path
) -> None:
    answer = chat(instance, temperature=1.5)
    answer["llm_receipt"]["sampling"]["seed"] += 1
    code, said = replay(kept(tmp_path, answer), instance.base_url)

    assert code == 1
    assert [reason["name"] for reason in said["reasons"]] == ["edited"]
    assert "differs at character" in said["difference"]


def test_openais_client_sees_the_receipt_in_the_last_chunk_and_in_no_other(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=8, stream=True, extra_body={"receipt": True}
        )
    )
    whole = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=8, extra_body={"receipt": True}
    )

    assert [hasattr(chunk, "llm_receipt") for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].choices[0].finish_reason is not None
    assert whole.llm_receipt["version"] == 1  # type: ignore[attr-defined]
