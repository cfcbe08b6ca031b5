"""llama-cpp-python's own server as a peer: what it is asked, and what is said where it is missing."""

from __future__ import annotations

import argparse
import stat
from pathlib import Path

import pytest

from bench import llama_cpp_server
from bench.client import chat
from bench.measurement import PeerMissing, Setup

FAKE = """#!/bin/sh
echo '{"ends": [0, 2], "version": "1.2"}'
"""


def options(python: Path) -> argparse.Namespace:
    return argparse.Namespace(python=python, ctx_per_slot=512, threads=3, slots=4)


def setup(out: Path) -> Setup:
    return Setup(out=out, priority=None, llama_server=None, seed=1)


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An interpreter that tells which tokens end a text."""
    file = tmp_path / "python"
    file.write_text(FAKE)
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(llama_cpp_server, "find_gguf", lambda: tmp_path / "m.gguf")
    return file


def test_request_forbids_the_ends_of_a_text_instead_of_ignoring_them(python: Path, tmp_path: Path) -> None:
    peer = llama_cpp_server.peer(options(python), setup(tmp_path))

    body = peer.body(chat("Hello", 5))
    assert "ignore_eos" not in body
    assert body["logit_bias"] == {"0": -100.0, "2": -100.0}
    assert (body["max_tokens"], body["temperature"], body["stream"]) == (5, 0, True)


def test_requests_do_not_interrupt_one_another(python: Path, tmp_path: Path) -> None:
    peer = llama_cpp_server.peer(options(python), setup(tmp_path))

    assert "--interrupt_requests false" in peer.settings
    assert "--n_ctx 512 --n_threads 3 --n_threads_batch 3" in peer.settings
    assert peer.versions == {"llama_cpp.server": "1.2"}


def test_server_that_is_not_installed_is_missing(tmp_path: Path) -> None:
    with pytest.raises(PeerMissing, match="make bench-setup"):
        llama_cpp_server.peer(options(tmp_path / "none"), setup(tmp_path))


def test_python_without_the_package_is_missing_too(python: Path, tmp_path: Path) -> None:
    python.write_text("#!/bin/sh\necho 'no module named llama_cpp' >&2; exit 1\n")

    with pytest.raises(PeerMissing, match="no module named llama_cpp"):
        llama_cpp_server.peer(options(python), setup(tmp_path))
