"""The benchmarks themselves run: the real service, a real peer where one is installed, for some seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.llama_cpp_server import NAME, PYTHON
from bench.ours import ROOT

pytestmark = [pytest.mark.serve, pytest.mark.timeout(300)]


def bench(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *arguments, "--out", str(out)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=290, check=False)


def test_measurement_of_the_service_alone_runs(tmp_path: Path) -> None:
    told = bench(tmp_path, "echo", "--requests", "800", "--single-requests", "100", "--rounds", "2")

    assert told.returncode == 0, told.stderr
    assert "| p50 at one connection, ms |" in told.stdout
    assert "- Errors: 0\n" in (tmp_path / "echo.md").read_text()


@pytest.mark.engine
def test_comparison_runs_with_a_peer_that_is_installed_and_says_so_of_one_that_is_not(tmp_path: Path) -> None:
    told = bench(tmp_path, "peers", "--quick", "--only", NAME)

    if PYTHON.is_file():
        assert told.returncode == 0, told.stderr
        assert f"| llama.cpp against {NAME} · 1 stream: output tokens/s |" in told.stdout
    else:
        assert told.returncode == 1
        assert f"{NAME} is LEFT OUT" in told.stderr
    assert "benchmarks.md stays as it is" in told.stderr
