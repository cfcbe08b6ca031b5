"""Runs a module as the main program of this process, and ends its whole process group when the supervisor is gone.

    PYTHON guard.py MODULE [ARGUMENT…]

Started by `backends.vllm.process` in a process group of its own, with a pipe as standard input that nobody writes
into. The pipe closes when the supervisor ends, however it ends; then this group is killed: an engine that nobody knows
of would hold a GPU's memory for good. `PR_SET_PDEATHSIG` would reach only this process and not the engine's own ones.

Executed by the engine's interpreter, so the standard library only, and nothing newer than Python 3.10.
"""

import os
import runpy
import signal
import sys
import threading


def _outlive_nobody() -> None:
    while os.read(0, 4096):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_outlive_nobody, name="guard", daemon=True).start()
    # This file's folder comes first in the search path and holds modules that would hide others.
    del sys.path[0]
    del sys.argv[0]
    # As `python -m` does it: whoever starts processes by spawning names the module, not this file, as the main one.
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
