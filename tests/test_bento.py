"""What goes into the Bentos: the service, and of everything else what building the image reads."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGES = ("backends", "models", "openai_compat", "settings")
PATH = f"{REPOSITORY / '.venv-uv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
WRITTEN_BY_BENTOML = {"bentofile.yaml"}
ALWAYS = {"LICENSE", "README.md", "wheels/README.md", "models/catalogue.yaml", "models/catalogue.schema.json"}


def _sources() -> set[str]:
    files = [
        *REPOSITORY.glob("*.py"),
        *(file for name in PACKAGES for file in (REPOSITORY / name).rglob("*.py")),
    ]
    return {str(file.relative_to(REPOSITORY)) for file in files}


def _read_by_the_build(bentofile: dict[str, Any]) -> tuple[set[str], set[str]]:
    """The locks and the scripts that the image's set-up script names, and those that these name in turn."""
    texts = [bentofile["python"]["requirements_txt"]]
    scripts: set[str] = set()
    waiting = {bentofile["docker"]["setup_script"].removeprefix("./")}
    while waiting:
        text = (REPOSITORY / waiting.pop()).read_text()
        texts.append(text)
        waiting |= set(re.findall(r"^deploy/image/\w+\.sh", text, re.M)) - scripts
        scripts |= waiting
    # uv is there while a Bento becomes an image: BentoML sees to it.
    return set(re.findall(r"requirements/[\w-]+\.txt", "\n".join(texts))) - {"requirements/uv.txt"}, scripts


@pytest.mark.skipif(not shutil.which("uv", path=PATH), reason="BentoML wants uv; make has it in .venv-uv")
@pytest.mark.parametrize(
    ("file", "is_with_wheel"), [("bentofile.yaml", True), ("bentofile.gpu.yaml", False)], ids=["cpu", "gpu"]
)
def test_a_bento_holds_the_service_and_what_the_build_of_its_image_reads(
    file: str, is_with_wheel: bool, tmp_path: Path
) -> None:
    environment = os.environ | {"PATH": PATH, "BENTOML_HOME": str(tmp_path), "BENTOML_DO_NOT_TRACK": "True"}
    subprocess.run(
        [sys.executable, "-m", "bentoml", "build", "--bentofile", file, "."],
        cwd=REPOSITORY,
        env=environment,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (source,) = tmp_path.glob("bentos/*/*/src")
    found = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}

    locks, scripts = _read_by_the_build(yaml.safe_load((REPOSITORY / file).read_text()))
    # Whoever never made the image has no compiled wheel.
    wheels = {str(path.relative_to(REPOSITORY)) for path in REPOSITORY.glob("wheels/*") if is_with_wheel}
    assert found - WRITTEN_BY_BENTOML == _sources() | ALWAYS | locks | scripts | wheels
