"""What BentoML's supervisor should do otherwise for a service that has to outlive its processes' deaths.

Measured on BentoML 1.4.40: inside a container it replaces no dead process, but ends the whole service with code 1; and
anywhere it looks for dead processes every ten seconds, so that a runner is away for up to 14.
"""

from __future__ import annotations

import functools
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
