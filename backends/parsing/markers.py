"""Looking for markers in a text that is still being written."""

from __future__ import annotations


def find_marker(text: str, markers: tuple[str, ...]) -> tuple[int, str | None]:
    """Where the first marker starts, and which it is. No marker begins with another one.

    Without one: where the text ends that can hold none any more. What follows is the beginning of a marker.
    """
    found, which = len(text), None
    begun = len(text)
    for marker in markers:
        at = text.find(marker)
        if 0 <= at < found:
            found, which = at, marker
        begun = min(begun, _begun_at(text, marker))
    return (found, which) if found < begun else (begun, None)


def _begun_at(text: str, marker: str) -> int:
    """Where the text's end begins that is a beginning of the marker; the text's length if there is none."""
    for start in range(max(0, len(text) - len(marker) + 1), len(text)):
        if marker.startswith(text[start:]):
            return start
    return len(text)
