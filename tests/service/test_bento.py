"""The Bento that `bentoml build` makes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conformance.conftest import ROOT


@pytest.fixture(scope="module")
def bento(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("bentoml")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("LLM_", "BENTOML_"))
    }
    path = f"{ROOT / '.venv-uv' / 'bin'}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "bentoml", "build", "--output", "tag", "."],
        cwd=ROOT,
        env=environment | {"BENTOML_HOME": str(home), "BENTOML_DO_NOT_TRACK": "True", "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    name, _, version = done.stdout.strip().removeprefix("__tag__:").partition(":")
    return home / "bentos" / name / version


def test_it_lists_every_runner_that_it_may_be_asked_to_start(bento: Path) -> None:
    """A Bento refuses to start a service that was not there when it was built, whatever is set then."""
    services = {service["name"] for service in yaml.safe_load((bento / "bento.yaml").read_text())["services"]}

    assert services == {"Gateway", "LlamaCppRunner", "VLLMRunner", "LiteLLMRunner", "FakeRunner"}


def test_it_holds_neither_tests_nor_weights_nor_secrets(bento: Path) -> None:
    files = {path.relative_to(bento / "src") for path in (bento / "src").rglob("*") if path.is_file()}
    tops = {path.parts[0] for path in files}

    assert not tops & {"tests", "bench", "loadtests", "docs", "tools", ".git", ".venv", ".env"}
    assert not [path for path in files if path.suffix in (".gguf", ".safetensors")]
    assert {"service.py", "models", "backends", "openai_compat", "requirements", "wheels"} <= tops


def test_its_image_installs_no_compiler_and_checks_every_hash(bento: Path) -> None:
    dockerfile = (bento / "env" / "docker" / "Dockerfile").read_text()
    locked = (bento / "env" / "python" / "requirements.txt").read_text()
    pins = [line for line in locked.splitlines() if "==" in line and not line.lstrip().startswith("#")]

    assert "apt-get" not in dockerfile
    # BentoML adds itself once more, without a hash; the lock's own line has them.
    assert [pin for pin in pins if not pin.endswith("\\")] == ["bentoml==1.4.40"]
    assert any(pin.startswith("bentoml==1.4.40") and pin.endswith("\\") for pin in pins)
