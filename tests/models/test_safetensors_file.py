"""Reading .safetensors files, whole and damaged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from models.errors import UnusableModel
from models.safetensors_file import read_tensors
from tests.models.bert_folder import write_safetensors


def test_values_come_back_as_they_were_written(tmp_path: Path) -> None:
    written = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.array([1.5, -2], dtype=np.float16),
        "c": np.array(7, dtype=np.int64),
    }
    write_safetensors(tmp_path / "w", written)

    read = dict(read_tensors(tmp_path / "w"))

    assert list(read) == ["a", "b", "c"]
    assert all(np.array_equal(read[name], written[name]) for name in written)


def test_bfloat16_comes_as_single_precision(tmp_path: Path) -> None:
    numbers = np.array([1.0, -2.5, 0.15625], dtype=np.float32)
    write_safetensors(tmp_path / "w", {"x": (numbers.view(np.uint32) >> 16).astype(np.uint16)})

    ((_, read),) = read_tensors(tmp_path / "w")

    assert read.dtype == np.float32
    assert np.array_equal(read, numbers)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234567",
        b"\xff" * 16,
        (1 << 40).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
    ],
)
def test_what_is_no_such_file_is_unusable(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w").write_bytes(content)

    with pytest.raises(UnusableModel):
        list(read_tensors(tmp_path / "w"))


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [4], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [4], "data_offsets": [0, 1 << 40]},
        {"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]},
        {"dtype": "F32", "shape": [-2, -2], "data_offsets": [0, 16]},
        {"dtype": "F8_E4M3", "shape": [16], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [4]},
        {"shape": [4], "data_offsets": [0, 16]},
        None,
    ],
)
def test_a_tensor_that_does_not_fit_into_its_file_is_unusable(tmp_path: Path, entry: object) -> None:
    head = json.dumps({"x": entry}).encode()
    (tmp_path / "w").write_bytes(len(head).to_bytes(8, "little") + head + bytes(16))

    with pytest.raises(UnusableModel):
        list(read_tensors(tmp_path / "w"))
