"""A receipt as it goes out: what was asked, what was done, and by whom.

Nothing of it is a key, an address or a path: of the request only the fields that count are kept, of the backend only
what `Provenance` says.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, Final

import msgspec

from backends.provenance import Provenance
from backends.types import SamplingParams, Usage
from openai_compat.media.data_url import is_data_url
from openai_compat.receipts import seal

VERSION: Final = 1
MAX_REQUEST_BYTES: Final = 1 << 20
"""A request that is longer as JSON is not repeated in its receipt; whoever has it gives it to the replay beside it."""

_UNTOLD: Final = frozenset({"explicit", "grammar", "logprobs"})
"""Not for a reader (`explicit`), or as long as the request itself says it."""
_RENAMED: Final = {
    "max_completion_tokens": "max_tokens",
    "functions": "tools",
    "function_call": "tool_choice",
}
_MAX_MESSAGES_TOLD: Final = 16

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The part of a receipt that is known before the answer. `request`: the fields of the body that count."""

    route: str
    request: Mapping[str, Any]
    ignored: tuple[str, ...] = ()
    rewritten: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Timing:
    """For a slot and in the engine; to the first token; to the last. Of vectors all of it is `prefill_ms`."""

    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The other part. `sampling` None where nothing was sampled."""

    id: str
    request_id: str
    created: int
    model: str
    backend: str
    provenance: Provenance | None
    usage: Usage
    output: Sequence[Mapping[str, Any]]
    sampling: SamplingParams | None = None
    timing: Timing = Timing()
    fallbacks: Sequence[Mapping[str, str]] = ()
    cost_usd: float | None = None


def receipt(asked: Asked, done: Done) -> bytes:
    """The receipt as JSON without a line break."""
    document = _document(asked, done)
    try:
        if len(_encode(document["request"])) > MAX_REQUEST_BYTES:
            document["request"] = None
        document[seal.NAME] = seal.seal_of(document)
    except RecursionError:  # chat_template_kwargs may be nested as deeply as JSON may
        document["request"] = None
        document[seal.NAME] = seal.seal_of(document)
    return _encode(document)


def _document(asked: Asked, done: Done) -> dict[str, Any]:
    told = done.provenance or Provenance(engine="unknown")
    sampling = None if done.sampling is None else {**sampling_object(done.sampling), **told.used}
    usage = done.usage
    return {
        "version": VERSION,
        "id": done.id,
        "request_id": done.request_id,
        "created": done.created,
        "route": asked.route,
        "backend": done.backend,
        "model": {
            "id": done.model,
            "asked": asked.request.get("model"),
            "sha256": told.model_sha256,
            "sha256_pending": told.is_hashing,
            "revision": told.model_revision,
            "context_length": told.context_length,
            "provider": told.provider,
            "provider_model": told.provider_model,
            "system_fingerprint": told.system_fingerprint,
        },
        "engine": {"name": told.engine, "version": told.engine_version, "machine": told.machine},
        "repeats": told.repeats,
        "why_not": told.why_not,
        "sampling": sampling,
        "ignored": list(asked.ignored),
        "rewritten": [*asked.rewritten, *_replaced(done.sampling, told.used)],
        "prompt_sha256": told.prompt_sha256,
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
            "is_estimated": usage.is_estimated,
        },
        "timing": {name: round(value, 3) for name, value in asdict(done.timing).items()},
        "retries": told.retries,
        "fallbacks": list(done.fallbacks),
        "cost_usd": done.cost_usd,
        "output": list(done.output),
        "request": asked.request,
    }


def sampling_object(sampling: SamplingParams) -> dict[str, Any]:
    """Every parameter with the value that took effect, under the name that a request gives it."""
    return {
        name: msgspec.to_builtins(getattr(sampling, name), str_keys=True)
        for name in SamplingParams.__struct_fields__
        if name not in _UNTOLD
    }


def rewritten_fields(
    request: Mapping[str, Any], *, model: str, sampling: SamplingParams | None
) -> list[Mapping[str, Any]]:
    """What of a request was read as something else before its backend heard of it."""
    told: list[Mapping[str, Any]] = []
    if (named := request.get("model")) != model:
        told.append({"field": "model", "from": named, "to": model})
    told += [{"field": old, "as": new} for old, new in _RENAMED.items() if old in request]
    if sampling is not None:
        if request.get("top_k") == -1:
            told.append({"field": "top_k", "from": -1, "to": 0})
        if sampling.seed is not None and request.get("seed") is None:
            told.append({"field": "seed", "from": None, "to": sampling.seed})
    return told


def rewritten_messages(before: Sequence[Any], after: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Roles and contents that the model sees otherwise than they were sent; the first few."""
    told: list[Mapping[str, Any]] = []
    for index, (old, new) in enumerate(zip(before, after, strict=False)):
        if old["role"] != new["role"]:
            told.append({"field": f"messages[{index}].role", "from": old["role"], "to": new["role"]})
        if isinstance(old.get("content"), list) and isinstance(new.get("content"), str):
            told.append({"field": f"messages[{index}].content", "from": "parts", "to": "text"})
        if len(told) >= _MAX_MESSAGES_TOLD:
            break
    return told[:_MAX_MESSAGES_TOLD]


def fetched_pictures(before: Sequence[Any], after: Sequence[Any]) -> list[Mapping[str, Any]]:
    """Links that pictures were fetched from, with the SHA-256 of what was there; the first few. The same link may lead
    to another picture when the receipt is replayed."""
    told: list[Mapping[str, Any]] = []
    for index, (old, new) in enumerate(zip(before, after, strict=False)):
        if not isinstance(old.get("content"), list):
            continue
        for position, (part, seen) in enumerate(zip(old["content"], new["content"], strict=False)):
            if part["type"] != "image_url" or is_data_url(part["image_url"]["url"]):
                continue
            if not is_data_url(seen["image_url"]["url"]):
                continue  # not fetched yet
            picture = b64decode(seen["image_url"]["url"].partition(",")[2])
            where = f"messages[{index}].content[{position}].image_url"
            told.append({"field": where, "from": "link", "to": f"sha256:{sha256(picture).hexdigest()}"})
    return told[:_MAX_MESSAGES_TOLD]


def _replaced(asked: SamplingParams | None, used: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if asked is None:
        return []
    return [
        {"field": name, "from": msgspec.to_builtins(getattr(asked, name, None), str_keys=True), "to": value}
        for name, value in used.items()
    ]
