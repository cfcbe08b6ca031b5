"""Vectors of numbers as they travel: cut to a length, brought to length 1, and packed."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.errors import BackendFailed, InvalidParameter, UpstreamError

Vector = npt.NDArray[np.float32]


def check_dimensions(dimensions: int | None, length: int) -> None:
    """Raises: InvalidParameter if a vector has fewer numbers than are asked for."""
    if dimensions is not None and dimensions > length:
        raise InvalidParameter(
            f"dimensions is {dimensions}; the model's vectors have {length}", param="dimensions"
        )


def pack(vector: Vector, dimensions: int | None = None) -> bytes:
    """The first `dimensions` numbers (None: all) at length 1, little-endian single precision. A zero stays one.

    Raises: BackendFailed for what an engine computes out of damaged weights, or beyond its precision: JSON has no NaN.
    """
    # The squares of large numbers do not fit into single precision, and those of small ones vanish there.
    kept = vector[:dimensions].astype(np.float64)
    norm = float(np.linalg.norm(kept))
    if not math.isfinite(norm):
        raise BackendFailed("The engine computed a vector that holds no numbers")
    return (kept / norm if norm > 0 else kept).astype("<f4").tobytes()


def read_vector(value: object) -> Vector:
    """A server's vector: a list of numbers, or base64 of little-endian single precision.

    Raises: UpstreamError for anything else.
    """
    found: npt.NDArray[Any]
    try:
        if isinstance(value, str):
            found = np.frombuffer(base64.b64decode(value, validate=True), dtype="<f4")
        elif isinstance(value, Sequence):
            found = np.asarray(value, dtype=np.float32)
        else:
            raise TypeError
    except (binascii.Error, ValueError, TypeError, OverflowError):
        raise UpstreamError("The server's vector makes no sense") from None
    if found.ndim != 1 or not found.size or not np.isfinite(found).all():
        raise UpstreamError("The server's vector makes no sense")
    return found
