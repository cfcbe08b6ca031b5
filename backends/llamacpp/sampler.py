"""Choosing the next token of one sequence from its row of logits.

Two ways lead to a token. Plain greedy decoding takes the row's maximum with numpy: llama.cpp's chain would first copy
all 49,152 candidates (about 0.1 ms a token here). Everything else runs a llama.cpp sampler chain, in the order
logit bias, penalties, temperature, top-k, typical, top-p, min-p, draw: the temperature acts before the cuts, as in
vLLM and OpenAI's API, while llama-server's default order puts it last.
"""

from __future__ import annotations

import ctypes
import math
import secrets
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.errors import BackendFailed, InvalidParameter
from backends.llamacpp.constraint import Logits, Matcher
from backends.llamacpp.lib import llama
from backends.llamacpp.model import GgufModel
from backends.types import SamplingParams, TokenLogprob, TokenLogprobs

_SEED_MASK = 0xFFFFFFFF
_COLDEST = 1e-5
"""Below this temperature the choice is greedy: dividing logits by 1e-38 overflows to one infinity for many tokens."""


def check_token_ids(params: SamplingParams, num_vocab_tokens: int) -> None:
    """Raises: InvalidParameter for ids outside the vocabulary in `logit_bias` or `stop_token_ids`."""
    for name, ids in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
        for token in ids:
            if not 0 <= token < num_vocab_tokens:
                raise InvalidParameter(
                    f"{name}: token id {token} is outside the model's vocabulary of {num_vocab_tokens} tokens",
                    param=name,
                )


def draw_seed() -> int:
    """A seed for a request that named none."""
    return secrets.randbits(32)


class Sampler:
    """The choice of tokens for one sequence; owns llama.cpp samplers and must be closed.

    `seed` differs between the sequences of one request, so that `n` choices differ. `matcher`: what the answer has to
    look like; it follows the choices. Not thread-safe.
    """

    def __init__(
        self,
        params: SamplingParams,
        model: GgufModel,
        *,
        seed: int,
        prompt: list[int],
        matcher: Matcher | None = None,
    ) -> None:
        self._params = params
        self._model = model
        self._vocab_size = model.num_vocab_tokens
        self._stop_ids = np.array(params.stop_token_ids, dtype=np.int64)
        self._bias_ids = np.fromiter(params.logit_bias, dtype=np.int64)
        self._bias = np.fromiter(params.logit_bias.values(), dtype=np.float32)
        self._matcher = matcher
        self._chain: Any = None
        self.is_greedy = params.temperature < _COLDEST or params.top_p == 0 or params.top_k == 1
        penalised = (
            params.repetition_penalty != 1.0
            or params.presence_penalty != 0.0
            or params.frequency_penalty != 0.0
        )
        if not self.is_greedy or penalised:
            self._chain = self._build_chain(seed, prompt)
        if self._chain is not None:
            self._candidates = np.zeros(self._vocab_size, dtype=_TOKEN_DATA)

    def _build_chain(self, seed: int, prompt: list[int]) -> Any:
        lib = llama()
        params = self._params
        chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())

        def add(sampler: Any) -> None:
            lib.llama_sampler_chain_add(chain, sampler)

        if params.repetition_penalty != 1.0:
            add(self._penalties(params.repetition_penalty, 0.0, 0.0))
            # Repetition counts the prompt too (vLLM, Hugging Face); the two below count generated tokens only (OpenAI).
            for token in prompt:
                lib.llama_sampler_accept(chain, token)
        if params.presence_penalty or params.frequency_penalty:
            add(self._penalties(1.0, params.frequency_penalty, params.presence_penalty))
        if self.is_greedy:
            add(lib.llama_sampler_init_greedy())
            return chain
        add(lib.llama_sampler_init_temp(params.temperature))
        if params.top_k > 0:
            add(lib.llama_sampler_init_top_k(params.top_k))
        if params.typical_p < 1.0:
            add(lib.llama_sampler_init_typical(params.typical_p, 1))
        if params.top_p < 1.0:
            add(lib.llama_sampler_init_top_p(params.top_p, 1))
        if params.min_p > 0.0:
            add(lib.llama_sampler_init_min_p(params.min_p, 1))
        add(lib.llama_sampler_init_dist(_fold_seed(seed)))
        return chain

    def _penalties(self, repeat: float, frequency: float, presence: float) -> Any:
        window = self._model.train_context_length
        return llama().llama_sampler_init_penalties(self._vocab_size, window, repeat, frequency, presence)

    @property
    def is_over(self) -> bool:
        """The answer is complete, and its constraint lets nothing follow. Asking the model for its end would be a step
        of the engine for nothing."""
        return self._matcher is not None and self._matcher.is_over

    def prepare(self, row: Logits, num_generated: int) -> None:
        """Write into `row` what forbids or favours tokens: the caller's bias, no end before its time, the constraint.
        Raises: BackendFailed when the constraint says neither what may follow nor that nothing may."""
        params = self._params
        if self._bias_ids.size:
            row[self._bias_ids] += self._bias
        if params.ignore_eos or num_generated < params.min_tokens:
            row[self._model.end_of_generation_ids] = -math.inf
        if num_generated < params.min_tokens and self._stop_ids.size:
            row[self._stop_ids] = -math.inf
        if self._matcher is not None:
            row[~self._matcher.allowed()] = -math.inf

    def choose(self, row: Logits) -> int:
        """The next token for a prepared row; the choice is remembered by penalties and constraint.

        An end of generation when nothing may follow: the constraint is met, and the end is forbidden (`ignore_eos`,
        `min_tokens`).

        Raises: BackendFailed when no token may follow and the constraint is not met either.
        """
        if self._matcher is None:
            return self._choose(row)
        if row.max() == -math.inf:
            if not self._matcher.is_complete:
                raise BackendFailed("The answer's constraint lets no token of the model follow")
            return min(self._model.end_of_generation)
        token = self._choose(row)
        if token not in self._model.end_of_generation:
            self._matcher.accept(token)
        return token

    def _choose(self, row: Logits) -> int:
        if self._chain is None:
            return int(row.argmax())
        lib = llama()
        # What is forbidden stays away: under a constraint a few of 49,152 candidates are left to sort and to sum.
        ids = np.flatnonzero(row > -math.inf)
        candidates = self._candidates[: ids.size]
        candidates["id"] = ids
        candidates["logit"] = row[ids]
        candidates["p"] = 0.0
        array = _token_array(lib, candidates)
        lib.llama_sampler_apply(self._chain, ctypes.byref(array))
        token = int(array.data[array.selected].id)
        lib.llama_sampler_accept(self._chain, token)
        return token

    def close(self) -> None:
        """Free the samplers. Idempotent."""
        if self._chain is not None:
            llama().llama_sampler_free(self._chain)
            self._chain = None


_TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


def _fold_seed(seed: int) -> int:
    """An int64 seed as the 32 bits llama.cpp takes: itself where it fits. The upper half is scrambled first, so that
    large and negative seeds do not meet their small neighbours. All ones mean "draw one" there, and are avoided."""
    folded, upper = seed & _SEED_MASK, (seed >> 32) & _SEED_MASK
    if upper:
        folded ^= zlib.crc32(upper.to_bytes(4, "little"))
    return folded if folded != _SEED_MASK else folded - 1


def _token_array(lib: Any, candidates: npt.NDArray[np.void]) -> Any:
    data = candidates.ctypes.data_as(ctypes.POINTER(lib.llama_token_data))
    return lib.llama_token_data_array(data=data, size=len(candidates), selected=-1, sorted=False)


def logprobs_of(row: Logits, token: int, num_top: int, model: GgufModel) -> TokenLogprobs:
    """Natural-log probabilities of the model's own distribution (before temperature, bias and cuts), as vLLM and
    OpenAI report them. `row` must not have been prepared yet."""
    peak = float(row.max())
    total = peak + math.log(float(np.exp(row - peak, dtype=np.float64).sum()))

    def entry(i: int) -> TokenLogprob:
        return TokenLogprob(model.printable_piece(i), min(0.0, float(row[i]) - total))

    top: tuple[TokenLogprob, ...] = ()
    if num_top:
        best = np.argpartition(row, -num_top)[-num_top:]
        top = tuple(entry(int(i)) for i in best[np.argsort(-row[best], kind="stable")])
    return TokenLogprobs(entry(token), top)
