"""How requests, events and errors become bytes between the gateway and a runner: msgpack in frames.

A frame is one byte of kind, four bytes of length (big endian) and that many bytes of msgpack:

    E  a non-empty list of events (`backends.types.EventBatch`)
    P  one LoadProgress
    R  the result of a call that has one (an integer, or nil)
    V  Embeddings, the result of /embed
    S  Ranking, the result of /rerank
    T  Tokens, the result of /tokenize
    D  a text, the result of /detokenize
    X  an error; nothing follows it

Errors cross with the names of their class and its ancestors, and are rebuilt as the first of them that this
side knows: a class that only an engine's adapter has arrives as the class of the tree it derives from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from backends.embedding import EmbeddingRequest, Embeddings, Ranking, RerankRequest
from backends.errors import BackendFailed, ServiceError
from backends.tokenizing import DetokenizeRequest, TokenizeRequest, Tokens
from backends.types import Event, GenerationRequest, LoadProgress, Prompt
from models.errors import ModelError

EVENTS: Final = ord("E")
PROGRESS: Final = ord("P")
RESULT: Final = ord("R")
VECTORS: Final = ord("V")
SCORES: Final = ord("S")
TOKENS: Final = ord("T")
TEXT: Final = ord("D")
ERROR: Final = ord("X")
_KINDS: Final = frozenset({EVENTS, PROGRESS, RESULT, VECTORS, SCORES, TOKENS, TEXT, ERROR})

_HEAD_BYTES = 5
MAX_FRAME_BYTES = 256 << 20
"""A longer frame is nonsense (a stray server on our socket), not something to allocate for."""


class ModelCall(msgspec.Struct, frozen=True):
    """The body of /load and /unload."""

    model: str


class CountCall(msgspec.Struct, frozen=True):
    """The body of /count_tokens."""

    model: str
    prompt: Prompt


class WireError(msgspec.Struct, frozen=True, array_like=True):
    """An exception in transit. `names`: its class, then its ancestors within the two trees."""

    names: tuple[str, ...]
    message: str
    fields: dict[str, Any] = {}


_encoder = msgspec.msgpack.Encoder()
encode_body = _encoder.encode
decode_request = msgspec.msgpack.Decoder(GenerationRequest).decode
decode_call = msgspec.msgpack.Decoder(ModelCall).decode
decode_count = msgspec.msgpack.Decoder(CountCall).decode
decode_embed = msgspec.msgpack.Decoder(EmbeddingRequest).decode
decode_rerank = msgspec.msgpack.Decoder(RerankRequest).decode
decode_tokenize = msgspec.msgpack.Decoder(TokenizeRequest).decode
decode_detokenize = msgspec.msgpack.Decoder(DetokenizeRequest).decode
decode_tokens = msgspec.msgpack.Decoder(Tokens).decode
decode_text = msgspec.msgpack.Decoder(str).decode
decode_vectors = msgspec.msgpack.Decoder(Embeddings).decode
decode_scores = msgspec.msgpack.Decoder(Ranking).decode
decode_events = msgspec.msgpack.Decoder(list[Event]).decode
decode_progress = msgspec.msgpack.Decoder(LoadProgress).decode
decode_result = msgspec.msgpack.Decoder(int | None).decode
_decode_error = msgspec.msgpack.Decoder(WireError).decode


def encode_frame(kind: int, content: object) -> bytes:
    """One frame. `content` is what the kind says."""
    frame = bytearray(_HEAD_BYTES)
    _encoder.encode_into(content, frame, _HEAD_BYTES)
    frame[0] = kind
    frame[1:_HEAD_BYTES] = (len(frame) - _HEAD_BYTES).to_bytes(4, "big")
    return bytes(frame)


class FrameSplitter:
    """Cuts a byte stream into frames, however it was chunked. A frame comes out whole or not at all."""

    __slots__ = ("_missing", "_parts")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._missing = 0
        """Bytes until there is something to look at; a long frame's parts are put together once, not for each part."""

    @property
    def pending(self) -> bool:
        """Part of a frame has arrived and its end has not."""
        return bool(self._parts)

    def feed(self, data: bytes) -> Iterator[tuple[int, memoryview]]:
        """The frames that are complete now: kind and msgpack.

        Raises: BackendFailed for bytes that are no frame of this wire.
        """
        if self._parts:
            self._parts.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return
            data = b"".join(self._parts)
            self._parts.clear()
        view, at, end = memoryview(data), 0, len(data)
        needed = _HEAD_BYTES
        while end - at >= _HEAD_BYTES:
            size = int.from_bytes(view[at + 1 : at + _HEAD_BYTES], "big")
            if size > MAX_FRAME_BYTES or view[at] not in _KINDS:
                raise BackendFailed("The runner sent something that is not of this wire")
            if end - at - _HEAD_BYTES < size:
                needed = _HEAD_BYTES + size
                break
            yield view[at], view[at + _HEAD_BYTES : at + _HEAD_BYTES + size]
            at += _HEAD_BYTES + size
        if at < end:
            self._parts.append(data[at:])
            self._missing = needed - (end - at)


def encode_error(error: Exception) -> bytes:
    """The frame of an error of the two trees; any other exception crosses as a BackendFailed that tells
    nothing."""
    return encode_frame(ERROR, to_wire(error))


def decode_error(payload: bytes | memoryview) -> ServiceError | ModelError:
    """The error of an X frame, ready to be raised."""
    return from_wire(_decode_error(payload))


def to_wire(error: Exception) -> WireError:
    if not isinstance(error, ServiceError | ModelError):
        return WireError((), "The backend failed to complete the request")
    names = tuple(c.__name__ for c in type(error).__mro__ if issubclass(c, ServiceError | ModelError))
    fields = {k: v for k, v in vars(error).items() if not k.startswith("_") and _is_plain(v)}
    return WireError(names, str(error), fields)


def from_wire(wire: WireError) -> ServiceError | ModelError:
    """An instance of the first class of `names` that exists here, else BackendFailed, with the fields it had.

    The constructor is passed by: each class builds its message in a way of its own, and the message has
    come along.
    """
    cls = next((_known()[name] for name in wire.names if name in _known()), None)
    if cls is None:
        return BackendFailed(wire.message)
    error = cls.__new__(cls, wire.message)
    for key, value in wire.fields.items():
        setattr(error, key, tuple(value) if isinstance(value, list) else value)
    return error


def copy_error(error: ServiceError | ModelError) -> ServiceError | ModelError:
    """The same error once more, for a second waiter: an instance raised twice would grow a traceback of
    both."""
    return from_wire(to_wire(error))


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | float | bool)


_classes: dict[str, type[ServiceError] | type[ModelError]] = {}


def _known() -> dict[str, type[ServiceError] | type[ModelError]]:
    """Name -> class of both trees. Built once: the trees are complete when their modules are imported."""
    if not _classes:
        todo: list[type[ServiceError] | type[ModelError]] = [ServiceError, ModelError]
        while todo:
            cls = todo.pop()
            if cls.__module__ in (ServiceError.__module__, ModelError.__module__):
                _classes[cls.__name__] = cls
                todo.extend(cls.__subclasses__())
    return _classes
