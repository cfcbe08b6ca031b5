"""The Modal app: imported, and what it would deploy looked at. Nothing is sent anywhere."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.deploy
PATH = Path(__file__).resolve().parents[2] / "deploy" / "modal_app.py"


@pytest.fixture(scope="module")
def module() -> ModuleType:
    pytest.importorskip("modal", reason="make check-deploy installs it")
    spec = importlib.util.spec_from_file_location("modal_app", PATH)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_it_serves_two_functions_on_the_web(module: ModuleType) -> None:
    assert module.app.name == "llm-inference"
    # The public names for this are deprecated, and nothing has taken their place.
    assert set(module.app._local_state.web_endpoints) == {"cpu", "gpu"}


def test_only_one_of_them_takes_a_gpu(module: ModuleType) -> None:
    assert module.gpu._spec_.gpus == "L4"
    assert module.cpu._spec_.gpus is None


def test_both_know_the_secret_by_name_only(module: ModuleType) -> None:
    for function in (module.cpu, module.gpu):
        assert [repr(secret) for secret in function._spec_.secrets] == [
            "modal.Secret.from_name('llm-inference')"
        ]


def test_it_starts_what_the_image_starts(module: ModuleType) -> None:
    dockerfile = (PATH.parent / "image" / "Dockerfile").read_text()

    assert f'ENTRYPOINT ["{module.SERVE[0]}"]' in dockerfile
    assert "serve" in module.SERVE
