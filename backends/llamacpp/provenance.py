"""What llama.cpp says of itself in a receipt."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Sequence
from ctypes import c_char_p
from typing import Final

from backends.digest import ModelDigest
from backends.llamacpp.lib import llama
from backends.provenance import Provenance, digest_of_tokens
from backends.types import SamplingParams

DIGEST_WAIT_S: Final = 1.0
"""How long the end of an answer waits for the hash of its model's file. One that takes longer is in later receipts."""
SHARED: Final = "the slots share one KV cache, or layers run on a GPU"
BATCHED: Final = "vectors are computed together with those of other requests, and differ in their last bits"


@functools.cache
def engine_version() -> str:
    """The bindings' version, and that of the library below them, which is built from its sources."""
    version = f"llama-cpp-python {importlib.metadata.version('llama-cpp-python')}"
    ggml, commit = _said("ggml_version"), _said("ggml_commit")
    if ggml:
        version += f", ggml {ggml}"
    return f"{version} ({commit})" if commit else version


@functools.cache
def machine() -> str:
    """The instructions that the library uses here: others add up in another order."""
    words = (llama().llama_print_system_info() or b"").decode("utf-8", "replace")
    return " ".join(words.replace(" = 1 |", "").replace("CPU :", "").split())


def _said(function: str) -> str:
    """What a function of the library without arguments says; "" where this build has no such function."""
    try:
        call = getattr(llama()._lib, function)
    except AttributeError:
        return ""
    call.restype, call.argtypes = c_char_p, []
    return (call() or b"").decode("utf-8", "replace")


class Witness:
    """Makes the provenance of one model's answers."""

    def __init__(self, digest: ModelDigest, *, context_length: int) -> None:
        self._digest = digest
        self._context_length = context_length

    def begin(self) -> None:
        """A request wants it: what takes time is done beside its answer."""
        self._digest.begin()

    async def testify(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingParams | None = None,
        *,
        why_not: str | None = None,
    ) -> Provenance:
        """`prompts`: as token ids. `sampling`: None for what is no generation. `why_not`: as of `Provenance`."""
        sha256 = await self._digest.within(DIGEST_WAIT_S)
        return Provenance(
            engine="llama.cpp",
            engine_version=engine_version(),
            machine=machine(),
            model_sha256=sha256,
            is_hashing=self._digest.is_pending,
            context_length=self._context_length,
            prompt_sha256=digest_of_tokens(prompts),
            repeats="exact" if why_not is None else "likely",
            why_not=why_not,
            used={} if sampling is None else self._used(prompts, sampling),
        )

    def _used(self, prompts: Sequence[Sequence[int]], sampling: SamplingParams) -> dict[str, int]:
        """The context's end comes before `max_tokens` does."""
        room = self._context_length - max(map(len, prompts))
        limit = sampling.max_tokens
        return {"max_tokens": room} if limit is not None and len(prompts) == 1 and room < limit else {}

    def close(self) -> None:
        self._digest.close()
