"""What a picture says of itself, read from its structure: PNG, JPEG, WebP and GIF.

No pixel is decoded: this process holds everybody's keys, and a decoder is the last thing that strangers' data should
meet in it. The walk through a file's parts finds what was cut off or put together wrongly, and the size that a decoder
would have to make room for; whoever serves the model decodes, in a process of its own (docs/decisions).

Raises, everywhere: BrokenPicture.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

MAX_PARTS: Final = 1 << 16
"""Of one file. A thousand times what programs write, and few enough to be walked through in 50 ms."""


class BrokenPicture(Exception):
    """No picture, or not a whole one. The message continues a sentence that names it."""


@dataclass(frozen=True, slots=True)
class Picture:
    """`width` and `height` are those of the whole canvas, and at least 1, as `frames` is."""

    mime: str
    width: int
    height: int
    frames: int = 1

    @property
    def pixels(self) -> int:
        """What a decoder makes room for, all frames together."""
        return self.width * self.height * self.frames


def read_picture(data: bytes) -> Picture:
    """By its first bytes, whatever anybody called it."""
    for start, read in _READERS:
        if data.startswith(start):
            try:
                picture = read(data)
            except IndexError:
                raise BrokenPicture("ends before it is complete") from None
            if picture.width < 1 or picture.height < 1:
                raise BrokenPicture("has no pixels")
            return picture
    raise BrokenPicture("is no PNG, JPEG, WebP or GIF")


# PNG: a signature, then chunks of length, type, content, checksum.

_PNG: Final = b"\x89PNG\r\n\x1a\n"


def _png(data: bytes) -> Picture:
    view, at = memoryview(data), len(_PNG)
    width = height = 0
    frames, has_pixels = 1, False
    for number in range(MAX_PARTS):
        end = at + 12 + _big(data, at, 4)
        kind = data[at + 4 : at + 8]
        if end > len(data):
            raise BrokenPicture("ends before it is complete")
        if zlib.crc32(view[at + 4 : end - 4]) != _big(data, end - 4, 4):
            raise BrokenPicture("is damaged: a checksum does not match")
        if (kind == b"IHDR") != (number == 0):
            raise BrokenPicture("is damaged: its header is not where it belongs")
        if kind == b"IHDR":
            width, height = _big(data, at + 8, 4), _big(data, at + 12, 4)
        elif kind == b"acTL":
            frames = max(1, _big(data, at + 8, 4))
        elif kind == b"IDAT":
            if not has_pixels:
                _check_beginning(view[at + 8 : end - 4])
            has_pixels = True
        elif kind == b"IEND":
            if not has_pixels:
                raise BrokenPicture("has no pixels")
            return Picture("image/png", width, height, frames)
        at = end
    raise BrokenPicture("is cut into too many parts")


def _check_beginning(pixels: memoryview) -> None:
    """Decoders may take pixels that cannot be unpacked for black ones. Their beginning tells; all of a large picture
    would be hundreds of megabytes."""
    try:
        zlib.decompressobj().decompress(pixels, 1 << 12)
    except zlib.error:
        raise BrokenPicture("is damaged: its pixels cannot be unpacked") from None


# JPEG: segments of marker, length, content; after a scan's header comes what its length leaves out.

_FRAMES: Final = frozenset({0xC0, 0xC1, 0xC2})
"""Baseline, extended, progressive. Other codings are in no browser."""
_OTHER_FRAMES: Final = frozenset({0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF})


def _jpeg(data: bytes) -> Picture:
    at = 2
    width = height = 0
    has_scan = False
    for _ in range(MAX_PARTS):
        if data[at] != 0xFF:
            raise BrokenPicture("is damaged: a part does not begin with a marker")
        while data[at] == 0xFF:
            at += 1
        marker = data[at]
        at += 1
        if marker == 0xD9:
            if not has_scan or not width:
                raise BrokenPicture("has no pixels")
            return Picture("image/jpeg", width, height)
        if marker == 0x01 or 0xD0 <= marker <= 0xD7:
            continue
        length = _big(data, at, 2)
        if marker in _OTHER_FRAMES:
            raise BrokenPicture("has a coding that is not taken")
        if marker in _FRAMES and not width:
            height, width = _big(data, at + 3, 2), _big(data, at + 5, 2)
        if length < 2 or at + length > len(data):
            raise BrokenPicture("ends before it is complete")
        at += length
        if marker == 0xDA:
            has_scan = True
            at = _end_of_scan(data, at)
    raise BrokenPicture("is cut into too many parts")


def _end_of_scan(data: bytes, at: int) -> int:
    """Where the next marker is: 0xFF that is followed neither by zero nor by a marker between a scan's parts."""
    # Of the bytes of a scan one in 256 is 0xFF.
    for _ in range(MAX_PARTS + len(data) // 16):
        at = data.find(b"\xff", at)
        if at < 0:
            raise BrokenPicture("ends before it is complete")
        follower = data[at + 1]
        if follower == 0xFF:
            at += 1
        elif follower == 0 or 0xD0 <= follower <= 0xD7:
            at += 2
        else:
            return at
    raise BrokenPicture("is cut into too many parts")


# GIF: a screen, then pictures and extensions, each in blocks of up to 255 bytes.


def _gif(data: bytes) -> Picture:
    width, height = _little(data, 6, 2), _little(data, 8, 2)
    at = 13 + _palette(data[10])
    frames = 0
    # Blocks are full ones but for the last of each part.
    left = MAX_PARTS + len(data) // 64
    while left > 0:
        left -= 1
        kind = data[at]
        if kind == 0x3B:
            if not frames:
                raise BrokenPicture("has no pixels")
            return Picture("image/gif", width, height, frames)
        if kind == 0x2C:
            frames += 1
            # A picture may be larger than the screen; decoders make room for it.
            width = max(width, _little(data, at + 1, 2) + _little(data, at + 5, 2))
            height = max(height, _little(data, at + 3, 2) + _little(data, at + 7, 2))
            at += 11 + _palette(data[at + 9])
        elif kind == 0x21:
            at += 2
        else:
            raise BrokenPicture("is damaged: a part has no type")
        while (size := data[at]) and left > 0:
            left -= 1
            at += 1 + size
        at += 1
    raise BrokenPicture("is cut into too many parts")


def _palette(flags: int) -> int:
    """Bytes of the colours that follow."""
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


# WebP: RIFF chunks of type, length, content, filled up to an even length.


def _webp(data: bytes) -> Picture:
    if data[8:12] != b"WEBP":
        raise BrokenPicture("is no PNG, JPEG, WebP or GIF")
    end = 8 + _little(data, 4, 4)
    if end > len(data):
        raise BrokenPicture("ends before it is complete")
    at, width, height, frames, has_pixels = 12, 0, 0, 0, False
    for _ in range(MAX_PARTS):
        if at + 8 > end:
            break
        kind, size, inside = data[at : at + 4], _little(data, at + 4, 4), at + 8
        if inside + size > end:
            raise BrokenPicture("ends before it is complete")
        wide, high = _stored_size(data, kind, inside)
        if kind == b"VP8X":
            width, height = _little(data, inside + 4, 3) + 1, _little(data, inside + 7, 3) + 1
        elif kind == b"ANMF":
            frames += 1
        has_pixels = has_pixels or wide > 0
        width, height = max(width, wide), max(height, high)
        at = inside + size + (size & 1)
    else:
        raise BrokenPicture("is cut into too many parts")
    if not has_pixels:
        raise BrokenPicture("has no pixels")
    return Picture("image/webp", width, height, max(1, frames))


def _stored_size(data: bytes, kind: bytes, inside: int) -> tuple[int, int]:
    """Width and height of a chunk that holds pixels; zeros for others."""
    if kind == b"VP8 ":
        if data[inside + 3 : inside + 6] != b"\x9d\x01\x2a":
            raise BrokenPicture("is damaged: its header is not where it belongs")
        return _little(data, inside + 6, 2) & 0x3FFF, _little(data, inside + 8, 2) & 0x3FFF
    if kind == b"VP8L":
        if data[inside] != 0x2F:
            raise BrokenPicture("is damaged: its header is not where it belongs")
        bits = _little(data, inside + 1, 4)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"ANMF":
        return _little(data, inside + 6, 3) + 1, _little(data, inside + 9, 3) + 1
    return 0, 0


def _big(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(_whole(data, at, size), "big")


def _little(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(_whole(data, at, size), "little")


def _whole(data: bytes, at: int, size: int) -> bytes:
    """A slice that runs over the end would be a smaller number. Raises: IndexError."""
    found = data[at : at + size]
    if len(found) < size:
        raise IndexError
    return found


_READERS: Final[tuple[tuple[bytes, Callable[[bytes], Picture]], ...]] = (
    (_PNG, _png),
    (b"\xff\xd8\xff", _jpeg),
    (b"GIF87a", _gif),
    (b"GIF89a", _gif),
    (b"RIFF", _webp),
)
