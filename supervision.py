"""What BentoML's supervisor and its processes should do otherwise when one of them dies.

Measured on BentoML 1.4.40: inside a container the supervisor replaces no dead process, but ends the whole service with
code 1; anywhere it looks for dead processes every ten seconds, so that a runner is away for up to 14; and when the
supervisor itself is killed, its processes go on without it, with the port, so that no new service can start.
"""

from __future__ import annotations

import ctypes
import functools
import signal
import sys
from collections.abc import MutableMapping
from typing import Final

CHECK_S: Final = 1.0
"""How often the supervisor looks. One look costs some system calls per process."""


def keep_processes_alive(environment: MutableMapping[str, str]) -> None:
    """Called in the process that is about to supervise, before BentoML has made its supervisor. `environment` is that
    process's own: BentoML takes the mere presence of a variable for being in a container."""
    from bentoml._internal.utils import circus

    environment.pop("BENTOML_CONTAINERIZED", None)
    # BentoML imports this by name when it serves; there is no setting.
    circus.create_standalone_arbiter = functools.partial(
        circus.create_standalone_arbiter, check_delay=CHECK_S
    )


def end_with_supervisor() -> None:
    """Called in a process that a supervisor started: when that one is gone, however it went, this one gets SIGTERM and
    stops as if told to. Linux only; elsewhere there is nothing to ask for it."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))


_PR_SET_PDEATHSIG: Final = 1
