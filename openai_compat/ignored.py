"""The `x-llm-ignored` header: fields that were accepted and did nothing."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

MAX_BYTES: Final = 4096
_MAX_NAME_CHARS: Final = 256
_MORE: Final = ", ..."


def ignored_headers(names: tuple[str, ...]) -> list[tuple[bytes, bytes]]:
    """The header, or nothing if nothing was ignored.

    The value is ASCII and at most 4 kB; a name that is no plain word is percent-encoded, so that no name can
    end the header or look like two.
    """
    if not names:
        return []
    value = ""
    for name in names:
        word = quote(name[:_MAX_NAME_CHARS], safe="")
        longer = f"{value}, {word}" if value else word
        if len(longer) > MAX_BYTES - len(_MORE):
            value += _MORE
            break
        value = longer
    return [(b"x-llm-ignored", value.encode("ascii"))]
