"""A start that would fail later is refused at once, in a sentence that says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from preflight import check_callers, check_can_serve, check_interpreter
from settings import Args, SettingsError, load_settings


def check(monkeypatch: pytest.MonkeyPatch, args: dict[str, Any], **variables: str) -> None:
    for name in [name for name in os.environ if name.startswith("LLM_")]:
        monkeypatch.delenv(name)
    for name, value in {"LLM_DEFAULT_BACKEND": "vllm", **variables}.items():
        monkeypatch.setenv(name, value)
    tree = Args.model_validate(args)
    check_can_serve(load_settings(tree), tree, ("vllm",), ("vllm",))


def test_an_interpreter_without_the_package_is_named():
    with pytest.raises(
        SettingsError, match=r"vllm\.python is '.*', which has not got the package 'no_such_thing'"
    ):
        check_interpreter(sys.executable, "no_such_thing")


def test_an_interpreter_that_cannot_be_run_is_named(tmp_path: Path):
    with pytest.raises(SettingsError, match=r"which cannot be run \(No such file or directory\)"):
        check_interpreter(str(tmp_path / "python"), "json")


def test_an_interpreter_that_has_the_package_passes():
    check_interpreter(sys.executable, "json")


def test_vllm_may_live_in_another_interpreter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 0\n")
    python.chmod(0o755)

    check(monkeypatch, {"vllm": {"python": str(python)}})


def test_servers_that_run_elsewhere_need_no_package(monkeypatch: pytest.MonkeyPatch):
    check(monkeypatch, {"vllm": {"python": "/no/such/python"}}, LLM_VLLM_BASE_URL="http://gpu:8000/v1")
    check(monkeypatch, {"vllm": {"url": "http://127.0.0.1:9"}})


def callers(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name in [name for name in os.environ if name.startswith("LLM_")]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    check_callers(load_settings())


def principals(folder: Path, more: str = "") -> str:
    file = folder / "principals.yaml"
    file.write_text(f"principals: [{{name: alice, token_sha256: '{'a' * 64}'{more}}}]")
    return str(file)


def test_a_principals_file_that_cannot_be_used_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=r"LLM_PRINCIPALS_FILE is '.*', which cannot be used: .*privacy"):
        callers(monkeypatch, LLM_PRINCIPALS_FILE=principals(tmp_path, ", privacy: none"))


def test_budgets_need_a_folder_that_can_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")

    for variables in (
        {"LLM_BUDGETS": "alice=5"},
        {"LLM_PRINCIPALS_FILE": principals(tmp_path, ", budget_usd_per_day: 1")},
    ):
        with pytest.raises(SettingsError, match="set LLM_STATE_DIR or LLM_REDIS_URL"):
            callers(monkeypatch, LLM_STATE_DIR=str(blocked / "state"), **variables)


def test_the_folder_of_the_budgets_is_made_for_its_owner_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    callers(monkeypatch, LLM_STATE_DIR=str(tmp_path / "a" / "b"), LLM_BUDGETS="*=1")

    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_without_budgets_no_folder_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    callers(monkeypatch, LLM_STATE_DIR=str(tmp_path / "s"), LLM_PRINCIPALS_FILE=principals(tmp_path))
    callers(
        monkeypatch,
        LLM_STATE_DIR=str(tmp_path / "s"),
        LLM_BUDGETS="*=1",
        LLM_REDIS_URL="redis://127.0.0.1:1/0",
    )

    assert not (tmp_path / "s").exists()


def test_more_open_files_than_the_soft_limit_are_allowed() -> None:
    code = (
        "import resource, preflight\n"
        "_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))\n"
        "preflight.allow_open_files()\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 64)\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "True\n"
