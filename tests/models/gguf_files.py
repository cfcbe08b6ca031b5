"""Writes small GGUF files, whole or wrong in one chosen way."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@dataclass(frozen=True)
class Raw:
    """A value of a chosen type number, already packed."""

    kind: int
    payload: bytes


@dataclass(frozen=True)
class Tensor:
    """Name, extents, type number; `offset` None puts it behind the one before."""

    name: str
    shape: tuple[int, ...] = (32, 2)
    kind: int = 0
    offset: int | None = None


Entry = str | int | float | bool | Sequence[str] | Sequence[int] | Raw

LLAMA: Mapping[str, Entry] = {
    "general.architecture": "llama",
    "general.name": "Tiny",
    "general.file_type": 15,
    "llama.context_length": 512,
    "llama.block_count": 2,
    "llama.embedding_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["a", "b", "ü", ""],
    "tokenizer.chat_template": TEMPLATE,
}

BERT: Mapping[str, Entry] = {
    "general.architecture": "bert",
    "bert.context_length": 128,
    "bert.pooling_type": 2,
    "tokenizer.ggml.model": "bert",
}


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _packed(value: Entry) -> bytes:
    if isinstance(value, Raw):
        return struct.pack("<I", value.kind) + value.payload
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if all(isinstance(item, str) for item in value):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(text(str(item)) for item in value)
    return struct.pack("<IIQ", 9, 5, len(value)) + struct.pack(f"<{len(value)}i", *value)


def gguf_bytes(
    metadata: Mapping[str, Entry] = LLAMA,
    tensors: Sequence[Tensor] = (Tensor("token_embd.weight"), Tensor("output.weight")),
    *,
    version: int = 3,
) -> bytes:
    """A whole file of F32 tensors (unless a tensor says otherwise) with as much data as they need."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, value in metadata.items():
        head += text(key) + _packed(value)
    end = 0
    for tensor in tensors:
        offset = end if tensor.offset is None else tensor.offset
        head += text(tensor.name) + struct.pack("<I", len(tensor.shape))
        head += struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape) + struct.pack("<IQ", tensor.kind, offset)
        size = 4
        for extent in tensor.shape:
            size *= extent
        end = -(-(offset + size) // 32) * 32 if tensor.kind == 0 else end
    return head + b"\0" * (-len(head) % 32) + b"\0" * end


def write_gguf(path: Path, metadata: Mapping[str, Entry] = LLAMA, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gguf_bytes(metadata, **options))  # type: ignore[arg-type]
    return path


def write_shards(folder: Path, base: str, count: int, *, only: Sequence[int] | None = None) -> Path:
    """A sharded model; the first part carries the metadata. Gives the first part's path."""
    for number in range(1, count + 1):
        if only is not None and number not in only:
            continue
        split: dict[str, Entry] = {"split.no": number - 1, "split.count": count}
        metadata = {**LLAMA, **split} if number == 1 else split
        write_gguf(folder / f"{base}-{number:05d}-of-{count:05d}.gguf", metadata)
    return folder / f"{base}-00001-of-{count:05d}.gguf"
