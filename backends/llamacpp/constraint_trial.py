"""Whether a grammar can be compiled, tried in a process of its own.

llguidance counts most of its work and stops, but not all: a few dozen intersected regexes hold it for minutes, a chain
of some thousand rules ends the process by its stack. What a caller wrote is tried out here first, with so much
processor time, stack and memory. The process starts when it is needed and ends when nothing has come for a while.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Final

from backends.errors import BackendFailed, BackendTimeout

log = logging.getLogger("llm.llamacpp")

_CHILD: Final = Path(__file__).with_name("constraint_trial_child.py")
_TIMEOUT_S: Final = 30.0
"""On the clock of the wall; it passes only where the machine has no time for us, for processor time ends earlier."""
_ENVIRONMENT: Final = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH")
"""What Python may need to start. The rest stays here, keys and tokens above all: what a caller wrote runs in there."""
TOO_LONG: Final = "it takes too long to compile, or too much memory"


class ConstraintTrial:
    """Not thread-safe."""

    def __init__(self, *, timeout_s: float = _TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._child: subprocess.Popen[bytes] | None = None

    def problem(self, grammar: str, limits: dict[str, Any]) -> str | None:
        """Why `grammar`, in llguidance's own form, cannot be used here; None if it can.

        Raises: BackendTimeout when the machine had no time for it; BackendFailed when the process cannot work at all.
        """
        answer = self._answer({"grammar": grammar, "limits": limits})
        problem: str | None = TOO_LONG if answer is None else json.loads(answer)
        return problem

    def lark_of(self, gbnf: str) -> tuple[str, str | None]:
        """A GBNF text as Lark, and why it cannot be used. Raises: as `problem`."""
        answer = self._answer({"gbnf": gbnf})
        if answer is None:
            return "", TOO_LONG
        lark, problem = json.loads(answer)
        return lark, problem

    def _answer(self, asked: dict[str, Any]) -> bytes | None:
        """What the process says; None where a limit ended it."""
        question = json.dumps(asked).encode() + b"\n"
        for is_last in (False, True):
            child = self._running()
            timer = threading.Timer(self._timeout_s, child.kill)
            timer.start()
            try:
                answer = _ask(child, question)
            finally:
                is_late = not timer.is_alive()
                timer.cancel()
            if answer:
                return answer
            self.close()
            if is_late:
                raise BackendTimeout(f"The constraint was not compiled within {self._timeout_s:g} s")
            # It may have ended on its own account while the question was on its way.
            if is_last or child.returncode != 0:
                break
        if child.returncode > 0:  # a limit ends it by a signal; so this is no grammar's doing
            log.error(
                "constraints cannot be tried: `%s -I %s` ends with %d",
                sys.executable,
                _CHILD,
                child.returncode,
            )
            raise BackendFailed("Constraints cannot be compiled at the moment")
        return None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self.close()
            self._child = subprocess.Popen(  # noqa: S603 - our own file, by our own Python
                [sys.executable, "-I", str(_CHILD)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            )
        return self._child

    def close(self) -> None:
        """End the process. Idempotent."""
        if self._child is not None:
            child, self._child = self._child, None
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):  # what was not written yet
                        pipe.close()
            try:
                child.wait(0.5)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _ask(child: subprocess.Popen[bytes], question: bytes) -> bytes:
    """Its answer; nothing when it is no more."""
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(question)
        child.stdin.flush()
        return child.stdout.readline()
    except BrokenPipeError:
        return b""
