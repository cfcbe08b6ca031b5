"""A model file in memory: weights and vocabulary. Knows no sequences and no requests.

Everything here may be called from several threads at once (llama.cpp's vocabulary is read-only); `close` may not.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.errors import InvalidParameter
from backends.llamacpp.lib import engine_log, llama
from models.errors import UnusableModel

_PATH = re.compile(r"'?/[^\s']+'?")


class GgufModel:
    """Weights and vocabulary of one GGUF file.

    `on_progress` is called with 0–1 from the loading thread; returning False from it stops the load.

    Raises: UnusableModel with llama.cpp's own reason.
    """

    def __init__(
        self, path: Path, *, n_gpu_layers: int = 0, on_progress: Callable[[float], bool] = lambda _: True
    ) -> None:
        lib = llama()
        params = lib.llama_model_default_params()
        params.n_gpu_layers = n_gpu_layers
        callback = lib.llama_progress_callback(lambda fraction, _: on_progress(fraction))
        params.progress_callback = callback
        engine_log.take_errors()
        self.handle: Any = lib.llama_model_load_from_file(str(path).encode(), params)
        if not self.handle:
            raise UnusableModel(_reason(engine_log.take_errors()))
        self.vocab: Any = lib.llama_model_get_vocab(self.handle)
        self.num_vocab_tokens = int(lib.llama_vocab_n_tokens(self.vocab))
        self.train_context_length = int(lib.llama_model_n_ctx_train(self.handle))
        self.weights_bytes = int(lib.llama_model_size(self.handle))
        self.adds_bos = bool(lib.llama_vocab_get_add_bos(self.vocab))
        if not self.num_vocab_tokens:
            self.close()
            raise UnusableModel("The file has no vocabulary")
        if lib.llama_model_has_encoder(self.handle) or not lib.llama_model_has_decoder(self.handle):
            self.close()
            raise UnusableModel("The model has an encoder; only decoder models generate text here")

    @functools.cached_property
    def end_of_generation(self) -> frozenset[int]:
        """Ids that end a turn."""
        lib = llama()
        return frozenset(t for t in range(self.num_vocab_tokens) if lib.llama_vocab_is_eog(self.vocab, t))

    @functools.cached_property
    def end_of_generation_ids(self) -> npt.NDArray[np.int64]:
        """The same, as an index for a row of logits."""
        return np.fromiter(self.end_of_generation, dtype=np.int64)

    def text_of_special(self, which: str) -> str:
        """Text of the `bos` or `eos` token, "" where the model has none."""
        lib = llama()
        token = int(getattr(lib, f"llama_vocab_{which}")(self.vocab))
        return "" if token < 0 else self.vocabulary_text(token)

    def metadata(self, key: str) -> str | None:
        """A string of the file's metadata, None where it is absent."""
        lib = llama()
        size = 1 << 12
        while True:
            buffer = ctypes.create_string_buffer(size)
            needed = int(lib.llama_model_meta_val_str(self.handle, key.encode(), buffer, size))
            if needed < 0:
                return None
            if needed < size:
                return buffer.value.decode("utf-8", "replace")
            size = needed + 1

    def chat_template(self) -> str | None:
        """The file's default chat template, as written in its metadata."""
        return self.metadata("tokenizer.chat_template")

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of `text`. `add_special` puts the model's own BOS/EOS where it wants them; `parse_special` reads
        the text of special tokens as those tokens (templates need it)."""
        lib = llama()
        data = text.encode("utf-8")
        capacity = len(data) + 8
        tokens = (lib.llama_token * capacity)()
        count = int(
            lib.llama_tokenize(self.vocab, data, len(data), tokens, capacity, add_special, parse_special)
        )
        if count < 0:
            capacity = -count
            tokens = (lib.llama_token * capacity)()
            count = int(
                lib.llama_tokenize(self.vocab, data, len(data), tokens, capacity, add_special, parse_special)
            )
        return list(tokens[:count])

    def tokenize_rendered(self, text: str) -> list[int]:
        """Tokens of a rendered template: BOS is added where the model wants one and the template wrote none."""
        bos = self.text_of_special("bos")
        add = self.adds_bos and not (bos and text.startswith(bos))
        return self.tokenize(text, add_special=add, parse_special=True)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of tokens, special ones included, as it would have been tokenised. Ids must be of the vocabulary."""
        lib = llama()
        ids = (lib.llama_token * len(tokens))(*tokens)
        size = 16 + 8 * len(tokens)
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = int(lib.llama_detokenize(self.vocab, ids, len(tokens), buffer, size, False, True))
            if length >= 0:
                return buffer.raw[:length].decode("utf-8", "replace")
            size = -length

    def vocabulary_text(self, token: int) -> str:
        """How the vocabulary spells a token: with its own signs for blanks and for bytes that are no character."""
        return bytes(llama().llama_vocab_get_text(self.vocab, token) or b"").decode("utf-8", "replace")

    def check_ids(self, tokens: Sequence[int], param: str) -> None:
        """Raises: InvalidParameter for an id outside the vocabulary."""
        for token in (min(tokens, default=0), max(tokens, default=0)):
            if not 0 <= token < self.num_vocab_tokens:
                raise InvalidParameter(
                    f"{param}: token id {token} is outside the model's vocabulary of "
                    f"{self.num_vocab_tokens} tokens",
                    param=param,
                )

    @functools.cached_property
    def _pieces(self) -> dict[int, bytes]:
        return {}

    def piece(self, token: int) -> bytes:
        """Bytes a token adds to the text; empty for control tokens. Cached: the loop asks for it once per token."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._read_piece(token, special=False)
        return piece

    def printable_piece(self, token: int) -> bytes:
        """Bytes of a token where special tokens show their text, for logprobs."""
        return self.piece(token) or self._read_piece(token, special=True)

    def _read_piece(self, token: int, *, special: bool) -> bytes:
        lib = llama()
        size = 128
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = int(lib.llama_token_to_piece(self.vocab, token, buffer, size, 0, special))
            if length >= 0:
                return buffer.raw[:length]
            size = -length

    def vocabulary(self) -> list[bytes]:
        """The bytes of every token as `piece` gives them; those of a control token are its text behind 0xFF, which no
        text holds. Reads the whole table: some 50 ms for 49,152 tokens."""
        lib = llama()
        size = 1 << 10
        buffer = ctypes.create_string_buffer(size)

        def read(token: int, special: bool) -> bytes:
            length = int(lib.llama_token_to_piece(self.vocab, token, buffer, size, 0, special))
            return buffer.raw[:length] if length >= 0 else self._read_piece(token, special=special)

        pieces = []
        for token in range(self.num_vocab_tokens):
            piece = read(token, False)
            if not piece and (name := read(token, True)):
                piece = b"\xff" + name
            pieces.append(piece)
        return pieces

    def close(self) -> None:
        """Free the weights. Every context made from them must be closed before."""
        if self.handle:
            llama().llama_model_free(self.handle)
            self.handle = None


def _reason(lines: list[str]) -> str:
    """llama.cpp's last error as a sentence for a caller: without function names and without paths."""
    for line in reversed(lines):
        text = re.sub(r"^\w[\w:~]*: ", "", line)
        text = re.sub(r"^error loading model: ", "", text)
        text = _PATH.sub("the file", text).strip()
        if text and not text.startswith("failed to load model"):
            return f"The model file cannot be loaded: {text[:300]}"
    return "The model file cannot be loaded"
