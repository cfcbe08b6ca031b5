"""The list of what is in the image, made of the image itself."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.images.conftest import Container

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "sbom.py"
SITE = "/app/.venv/lib/python3.11/site-packages"


@pytest.fixture(scope="module")
def components(image: str) -> dict[str, Any]:
    done = subprocess.run(
        ["docker", "run", "--rm", "--interactive", "--network", "none", "--entrypoint", "python", image, "-"],
        input=SCRIPT.read_text(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return {component["bom-ref"]: component for component in json.loads(done.stdout)["components"]}


def _of(components: dict[str, Any], kind: str) -> dict[str, Any]:
    return {name: component for name, component in components.items() if name.startswith(f"{kind}:")}


def test_every_installed_package_is_listed(components: dict[str, Any], container: Container) -> None:
    folders = container.run("sh", "-c", f"ls -d {SITE}/*.dist-info").split()
    installed = {re.sub(r"[-_.]+", "-", Path(folder).name.split("-")[0]).lower() for folder in folders}
    debian = set(container.run("dpkg-query", "--show", "--showformat", "${Package}\n").split())

    assert len(installed) > 50
    assert installed <= {
        component["purl"][9:].split("@")[0] for component in _of(components, "pypi").values()
    }
    assert debian == {name.removeprefix("deb:") for name in _of(components, "deb")}
    assert "vendored:llama.cpp" in components


def test_every_package_of_debian_and_nearly_every_one_of_python_names_its_licence(
    components: dict[str, Any],
) -> None:
    debian, python = _of(components, "deb"), _of(components, "pypi")
    without = {name for name, component in python.items() if not component["licenses"]}

    print(f"{len(python)} Python packages, {len(debian)} of Debian; without a licence of its own: {without}")
    assert len(without) <= 0.05 * len(python)
    assert sum(bool(component["licenses"]) for component in debian.values()) >= 0.8 * len(debian)


def test_the_weights_are_listed_with_licence_and_hash(
    components: dict[str, Any], container: Container
) -> None:
    weights = _of(components, "weights")

    assert len(weights) == 2
    for component in weights.values():
        file = f"{SITE}/{component['properties'][0]['value']}"
        assert component["hashes"][0]["content"] == container.run("sha256sum", file).split()[0]
        assert component["licenses"] == [{"license": {"id": "Apache-2.0"}}]
