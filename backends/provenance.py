"""What a backend says of how it made an answer, for whoever asks for a receipt. Told once, with the last event."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

Repeats = Literal["exact", "likely", "no"]
"""Whether the same request, with the same seed, gets the same text again: the engine promises it (`exact`); it usually
does (`likely`); nobody says so (`no`)."""


class Provenance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Never a key, an address or a path. None: not known."""

    engine: str
    """What ran the model: `llama.cpp`, `vLLM`, or what called the one who did: `LiteLLM`."""
    engine_version: str | None = None
    machine: str | None = None
    """What of the machine the numbers depend on: the instructions of its CPU, its GPU."""
    model_sha256: str | None = None
    """Of the file, as `sha256sum` says it; of several files one after the other."""
    is_hashing: bool = False
    """That hash is being computed; a later receipt has it."""
    model_revision: str | None = None
    """The commit of the hub that the weights are of."""
    provider: str | None = None
    provider_model: str | None = None
    """As the provider itself calls what answered."""
    system_fingerprint: str | None = None
    """OpenAI's name of a configuration of its servers."""
    context_length: int | None = None
    prompt_sha256: str | None = None
    """Of the prompt's tokens (`digest_of_tokens`): a template may write the date into it."""
    repeats: Repeats = "no"
    why_not: str | None = None
    """Why it is not `exact`, in one sentence."""
    used: Mapping[str, Any] = {}
    """Parameters of `SamplingParams` that took another value than the request's; None: the provider's own."""
    retries: int = 0
    """Attempts that failed before the one that was answered."""


def digest_of_tokens(prompts: Iterable[Sequence[int]]) -> str:
    """SHA-256 of the prompts' token ids: four bytes each, lowest first, and four times 0xff behind each prompt."""
    digest = hashlib.sha256()
    for tokens in prompts:
        digest.update(b"".join([token.to_bytes(4, "little") for token in tokens]) + b"\xff" * 4)
    return digest.hexdigest()


def differing(asked: Mapping[str, Any], got: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of `got` that `asked` has otherwise."""
    return {name: value for name, value in got.items() if asked.get(name) != value}
