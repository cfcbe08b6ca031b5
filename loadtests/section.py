"""A mapping of a workload file, read key by key: whatever is wrong is named by its place."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any


class WorkloadError(ValueError):
    """A workload file says something it cannot. The message begins with the place, such as `arrival.rate`."""


class Section:
    """Each key is asked for once; `end` refuses those that nobody asked for."""

    def __init__(self, raw: object, place: str = "") -> None:
        if not isinstance(raw, Mapping):
            raise WorkloadError(f"{place or 'the file'}: {raw!r:.80} is not a mapping")
        self.place = place
        self._raw = raw
        self._asked: set[str] = set()

    def _at(self, name: str) -> str:
        return f"{self.place}.{name}" if self.place else name

    def error(self, name: str, problem: str) -> WorkloadError:
        return WorkloadError(f"{self._at(name)}: {problem}")

    def has(self, name: str) -> bool:
        return self._raw.get(name) is not None

    def names(self) -> list[str]:
        """All keys, all of them asked for."""
        self._asked.update(map(str, self._raw))
        return [str(name) for name in self._raw]

    def raw(self, name: str, default: Any = None) -> Any:
        self._asked.add(name)
        value = self._raw.get(name)
        return default if value is None else value

    def number(
        self,
        name: str,
        default: float | None = None,
        *,
        above: float | None = None,
        least: float | None = None,
    ) -> float:
        """A finite number. Without a default it must be there."""
        value = self.raw(name, default)
        if value is None:
            raise self.error(name, "it is missing")
        allowed = (
            f" above {above:g}"
            if above is not None
            else f" of {least:g} or more"
            if least is not None
            else ""
        )
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not abs(value) < 1e12
            or (above is not None and value <= above)
            or (least is not None and value < least)
        ):
            raise self.error(name, f"{value!r} is not a number{allowed}")
        return float(value)

    def integer(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        value = self.raw(name, default)
        if value is None:
            raise self.error(name, "it is missing")
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(name, f"{value!r} is not a whole number of {least} or more")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self.raw(name, default)
        if not isinstance(value, str) or (default is None and not value.strip()):
            raise self.error(name, "it is missing" if value is None else f"{value!r:.80} is not a text")
        return value.strip()

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.raw(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"{value!r:.80} is not true or false")
        return value

    def one_of(self, name: str, allowed: Sequence[str], default: str | None = None) -> str:
        value = self.raw(name, default)
        if value not in allowed:
            known = ", ".join(allowed)
            raise self.error(
                name,
                f"it is missing; one of {known}" if value is None else f"{value!r} is not one of {known}",
            )
        return str(value)

    def items(self, name: str) -> list[Any]:
        """A list with something in it."""
        value = self.raw(name)
        if not isinstance(value, list) or not value:
            raise self.error(
                name, "it is missing" if value is None else f"{value!r:.80} is not a list with entries"
            )
        return value

    def section(self, name: str, default: Mapping[str, Any] | None = None) -> Section:
        value = self.raw(name, default)
        if value is None:
            raise self.error(name, "it is missing")
        return Section(value, self._at(name))

    def end(self) -> None:
        """Raises: WorkloadError for the first key that nobody asked for, with the nearest that exists."""
        for name in self._raw:
            if name not in self._asked:
                near = difflib.get_close_matches(str(name), self._asked, n=1)
                hint = (
                    f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(sorted(self._asked))}"
                )
                raise self.error(str(name), f"there is no such key{hint}")
