"""One llama_context: the KV memory and the forward pass. Used by one thread only, the engine's."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.errors import BackendFailed, InsufficientMemory
from backends.llamacpp.lib import engine_log, llama
from backends.llamacpp.model import GgufModel


@dataclass(frozen=True, kw_only=True)
class ContextConfig:
    """Sizes of a context, all in tokens but the thread counts.

    `tokens_per_sequence`: most tokens of one sequence. Split, every slot has as many cells of its own; unified, all
    slots share that one number. `n_batch`: most tokens of one forward pass. `flash_attention`: None lets llama.cpp
    decide.
    """

    tokens_per_sequence: int
    num_slots: int
    n_batch: int
    n_threads: int
    n_threads_batch: int
    kv_unified: bool
    flash_attention: bool | None = None

    @property
    def num_cells(self) -> int:
        return self.tokens_per_sequence * (1 if self.kv_unified else self.num_slots)


class NoRoomInCache(Exception):
    """llama_decode found no cells for the batch; nothing of it was kept."""


class Context:
    """Raises: InsufficientMemory when llama.cpp cannot allocate it."""

    def __init__(self, model: GgufModel, config: ContextConfig) -> None:
        lib = llama()
        params = lib.llama_context_default_params()
        params.n_ctx = config.num_cells
        params.n_batch = params.n_ubatch = config.n_batch
        params.n_seq_max = config.num_slots
        # One row of logits per running sequence; without this the buffer holds a row for every token of a batch.
        params.n_outputs_max = config.num_slots
        params.n_threads = config.n_threads
        params.n_threads_batch = config.n_threads_batch
        params.kv_unified = config.kv_unified
        params.no_perf = True
        if config.flash_attention is not None:
            params.flash_attn_type = int(config.flash_attention)
        engine_log.take_errors()
        self._lib = lib
        self.handle: Any = lib.llama_init_from_model(model.handle, params)
        if not self.handle:
            lines = engine_log.take_errors()
            reason = f": {lines[-1].split(': ', 1)[-1][:200]}" if lines else ""
            raise InsufficientMemory(
                f"No context of {config.num_cells} tokens could be made for the model{reason}"
            )
        self.config = config
        self._has_pending_copies = False
        self._memory = lib.llama_get_memory(self.handle)
        self._num_vocab_tokens = model.num_vocab_tokens
        self._batch = Batch(lib, config.n_batch)

    def truncate(self, slot_id: int, length: int) -> bool:
        """As `slots.KvMemory.truncate`."""
        return bool(self._lib.llama_memory_seq_rm(self._memory, slot_id, length, -1))

    def copy(self, source_id: int, target_id: int, length: int) -> bool:
        """As `slots.KvMemory.copy`. Between streams llama.cpp copies whole buffers only; the rest is cut after."""
        self._lib.llama_memory_seq_cp(self._memory, source_id, target_id, -1, -1)
        self._has_pending_copies = not self.config.kv_unified
        return bool(self._lib.llama_memory_seq_rm(self._memory, target_id, length, -1))

    def take_over(self, other: Context, slot_id: int) -> bool:
        """Copy what a slot of another context holds into the same slot here. Both must be split or both unified.
        False: it could not be copied, and the slot is empty here. So it is while the other has copies to make:
        llama.cpp makes them with its next pass, and until then a slot may hold another's content."""
        if other._has_pending_copies:
            return False
        size = int(self._lib.llama_state_seq_get_size(other.handle, slot_id))
        buffer = (ctypes.c_uint8 * size)()
        written = int(self._lib.llama_state_seq_get_data(other.handle, buffer, size, slot_id))
        if written and int(self._lib.llama_state_seq_set_data(self.handle, buffer, written, slot_id)):
            return True
        self.truncate(slot_id, 0)
        return False

    @property
    def batch(self) -> Batch:
        """The batch of the next step, reused for every step."""
        return self._batch

    def decode(self) -> npt.NDArray[np.float32]:
        """Run the batch; give one row of logits per token that asked for them, in batch order. The rows may be written
        to and are valid until the next call. The interpreter lock is free meanwhile.

        Raises: NoRoomInCache; BackendFailed for anything else llama.cpp reports.
        """
        code = int(self._lib.llama_decode(self.handle, self._batch.struct()))
        self._has_pending_copies = False
        if code == 1:
            raise NoRoomInCache
        if code != 0:
            raise BackendFailed(f"The engine failed to compute a step (llama_decode: {code})")
        pointer = self._lib.llama_get_logits(self.handle)
        rows: npt.NDArray[np.float32] = np.ctypeslib.as_array(
            pointer, shape=(self._batch.num_outputs, self._num_vocab_tokens)
        )
        return rows

    def close(self) -> None:
        """Free it. Idempotent."""
        if self.handle:
            self._lib.llama_free(self.handle)
            self.handle = None


class Batch:
    """A llama_batch over numpy buffers: a chunk of a prompt is one slice assignment, not a loop over tokens."""

    def __init__(self, lib: Any, capacity: int) -> None:
        self.capacity = capacity
        self.num_tokens = 0
        self.num_outputs = 0
        self._token = np.zeros(capacity, dtype=np.int32)
        self._pos = np.zeros(capacity, dtype=np.int32)
        self._num_seq = np.ones(capacity, dtype=np.int32)
        self._seq = np.zeros(capacity, dtype=np.int32)
        self._logits = np.zeros(capacity, dtype=np.int8)
        first = self._seq.ctypes.data
        self._seq_pointers = np.arange(
            first, first + capacity * self._seq.itemsize, self._seq.itemsize, dtype=np.uintp
        )
        struct = lib.llama_batch()
        for field, array in (
            ("token", self._token),
            ("pos", self._pos),
            ("n_seq_id", self._num_seq),
            ("seq_id", self._seq_pointers),
            ("logits", self._logits),
        ):
            field_type = dict(lib.llama_batch._fields_)[field]
            setattr(struct, field, ctypes.cast(array.ctypes.data, field_type))
        self._struct = struct

    @property
    def room(self) -> int:
        return self.capacity - self.num_tokens

    def clear(self) -> None:
        self.num_tokens = self.num_outputs = 0

    def add(self, tokens: Sequence[int], *, start: int, slot_id: int, wants_logits: bool) -> None:
        """Append consecutive tokens of one sequence from position `start`. Logits are for the last of them."""
        begin = self.num_tokens
        end = begin + len(tokens)
        self._token[begin:end] = tokens
        self._pos[begin:end] = range(start, start + len(tokens))
        self._seq[begin:end] = slot_id
        self._logits[begin:end] = 0
        if wants_logits:
            self._logits[end - 1] = 1
            self.num_outputs += 1
        self.num_tokens = end

    def struct(self) -> Any:
        self._struct.n_tokens = self.num_tokens
        return self._struct
