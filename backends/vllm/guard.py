"""Runs a module as the main program of this process, and ends its whole process group when the supervisor is gone.

    PYTHON guard.py FOLDER MODULE [ARGUMENT…]

Started by `backends.vllm.process` in a process group of its own, with a pipe as standard input that nobody writes
into. The pipe closes when the supervisor ends, however it ends; then this group is killed and FOLDER removed: an engine
that nobody knows of would hold a GPU's memory for good. `PR_SET_PDEATHSIG` would reach only this process and not the
engine's own ones.

Executed by the engine's interpreter, so the standard library only, and nothing newer than Python 3.10.
"""

import contextlib
import os
import runpy
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

TRACKER = b"multiprocessing.resource_tracker"
"""Who removes shared memory and semaphores once all who use them are gone, and then goes too: never killed first."""


def _end_when_left(folder: str) -> None:
    while os.read(0, 4096):
        pass
    if not Path("/proc/self/stat").exists():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    for _ in range(50):
        victims = _others()
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not victims:
            break
        time.sleep(0.02)
    shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGKILL)


def _others() -> "list[int]":
    """The living processes of this group but this one and the trackers."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        try:
            is_ours = pid != os.getpid() and os.getpgid(pid) == os.getpgrp()
            command = (entry / "cmdline").read_bytes() if is_ours else b""
        except OSError:
            continue
        # A process that is dead and not yet noticed has no command line.
        if command and TRACKER not in command:
            found.append(pid)
    return found


if __name__ == "__main__":
    # This file's folder comes first in the search path and holds modules that would hide others.
    del sys.path[0]
    _, folder, *sys.argv = sys.argv
    threading.Thread(target=_end_when_left, args=(folder,), name="guard", daemon=True).start()
    # As `python -m` does it: whoever starts processes by spawning names the module, not this file, as the main one.
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
