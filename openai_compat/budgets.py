"""What each principal may spend in a day, and what it has spent.

A request is checked when it comes and its cost is added when it is known, after its answer. So a budget can be
overshot: by the answers that run at once when it is reached. A day is a day of UTC.

Amounts are whole billionths of a dollar, so that adding them up in a database loses nothing.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

from backends.errors import BackendUnavailable
from openai_compat.errors import QuotaExceeded
from openai_compat.principals import Principal

NANOS: Final = 1_000_000_000
DAY_S: Final = 86_400
EVERYBODY: Final = "*"
"""In the table of budgets: whoever has no entry of his own."""
STORE_RETRY_S: Final = 5.0
MAX_OWING: Final = 10_000
"""Callers whose unbooked costs are kept: with a budget for everybody they may be any number of addresses."""

_log = logging.getLogger(__name__)


class Spent(NamedTuple):
    """Of one principal, today. `resets_in_s`: until the next day begins."""

    nanos: int
    resets_in_s: float


class SpendingStore(Protocol):
    """Where spending is kept. Any method raises `StoreUnavailable`."""

    async def spent(self, name: str) -> Spent: ...

    async def add(self, name: str, nanos: int) -> None: ...

    async def aclose(self) -> None: ...


class StoreUnavailable(Exception):
    """The store cannot be reached or used now; the text says why, for the log."""


class Budgets:
    """The budgets of all principals. Used from one event loop."""

    def __init__(
        self,
        store: SpendingStore | None,
        table: Mapping[str, float] | None = None,
        *,
        on_cost: Callable[[Principal, float], None] = lambda _principal, _usd: None,
    ) -> None:
        """`table`: US dollars a day by name; a principal's own budget goes before it. `store` None: nothing is kept,
        and nobody has a budget. `on_cost` hears of everything that was spent, with or without a budget."""
        self._store = store
        self._table = dict(table or {})
        self._on_cost = on_cost
        self._adding: set[asyncio.Task[None]] = set()
        self._is_down = False
        self._owed: dict[str, int] = {}
        """What could not be booked, by name. It counts all the same, and is booked with the next cost: on a full disk
        sums can be read and not added to, and a budget would have no end."""

    def limit_of(self, principal: Principal) -> float | None:
        """US dollars a day; None is no limit."""
        if principal.budget_usd_per_day is not None:
            return principal.budget_usd_per_day
        found = self._table.get(principal.name)
        return found if found is not None else self._table.get(EVERYBODY)

    async def check(self, principal: Principal) -> None:
        """Raises: QuotaExceeded when the budget is spent; BackendUnavailable when nobody can say whether it is, since
        an unknown sum may be any sum."""
        limit_usd = self.limit_of(principal)
        if limit_usd is None or self._store is None:
            return
        try:
            spent = await self._store.spent(principal.name)
        except StoreUnavailable as exc:
            self._note_down(exc)
            raise BackendUnavailable(
                "What was spent today cannot be read, and this caller has a budget",
                retry_after_s=STORE_RETRY_S,
            ) from None
        if not self._owed:
            self._note_up()
        if spent.nanos + self._owed.get(principal.name, 0) >= limit_usd * NANOS:
            raise QuotaExceeded(limit_usd=limit_usd, resets_in_s=spent.resets_in_s)

    async def add(self, principal: Principal, cost_usd: float) -> None:
        """Book a cost; what cannot be is logged. Once begun it is finished, whatever happens to the caller."""
        self._on_cost(principal, cost_usd)
        nanos = _nanos(cost_usd)
        if self._store is None or nanos == 0 or not self._is_counted(principal):
            return
        task = asyncio.create_task(self._add(self._store, principal.name, nanos))
        self._adding.add(task)
        task.add_done_callback(self._adding.discard)
        await asyncio.shield(task)

    def add_soon(self, principal: Principal, cost_usd: float) -> None:
        """`add`, without waiting for it."""
        task = asyncio.create_task(self.add(principal, cost_usd))
        self._adding.add(task)
        task.add_done_callback(self._adding.discard)

    async def aclose(self) -> None:
        """Finish what is being booked and close the store."""
        if self._adding:
            await asyncio.wait(self._adding, timeout=STORE_RETRY_S)
        if self._store is not None:
            await self._store.aclose()

    def _is_counted(self, principal: Principal) -> bool:
        """A named principal always: it may get a budget in the middle of a day."""
        return principal.is_named or self.limit_of(principal) is not None

    async def _add(self, store: SpendingStore, name: str, nanos: int) -> None:
        owed = self._owed.pop(name, 0)
        try:
            await store.add(name, owed + nanos)
        except StoreUnavailable as exc:
            self._note_down(exc)
            _log.error("%s spent %.9f US dollars that could not be booked", name, nanos / NANOS)
            if owed or len(self._owed) < MAX_OWING:
                self._owed[name] = self._owed.get(name, 0) + owed + nanos
        else:
            self._note_up()

    def _note_down(self, exc: StoreUnavailable) -> None:
        if not self._is_down:
            self._is_down = True
            _log.error("spending cannot be kept, so callers with a budget are refused for clouds: %s", exc)

    def _note_up(self) -> None:
        if self._is_down:
            self._is_down = False
            _log.warning("spending can be kept again")


def day_of(unix_s: float) -> int:
    """The number of the day since 1970, in UTC."""
    return int(unix_s // DAY_S)


def resets_in_s(unix_s: float) -> float:
    """Seconds until the day ends."""
    return DAY_S - unix_s % DAY_S


def _nanos(cost_usd: float) -> int:
    """Rounded up: what costs something never counts as nothing."""
    return max(0, math.ceil(cost_usd * NANOS - 1e-6)) if math.isfinite(cost_usd) else 0
