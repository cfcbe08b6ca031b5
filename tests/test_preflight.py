"""A start that would fail later is refused at once, in a sentence that says what to do."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from preflight import check_can_serve, check_interpreter
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
