"""What a file holds, of which nothing is taken for granted: people keep these for months, and edit them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from openai_compat.receipts.document import VERSION
from openai_compat.receipts.seal import NAME, seal_of
from openai_compat.replay.said import Said, said_by, said_in_stream

MAX_FILE_BYTES: Final = 64 << 20

_decode = msgspec.json.Decoder().decode


class Unusable(Exception):
    """The file cannot be replayed; the message says why."""


class Model(msgspec.Struct, frozen=True):
    id: str
    sha256: str | None = None
    revision: str | None = None
    context_length: int | None = None
    provider_model: str | None = None
    system_fingerprint: str | None = None


class Engine(msgspec.Struct, frozen=True):
    name: str
    version: str | None = None
    machine: str | None = None


class Output(msgspec.Struct, frozen=True):
    index: int
    finish_reason: str | None = None
    text_sha256: str | None = None
    reasoning_sha256: str | None = None
    tool_calls_sha256: str | None = None
    vector_sha256: str | None = None

    @property
    def digests(self) -> tuple[str | None, ...]:
        """In the order of `Said.digests`."""
        return self.text_sha256, self.reasoning_sha256, self.tool_calls_sha256, self.vector_sha256


class Tokens(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int = 0


Route = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]


class Receipt(msgspec.Struct, frozen=True):
    """A receipt as far as a replay reads it. docs/receipts.md has every field."""

    version: int
    route: Route
    backend: str
    model: Model
    engine: Engine
    repeats: Literal["exact", "likely", "no"]
    usage: Tokens
    output: list[Output]
    why_not: str | None = None
    sampling: dict[str, Any] | None = None
    prompt_sha256: str | None = None
    request: dict[str, Any] | None = None
    fallbacks: list[dict[str, Any]] = []


@dataclass(frozen=True, slots=True)
class Saved:
    """`is_edited`: the receipt is not as it was made. `said`: what the answer said, None where only its receipt was
    kept."""

    receipt: Receipt
    is_edited: bool
    said: list[Said] | None


def read_file(name: str) -> bytes:
    """`-`: standard input. Raises: Unusable."""
    try:
        if name == "-":
            data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise Unusable(f"the file cannot be read: {reason or 'it is no file name'}") from None
    if len(data) > MAX_FILE_BYTES:
        raise Unusable(f"the file is larger than {MAX_FILE_BYTES} bytes")
    return data


def saved_in(data: bytes) -> Saved:
    """Raises: Unusable."""
    if data.lstrip().startswith((b"data:", b":")):
        return _stream(data)
    document = _object(data)
    if "llm_receipt" not in document:
        if "choices" in document or "data" in document:
            raise Unusable('the answer has no llm_receipt: it was not asked for with "receipt": true')
        return Saved(*receipt_of(document), None)
    return Saved(*receipt_of(document["llm_receipt"]), _said(said_by, document))


def request_in(data: bytes) -> dict[str, Any]:
    """The body of a request, for a receipt that does not repeat it. Raises: Unusable."""
    return _object(data)


def receipt_of(document: Any) -> tuple[Receipt, bool]:
    """The receipt, and whether it is not as it was made. Raises: Unusable."""
    if not isinstance(document, dict):
        raise Unusable("the receipt is no object")
    if type(document.get("version")) is not int:
        raise Unusable("it is no receipt: it has no version")
    if document["version"] != VERSION:
        raise Unusable(f"the receipt has the version {document['version']}; known is {VERSION}")
    try:
        receipt = msgspec.convert(document, Receipt)
        return receipt, document.get(NAME) != seal_of(document)
    except msgspec.ValidationError as error:
        raise Unusable(f"the receipt makes no sense: {error}") from None
    except RecursionError:
        raise Unusable("the receipt is nested too deeply") from None


def _stream(data: bytes) -> Saved:
    chunks: list[Mapping[str, Any]] = []
    for line in data.splitlines():
        payload = line.removeprefix(b"data:").strip()
        if not line.startswith(b"data:") or payload == b"[DONE]":
            continue
        chunk = _object(payload)
        if "error" in chunk:
            raise Unusable("the stream ended with an error: what is not whole has no receipt")
        chunks.append(chunk)
    proof = next((chunk["llm_receipt"] for chunk in reversed(chunks) if "llm_receipt" in chunk), None)
    if proof is None:
        raise Unusable("the stream has no llm_receipt: it was not asked for one, or it was cut off")
    return Saved(*receipt_of(proof), _said(said_in_stream, chunks))


def _said(read: Any, answer: Any) -> list[Said]:
    try:
        found: list[Said] = read(answer)
    except ValueError as error:
        raise Unusable(f"the answer makes no sense: {error}") from None
    return found


def _object(data: bytes) -> dict[str, Any]:
    try:
        document = _decode(data)
    except RecursionError:
        raise Unusable("the file's JSON is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unusable(f"the file is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise Unusable("the file holds no object")
    return document
