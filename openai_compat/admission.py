"""Who may run a completion now, who waits, who is refused.

    limit free?            run
    place in the queue?    wait at most `queue_timeout_s`; one turn per principal, first come first served inside it
    else                   Overloaded, at once

One request takes one slot, whatever its `n`. The slots themselves are a `SlotStore`: a counter in this process, or
the locks that all gateway workers share (`shared_limits`).
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol


class SlotStore(Protocol):
    """A fixed number of slots."""

    def try_acquire(self) -> int | None:
        """A free slot's number, or None at once."""

    def release(self, number: int) -> None:
        """Give the slot back."""


class Slot:
    """One admitted request. `queue_ms`: how long it waited, 0.0 if it did not."""

    queue_ms: float

    def release(self) -> None:
        """Give the slot back; the second and later calls do nothing."""

    async def __aenter__(self) -> Slot:
        raise NotImplementedError

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        raise NotImplementedError


class Admission:
    """The completion slots of this process (signatures; the work follows)."""

    @property
    def running(self) -> int:
        """Completions that hold a slot in this process."""
        raise NotImplementedError

    @property
    def waiting(self) -> int:
        """Completions that wait for a slot in this process."""
        raise NotImplementedError

    @property
    def draining(self) -> bool:
        """True after `drain`."""
        raise NotImplementedError

    def slot(self, principal: str) -> Slot:
        """`async with admission.slot(principal) as slot:`

        Raises on entry: Overloaded (no slot, no place, or waited too long), Draining.
        """
        raise NotImplementedError

    def drain(self) -> None:
        """Refuse whatever comes from now on, and whoever still waits, with Draining."""
        raise NotImplementedError

    async def idle(self, timeout_s: float) -> bool:
        """True as soon as nothing runs here any more; False after `timeout_s`."""
        raise NotImplementedError
