"""What a GGUF file says about itself, read without loading a tensor and without an engine.

    header = read_header(Path("model.gguf"))

The header is untrusted: `models.gguf_stream` bounds what is read, this module decides what it means. An
unknown architecture is left to the engine, which may be newer than this list; what can never generate text (a
projector, an adapter, an importance matrix, a vocabulary alone) is refused here with its reason."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from models.errors import UnusableModel
from models.gguf_stream import HeaderStream, Skipped, Value

MAX_KEYS: Final = 16_384
MAX_TENSORS: Final = 131_072

_SHARD: Final = re.compile(r"(?P<base>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_OLD_MAGICS: Final = (b"ggml", b"lmgg", b"ggmf", b"fmgg", b"ggjt", b"tjgg", b"ggla", b"algg")
_ENCODERS: Final = frozenset(
    {
        *("bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3"),
        *("eurobert", "t5encoder", "gemma-embedding", "llama-embed"),
    }
)
_NOT_TEXT: Final = {
    "clip": "a vision projector, not a language model",
    "mmproj": "a vision projector, not a language model",
    "adapter": "a LoRA adapter, not a whole model",
    "imatrix": "an importance matrix for quantising, not a model",
    "controlvector": "a control vector, not a model",
    "wavtokenizer-dec": "an audio decoder, not a language model",
}
_POOLING_RANK: Final = 4

# Elements per block and bytes per block of each tensor type (ggml.h). A type that is missing here is left to
# the engine: then only the start of its tensor is checked against the file's size.
_BLOCKS: Final[dict[int, tuple[int, int]]] = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2),
    34: (256, 54), 35: (256, 66), 39: (32, 17), 40: (64, 36), 41: (128, 18), 42: (64, 18),
}  # fmt: skip

_FILE_TYPES: Final[dict[int, str]] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K",
    19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL",
    26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0",
    37: "TQ2_0", 38: "MXFP4_MOE", 39: "NVFP4", 40: "Q1_0", 41: "Q2_0",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class GgufHeader:
    """The part of a file's metadata that this service uses. `None`: the file does not say."""

    version: int
    architecture: str
    name: str | None
    file_type: int | None
    quantisation: str | None
    """Name of `file_type`, such as "Q4_K_M"."""
    context_length: int | None
    """Tokens the model was trained for."""
    vocab_size: int | None
    chat_template: str | None
    """Jinja source; None without one (a base model)."""
    pooling: int | None
    """llama.cpp's number: 0 none, 1 mean, 2 first token, 3 last token, 4 rank."""
    block_count: int | None
    """Layers."""
    embedding_length: int | None
    kv_elements_per_token: int | None
    """Elements of keys and values of one token over all layers, for a cache estimate. An upper bound where
    layers use a sliding window or no attention."""
    num_tensors: int
    num_parameters: int
    file_bytes: int
    """On disk, over all shards."""
    num_shards: int

    @property
    def has_pooling(self) -> bool:
        """The model makes one vector (or score) per text and cannot generate."""
        return self.pooling not in (None, 0) or self.architecture in _ENCODERS

    @property
    def is_reranker(self) -> bool:
        """The model scores pairs of texts."""
        return self.pooling == _POOLING_RANK


def shard_of(name: str) -> tuple[str, int, int] | None:
    """(base name, number from 1, count) of a file name like `base-00001-of-00003.gguf`, None for any
    other."""
    match = _SHARD.fullmatch(name)
    if match is None:
        return None
    return match["base"], int(match["number"]), int(match["count"])


def shard_paths(path: Path) -> tuple[Path, ...]:
    """All files of the model whose first shard is `path` (just `path` for an unsharded one); they need not
    exist."""
    shard = shard_of(path.name)
    if shard is None:
        return (path,)
    base, _, count = shard
    suffix = path.name[-5:]
    return tuple(path.with_name(f"{base}-{i:05d}-of-{count:05d}{suffix}") for i in range(1, count + 1))


def read_header(path: Path) -> GgufHeader:
    """The header of the model at `path`: a GGUF file, or the first shard of one.

    Reads headers only (a few MiB); 20 ms for a vocabulary of 49,152, about 150 ms for 262,144. Blocking.

    Raises: UnusableModel with one sentence: unreadable, not a GGUF, unsupported version, truncated (also
    where only the tensors' data is cut off), a missing shard, or a GGUF that holds something other than a
    language model."""
    first = _read_part(path)
    split_count = _int(first.metadata, "split.count") or 1
    if split_count > 1:
        first = _join_shards(path, first, split_count)
    return _interpret(first, max(1, split_count))


@dataclass(frozen=True, slots=True)
class _Part:
    version: int
    metadata: Mapping[str, Value]
    num_tensors: int
    num_parameters: int
    file_bytes: int


def _join_shards(path: Path, first: _Part, count: int) -> _Part:
    number = (_int(first.metadata, "split.no") or 0) + 1
    shard = shard_of(path.name)
    if shard is None or shard[2] != count or shard[1] != number:
        raise UnusableModel(
            f"The model file is part {number} of {count}, but its name does not end in "
            f"-{number:05d}-of-{count:05d}"
        )
    if number != 1:
        raise UnusableModel(
            f"The model file is part {number} of {count}; a model is loaded from its first part"
        )
    total = first
    for i, other in enumerate(shard_paths(path)[1:], start=2):
        if not other.is_file():
            raise UnusableModel(f"The model is incomplete: part {i} of {count} is missing")
        part = _read_part(other)
        total = replace(
            total,
            num_tensors=total.num_tensors + part.num_tensors,
            num_parameters=total.num_parameters + part.num_parameters,
            file_bytes=total.file_bytes + part.file_bytes,
        )
    return total


def _read_part(path: Path) -> _Part:
    try:
        # Non-blocking, because opening a named pipe that lies in a model folder would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise UnusableModel("The model file is not a regular file")
            return _parse(HeaderStream(file, status.st_size), status.st_size)
    except OSError as error:
        reason = (error.strerror or "input/output error").lower()
        raise UnusableModel(f"The model file cannot be read: {reason}") from error


def _parse(stream: HeaderStream, size: int) -> _Part:
    version = _check_magic(stream, size)
    num_tensors, num_keys = stream.u64(), stream.u64()
    if num_tensors > MAX_TENSORS or num_keys > MAX_KEYS:
        raise UnusableModel(
            f"The model file is damaged: its header announces {num_tensors} tensors and {num_keys} keys"
        )
    metadata: dict[str, Value] = {}
    for _ in range(num_keys):
        key = stream.key()
        if not key or key in metadata:
            raise UnusableModel("The model file is damaged: an empty or repeated key in its header")
        metadata[key] = stream.value(stream.u32())
    num_parameters, data_end = _measure_tensors(stream, num_tensors)
    if num_tensors:
        alignment = _alignment(metadata)
        data_start = -(-stream.position // alignment) * alignment
        if data_start + data_end > size:
            raise UnusableModel(
                f"The model file is truncated: it has {size} bytes, its tensors need {data_start + data_end}"
            )
    return _Part(version, metadata, num_tensors, num_parameters, size)


def _check_magic(stream: HeaderStream, size: int) -> int:
    if size == 0:
        raise UnusableModel("The model file is empty")
    magic = stream.take(min(4, size))
    if magic == b"vers":
        raise UnusableModel("The model file is a Git LFS pointer, not the model itself")
    if magic in _OLD_MAGICS:
        raise UnusableModel("The model file has an old GGML format; convert it to GGUF")
    if magic != b"GGUF":
        raise UnusableModel("The model file is not a GGUF file")
    version = stream.u32()
    if version and not version & 0xFFFF:
        raise UnusableModel("The model file is a big-endian GGUF file, which this machine cannot load")
    if version not in (2, 3):
        raise UnusableModel(f"The model file has GGUF version {version}; versions 2 and 3 are supported")
    return version


def _measure_tensors(stream: HeaderStream, count: int) -> tuple[int, int]:
    """(elements of all tensors, end of the last one in bytes from the start of the data)."""
    num_parameters = data_end = 0
    for _ in range(count):
        stream.key()
        num_dims = stream.u32()
        if num_dims > 4:
            raise UnusableModel(f"The model file is damaged: a tensor of {num_dims} dimensions")
        elements, row = 1, 1
        for i in range(num_dims):
            extent = stream.u64()
            row = extent if i == 0 else row
            elements *= extent
        if elements >= 1 << 63:
            raise UnusableModel("The model file is damaged: a tensor larger than any memory")
        kind, offset = stream.u32(), stream.u64()
        block, block_bytes = _BLOCKS.get(kind, (1, 0))
        if row % block:
            raise UnusableModel(
                f"The model file is damaged: a tensor row of {row} elements in blocks of {block}"
            )
        num_parameters += elements
        data_end = max(data_end, offset + elements // block * block_bytes)
    return num_parameters, data_end


def _alignment(metadata: Mapping[str, Value]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise UnusableModel("The model file is damaged: its alignment is not a power of two")
    return alignment


def _interpret(part: _Part, num_shards: int) -> GgufHeader:
    metadata = part.metadata
    architecture = _text(metadata, "general.architecture")
    reason = _NOT_TEXT.get(_text(metadata, "general.type") or "") or _NOT_TEXT.get(architecture or "")
    if reason:
        raise UnusableModel(f"The file is {reason}")
    if not architecture:
        raise UnusableModel("The model file names no architecture")
    if part.num_tensors == 0:
        raise UnusableModel("The file holds a vocabulary without weights, not a model")
    if _text(metadata, "tokenizer.ggml.model") is None:
        raise UnusableModel(f"The model file holds no tokenizer (architecture {architecture[:64]!r})")

    def number(suffix: str) -> int | None:
        return _int(metadata, f"{architecture}.{suffix}")

    file_type = _int(metadata, "general.file_type")
    return GgufHeader(
        version=part.version,
        architecture=architecture,
        name=_text(metadata, "general.name"),
        file_type=file_type,
        quantisation=None if file_type is None else _FILE_TYPES.get(file_type),
        context_length=number("context_length") or None,
        vocab_size=number("vocab_size") or _count(metadata.get("tokenizer.ggml.tokens")),
        chat_template=_text(metadata, "tokenizer.chat_template"),
        pooling=number("pooling_type"),
        block_count=number("block_count"),
        embedding_length=number("embedding_length"),
        kv_elements_per_token=_kv_elements(metadata, architecture),
        num_tensors=part.num_tensors,
        num_parameters=part.num_parameters,
        file_bytes=part.file_bytes,
        num_shards=num_shards,
    )


def _kv_elements(metadata: Mapping[str, Value], architecture: str) -> int | None:
    def values(suffix: str) -> tuple[int, ...]:
        value = metadata.get(f"{architecture}.{suffix}", ())
        items = value if isinstance(value, tuple) else (value,)
        return tuple(item for item in items if isinstance(item, int) and 0 <= item < 1 << 32)

    layers = values("block_count")
    heads = values("attention.head_count")
    kv_heads = values("attention.head_count_kv") or heads
    width = values("embedding_length")
    if not layers or not kv_heads or not heads or not max(heads):
        return None
    default = width[0] // max(heads) if width else 0
    per_head = sum((values(f"attention.{which}_length") or (default,))[0] for which in ("key", "value"))
    num_kv_heads = sum(kv_heads) if len(kv_heads) > 1 else kv_heads[0] * layers[0]
    return per_head * num_kv_heads or None


def _text(metadata: Mapping[str, Value], key: str) -> str | None:
    value = metadata.get(key)
    return value if isinstance(value, str) and value.strip() else None


def _int(metadata: Mapping[str, Value], key: str) -> int | None:
    value = metadata.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _count(value: Value | None) -> int | None:
    if isinstance(value, tuple):
        return len(value)
    return value.count if isinstance(value, Skipped) else None
