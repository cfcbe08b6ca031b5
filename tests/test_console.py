"""How our commands end when nobody reads their output, and when they are interrupted."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from console import INTERRUPTED, OUTPUT_CLOSED

COMMANDS = (
    "models list",
    "models --help",
    "settings",
    "openai_compat --help",
    "loadtests list",
    "bench --help",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_whose_output_nobody_reads_ends_quietly(command: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    # Unbuffered, the output fails in `argparse`, which does not mind, and the status is 0.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", *command.split()],
            stdout=writing,
            stderr=subprocess.PIPE,
            env=environment,
            check=False,
        )
    finally:
        os.close(writing)

    assert (done.returncode, done.stderr) == (OUTPUT_CLOSED, b"")


def test_another_connection_that_broke_is_told() -> None:
    code = "import console\ndef main():\n    raise BrokenPipeError('of a socket')\nconsole.run(main)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "BrokenPipeError: of a socket" in done.stderr


def test_an_interrupted_command_says_so_and_shows_no_traceback() -> None:
    code = "import console\ndef main():\n    raise KeyboardInterrupt\nconsole.run(main)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (INTERRUPTED, "interrupted\n")


def test_the_status_is_the_commands_own() -> None:
    code = "import console\nconsole.run(lambda: 3)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 3
