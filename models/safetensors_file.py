"""Tensors of a .safetensors file: eight bytes of length, a JSON table, then raw numbers. Nothing is executed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from models.errors import UnusableModel

MAX_TABLE_BYTES: Final = 100 << 20
_DTYPES: Final = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4"}


def read_tensors(path: Path) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Name and values of each tensor, in the file's order; bfloat16 comes as float32, other kinds as they are. The file
    stays mapped while a value is in use.

    Raises: UnusableModel for what is no such file, or a table that points outside it.
    """
    try:
        data = np.memmap(path, dtype=np.uint8, mode="r")
    except (OSError, ValueError) as error:
        raise UnusableModel("The model's weights cannot be read") from error
    size = int.from_bytes(data[:8].tobytes(), "little") if data.size >= 8 else MAX_TABLE_BYTES + 1
    if size > min(MAX_TABLE_BYTES, data.size - 8):
        raise UnusableModel("The model's weights are not a .safetensors file")
    try:
        table = json.loads(data[8 : 8 + size].tobytes())
        entries = [(name, entry) for name, entry in table.items() if name != "__metadata__"]
    except (ValueError, AttributeError, RecursionError) as error:
        raise UnusableModel("The table of the model's weights cannot be read") from error
    numbers = data[8 + size :]
    for name, entry in entries:
        yield name, _tensor(name, entry, numbers)


def _tensor(name: str, entry: Any, numbers: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    try:
        kind, shape = entry["dtype"], tuple(map(int, entry["shape"]))
        begin, end = map(int, entry["data_offsets"])
        dtype = np.dtype(_DTYPES[kind])
    except (KeyError, TypeError, ValueError) as error:
        raise UnusableModel(f"The tensor {name[:128]!r} has a kind that is not supported") from error
    count = 1
    for extent in shape:
        count *= extent
    if (
        not 0 <= begin <= end <= numbers.size
        or min(shape, default=1) < 0
        or end - begin != count * dtype.itemsize
    ):
        raise UnusableModel(f"The tensor {name[:128]!r} does not fit into its file")
    values: npt.NDArray[Any] = np.frombuffer(numbers[begin:end], dtype=dtype).reshape(shape)
    if kind == "BF16":
        values = (values.astype("<u4") << 16).view("<f4")
    return values
