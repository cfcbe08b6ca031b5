"""The command `llm`, told of the service in its extra-openai-models.yaml."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.conftest import Served

CLIENT = "[llm](https://github.com/simonw/llm) (command)"
PACKAGE = "llm"
TIMEOUT_S = 60
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "age": {"type": "integer", "maximum": 20},
        },
        "required": ["name", "age"],
    }
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Its folder of settings and logs."""
    return tmp_path


def tell(home: Path, served: Served) -> None:
    (home / "extra-openai-models.yaml").write_text(
        f"- model_id: mine\n  model_name: {served.model}\n  api_base: {served.base_url}\n"
        "  supports_schema: true\n  supports_tools: true\n"
    )


def llm(home: Path, *arguments: str) -> str:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("llm")), *arguments],
        env=os.environ | {"LLM_USER_PATH": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_chat__a_prompt_is_answered(home: Path, llamacpp: Served) -> None:
    tell(home, llamacpp)

    said = llm(home, "-m", "mine", "--no-stream", "-o", "max_tokens", "24", "Ten fun names for a pet pelican")

    assert said.strip()


def test_stream__a_prompt_is_answered_as_it_is_made(home: Path, llamacpp: Served) -> None:
    tell(home, llamacpp)

    said = llm(home, "-m", "mine", "-o", "max_tokens", "24", "Ten fun names for a pet pelican")

    assert said.strip()


def test_structured_result__a_schema_is_met(home: Path, llamacpp: Served) -> None:
    tell(home, llamacpp)

    said = llm(home, "-m", "mine", "--schema", SCHEMA, "invent a cool dog")

    assert set(json.loads(said)) == {"name", "age"}


def test_tools__a_function_is_called_and_its_result_talked_about(home: Path, fake: Served) -> None:
    tell(home, fake)
    code = 'def upper_word(text: str) -> str:\n    """Shout."""\n    return "SHOUTED"\n'

    said = llm(home, "-m", "mine", "--functions", code, "upper_word of panda")

    assert said.strip() == "SHOUTED"
