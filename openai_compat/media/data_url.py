"""Pictures that are written into the request: `data:image/png;base64,…`."""

from __future__ import annotations

import binascii
import re
from typing import Final

from openai_compat.media.formats import BrokenPicture, Picture, read_picture
from openai_compat.media.limits import MediaLimits

_HEAD: Final = re.compile(r"data:([a-z]+/[a-z0-9.+-]+)(?:;[a-z0-9-]+=[a-z0-9.+-]+)*;base64", re.IGNORECASE)
_MAX_HEAD_CHARS: Final = 256
_PIECE_CHARS: Final = 1 << 18
_OTHER_NAMES: Final = {"image/jpg": "image/jpeg", "image/pjpeg": "image/jpeg", "image/x-png": "image/png"}
"""What programs call the types as well."""


def is_data_url(url: str) -> bool:
    return url[:5].lower() == "data:"


def read_data_url(url: str, limits: MediaLimits) -> tuple[Picture, str]:
    """The picture, and its base64 as it came. Raises: BrokenPicture."""
    comma = url.find(",", 0, _MAX_HEAD_CHARS)
    head = _HEAD.fullmatch(url, 0, comma) if comma > 0 else None
    if head is None:
        raise BrokenPicture("is no data URL of a picture in base64, such as data:image/png;base64,…")
    text = url[comma + 1 :]
    # Three bytes for four characters, of which the last two may be filling.
    if len(text) // 4 * 3 - 2 > limits.max_bytes:
        raise too_large(limits.max_bytes)
    data = _decoded(text)
    if len(data) > limits.max_bytes:
        raise too_large(limits.max_bytes)
    picture = read_picture(data)
    called = head[1].lower()
    if _OTHER_NAMES.get(called, called) != picture.mime:
        raise BrokenPicture(f"is called {called} and is {picture.mime}")
    return picture, text


def _decoded(text: str) -> bytes:
    """In pieces: decoding holds the interpreter, 100 ms for twenty megabytes."""
    try:
        if "=" in text[:-2]:
            raise ValueError
        return b"".join(
            binascii.a2b_base64(text[at : at + _PIECE_CHARS], strict_mode=True)
            for at in range(0, len(text), _PIECE_CHARS)
        )
    except ValueError:
        raise BrokenPicture("is not valid base64") from None


def written(mime: str, text: str) -> str:
    """The data URL of a picture whose base64 is `text`."""
    return f"data:{mime};base64,{text}"


def too_large(max_bytes: int) -> BrokenPicture:
    return BrokenPicture(f"is larger than {max_bytes} bytes")
