"""How the compiled wheel of llama.cpp is told from others, and what is taken out of it."""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "tools" / "source_wheel.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    specification = importlib.util.spec_from_file_location("source_wheel", SCRIPT)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["source_wheel"] = module  # dataclasses look their module up
    specification.loader.exec_module(module)
    return module


def test_a_library_that_is_left_out_is_out_of_the_record_too(script: ModuleType, tmp_path: Path) -> None:
    wheel = tmp_path / "engine-1-py3-none-any.whl"
    files = ("lib/libggml-cpu-zen4.so", "lib/libggml-cpu-icelake.so", "lib/old-libggml-cpu-icelake.so")
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in files:
            archive.writestr(name, name)
        archive.writestr("engine-1.dist-info/RECORD", "".join(f"{name},sha256=x,9\n" for name in files))

    script.without(wheel, {"libggml-cpu-icelake.so"})

    with zipfile.ZipFile(wheel) as archive:
        assert set(archive.namelist()) == {files[0], files[2], "engine-1.dist-info/RECORD"}
        record = archive.read("engine-1.dist-info/RECORD").decode()
    assert [line.split(",")[0] for line in record.splitlines()] == [files[0], files[2]]


def test_a_portable_wheel_is_another_one_than_this_machine_s_own(script: ModuleType) -> None:
    package = script.PACKAGES["llama-cpp-python"]
    portable = replace(package, is_portable=True)

    assert script.wheel_folder(script.identity(package)) != script.wheel_folder(script.identity(portable))
    assert script.identity(portable)["instruction_sets"] == []


def test_wheels_of_two_checkouts_are_one(script: ModuleType) -> None:
    """CMake is told where the checkout lies; the wheel does not depend on it."""
    package = replace(script.PACKAGES["llama-cpp-python"], is_portable=True)

    assert str(SCRIPT.parent) in script.less(package)
    assert str(SCRIPT.parent) not in repr(script.identity(package))


def test_other_variants_are_another_wheel(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    package = replace(script.PACKAGES["llama-cpp-python"], is_portable=True)
    before = script.wheel_folder(script.identity(package))

    monkeypatch.setattr(script, "LEFT_OUT_VARIANTS", ("sapphirerapids",))

    assert script.wheel_folder(script.identity(package)) != before
