"""The byte level of a GGUF header: a forward cursor that believes nothing the file says about itself.

Every count and length is checked against what is left of the file before anything is read or allocated, and
against fixed bounds, so that the time and memory of reading a header are bounded whatever the bytes are.
Little-endian, v2/v3. Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import BinaryIO, Final

from models.errors import UnusableModel

MAX_HEADER_BYTES: Final = 256 << 20
"""Header bytes read at most; the largest vocabularies in use need about 16 MiB."""
MAX_KEPT_STRING_BYTES: Final = 1 << 20
"""Longest string that is kept (a chat template); the longest seen are about 20 kB."""
MAX_KEY_BYTES: Final = 65_535
"""Longest key, by the format's specification."""
MAX_ARRAY_ITEMS: Final = 4_000_000
"""Items read one by one in all arrays together; a vocabulary of 262,144 with its merges has about 780,000."""
MAX_KEPT_ITEMS: Final = 4_096
"""Numbers of an array that are kept (one per layer); longer arrays are skipped."""

_WINDOW_BYTES: Final = 1 << 20

STRING: Final = 8
ARRAY: Final = 9
_SCALARS: Final[dict[int, struct.Struct]] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_U32: Final = _SCALARS[4]
_U64: Final = _SCALARS[10]

Number = int | float | bool


@dataclass(frozen=True, slots=True)
class Skipped:
    """Stands for an array of `count` items that was read over."""

    count: int


Value = Number | str | tuple[Number, ...] | Skipped


class HeaderStream:
    """A cursor over the header of one open file of `size` bytes. Raises UnusableModel and nothing else of its
    own; an OSError of the file passes through."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size
        self._window = b""
        self._at = 0
        self._base = 0
        self._items_left = MAX_ARRAY_ITEMS

    @property
    def position(self) -> int:
        """Bytes from the start of the file."""
        return self._base + self._at

    @property
    def remaining(self) -> int:
        """Bytes between the cursor and the end of the file."""
        return self._size - self.position

    def take(self, length: int) -> bytes:
        """The next `length` bytes."""
        self._require(length)
        piece = self._window[self._at : self._at + length]
        self._at += length
        return piece

    def u32(self) -> int:
        """An unsigned 32-bit number."""
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        """An unsigned 64-bit number."""
        return int(_U64.unpack(self.take(8))[0])

    def key(self) -> str:
        """A metadata key or tensor name."""
        length = self.u64()
        if length > MAX_KEY_BYTES:
            raise UnusableModel(
                f"The model file is damaged: a name of {length} bytes in its header, {MAX_KEY_BYTES} at most"
            )
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            raise UnusableModel("The model file is damaged: a name in its header is not UTF-8") from None

    def value(self, kind: int) -> Value:
        """One metadata value of the format's type number `kind`; long arrays and arrays of strings are
        skipped."""
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            return self._array()
        scalar = self._scalar(kind)
        return _as_number(scalar, self.take(scalar.size))

    def _string(self) -> str:
        length = self.u64()
        if length > self.remaining:
            raise _cut_short()
        if length > MAX_KEPT_STRING_BYTES:
            raise UnusableModel(
                f"The model file has a text of {length} bytes in its header; "
                f"at most {MAX_KEPT_STRING_BYTES} are read"
            )
        return self.take(length).decode(errors="replace")

    def _array(self) -> tuple[Number, ...] | Skipped:
        kind, count = self.u32(), self.u64()
        if kind == ARRAY:
            raise UnusableModel("The model file has an array of arrays in its header, which no engine reads")
        if kind == STRING:
            self._skip_strings(count)
            return Skipped(count)
        scalar = self._scalar(kind)
        if count * scalar.size > self.remaining:
            raise _cut_short()
        if count > MAX_KEPT_ITEMS:
            self._skip(count * scalar.size)
            return Skipped(count)
        self._spend(count)
        return tuple(_as_number(scalar, self.take(scalar.size)) for _ in range(count))

    def _skip_strings(self, count: int) -> None:
        if count * 8 > self.remaining:
            raise _cut_short()
        self._spend(count)
        unpack = _U64.unpack_from
        window, at = self._window, self._at
        for _ in range(count):
            if at + 8 > len(window):
                self._at = at
                self._require(8)
                window, at = self._window, self._at
            at += 8 + unpack(window, at)[0]
            if at > len(window):
                self._at = len(window)
                self._skip(at - len(window))
                window, at = self._window, self._at
        self._at = at

    def _spend(self, count: int) -> None:
        self._items_left -= count
        if self._items_left < 0:
            raise UnusableModel(f"The model file lists more than {MAX_ARRAY_ITEMS} items in its header")

    def _skip(self, length: int) -> None:
        inside = min(length, len(self._window) - self._at)
        self._at += inside
        beyond = length - inside
        if not beyond:
            return
        self._check(beyond)
        self._file.seek(beyond, 1)
        self._base = self.position + beyond
        self._window, self._at = b"", 0

    def _require(self, length: int) -> None:
        missing = length - (len(self._window) - self._at)
        if missing <= 0:
            return
        self._check(length)
        rest = self._window[self._at :]
        self._base += self._at
        self._window = rest + self._file.read(max(missing, _WINDOW_BYTES))
        self._at = 0
        if len(self._window) < length:
            raise _cut_short()

    def _check(self, length: int) -> None:
        if length > self.remaining:
            raise _cut_short()
        if self.position + length > MAX_HEADER_BYTES:
            raise UnusableModel(
                f"The model file has a header of more than {MAX_HEADER_BYTES} bytes, the most that is read"
            )

    @staticmethod
    def _scalar(kind: int) -> struct.Struct:
        scalar = _SCALARS.get(kind)
        if scalar is None:
            raise UnusableModel(f"The model file is damaged: unknown value type {kind} in its header")
        return scalar


def _as_number(scalar: struct.Struct, raw: bytes) -> Number:
    number: Number = scalar.unpack(raw)[0]
    return number


def _cut_short() -> UnusableModel:
    return UnusableModel("The model file is truncated: it ends inside its header")
