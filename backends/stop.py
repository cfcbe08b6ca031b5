"""Stop strings: cut the text at the earliest match without ever leaking a part of one."""

from __future__ import annotations


class StopMatcher:
    """Watches the text of one choice for stop strings; fed piece by piece, it decides as on the whole.

    The cut is where the match that *starts* earliest starts; of several that start together the longest
    counts. Text is held back from the first place where a stop may still be under way, and no further. So a
    stop that is complete waits while an earlier (or equally early, longer) one is still possible; `flush`
    settles it when generation ends.

    One object per choice. With no stops `feed` returns its argument.
    """

    __slots__ = ("_first", "_held", "_stops", "matched")

    def __init__(self, stops: tuple[str, ...]) -> None:
        """`stops`: non-empty strings, in any order; an empty one would cut everything and is a ValueError."""
        if not all(stops):
            raise ValueError("a stop string is empty")
        # Longest first, so that the first one found at a position is the one that counts.
        self._stops = tuple(sorted(set(stops), key=len, reverse=True))
        self._first = frozenset(stop[0] for stop in stops)
        self._held = ""
        self.matched: str | None = None
        """The stop that ended the text; None while there is none."""

    @property
    def held(self) -> str:
        """The text that was fed and is neither delivered nor cut away."""
        return self._held

    def feed(self, text: str) -> str:
        """Take the next piece; give what may be delivered now, possibly "". After a match everything is
        dropped."""
        if not self._stops:
            return text
        if self.matched is not None:
            return ""
        # Most tokens hold no character that begins a stop: one C-speed pass and they are through.
        if not self._held and self._first.isdisjoint(text):
            return text
        text = self._held + text
        for start, char in enumerate(text):
            if char not in self._first:
                continue
            rest = len(text) - start
            for stop in self._stops:
                if len(stop) <= rest:
                    if text.startswith(stop, start):
                        return self._cut(text, start, stop)
                elif stop.startswith(text[start:]):
                    # Whatever else is complete here starts no earlier and is no longer: wait for this one.
                    self._held = text[start:]
                    return text[:start]
        self._held = ""
        return text

    def flush(self) -> str:
        """The generation is over: settle what is held back and give the part of it that is text.

        A complete stop in it cuts (and sets `matched`); an incomplete one was text after all.
        """
        text, self._held = self._held, ""
        for start, char in enumerate(text):
            if char in self._first:
                for stop in self._stops:
                    if text.startswith(stop, start):
                        return self._cut(text, start, stop)
        return text

    def _cut(self, text: str, start: int, stop: str) -> str:
        self.matched = stop
        self._held = ""
        return text[:start]
