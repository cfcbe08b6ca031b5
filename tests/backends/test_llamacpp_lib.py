"""The one import of the engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("llama_cpp", reason="the engine is not installed")

pytestmark = pytest.mark.engine

TWO_AT_ONCE = """
import threading
from llama_cpp import llama_cpp as library
from backends.llamacpp.lib import llama

both = threading.Barrier(2)
begun = []
begin = library.llama_backend_init

def slow_begin():
    begun.append(1)
    try:
        both.wait(timeout=0.5)  # goes on at once if a second one comes in here
    except threading.BrokenBarrierError:
        pass
    begin()

library.llama_backend_init = slow_begin
threads = [threading.Thread(target=llama) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(begun))
"""


def test_two_models_that_load_at_once_initialise_the_library_once() -> None:
    told = subprocess.run(
        [sys.executable, "-c", TWO_AT_ONCE],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )

    assert told.stdout.strip() == "1"
