"""How our commands (`python -m …`) end when nobody reads their output any more, as in `… | head -1`, and at Ctrl-C."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable
from typing import Final, NoReturn

OUTPUT_CLOSED: Final = 128 + signal.SIGPIPE
"""What a shell reports of a program that ends by SIGPIPE. Ours cannot leave it to the signal: it would also come of a
connection that the other side closed."""
INTERRUPTED: Final = 128 + signal.SIGINT


def run(main: Callable[[], int]) -> NoReturn:
    """End the process with what `main` returns; quietly where standard output was closed meanwhile, and with a word
    where somebody interrupted it."""
    try:
        try:
            status = main()
        finally:
            sys.stdout.flush()  # what is still buffered fails here rather than at the interpreter's end
    except BrokenPipeError:
        if not _is_output_closed():
            raise
        # The interpreter flushes once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = OUTPUT_CLOSED
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        status = INTERRUPTED
    sys.exit(status)


def _is_output_closed() -> bool:
    """Whether it is a pipe without a reader, or a socket without another side."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
