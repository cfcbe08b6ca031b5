"""The list of what is in the image, made here of what is installed here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "sbom.py"


@pytest.fixture(scope="module")
def text() -> str:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


@pytest.fixture(scope="module")
def components(text: str) -> dict[str, Any]:
    return {component["bom-ref"]: component for component in json.loads(text)["components"]}


@pytest.mark.deploy
def test_it_is_valid_cyclonedx(text: str) -> None:
    pytest.importorskip("cyclonedx", reason="make check-deploy installs it")
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


def test_each_python_package_has_an_address_and_most_a_licence(components: dict[str, Any]) -> None:
    packages = [component for name, component in components.items() if name.startswith("pypi:")]

    assert len(packages) > 5
    assert all(component["purl"].endswith(f"@{component['version']}") for component in packages)
    assert sum(bool(component["licenses"]) for component in packages) > 0.8 * len(packages)
