"""A GGUF made from a folder of weights as transformers and sentence-transformers save them, once.

Only encoders of the BERT family (`"model_type": "bert"`) with a WordPiece vocabulary: they are small, their layout is
fixed, and packages carry them as safetensors. The result lies in a cache and is named after what it was made from, so
that other weights, or another version of this module, make another file.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from models.errors import ModelError, SourceUnavailable, UnusableModel

FORMAT: Final = 2
"""Counts the changes of what this module writes."""

WEIGHTS: Final = "model.safetensors"

_SKIPPED: Final = ("embeddings.position_ids", "pooler.")
_SAMPLE_BYTES: Final = 1 << 20

_log = logging.getLogger(__name__)


def is_convertible(folder: Path) -> bool:
    """Whether the folder holds what `convert` takes, by its file names."""
    return (folder / WEIGHTS).is_file() and (folder / "config.json").is_file()


def converted_path(folder: Path, cache: Path | None = None) -> Path:
    """Where the GGUF made from `folder` lies, or will. `cache` None: `llm-inference` below HF_HOME.

    Raises: SourceUnavailable if the folder cannot be read.
    """
    digest = hashlib.sha256(str(FORMAT).encode())
    try:
        for name in ("config.json", "1_Pooling/config.json", "tokenizer.json", "vocab.txt"):
            if (folder / name).is_file():
                digest.update((folder / name).read_bytes())
        # The table of a .safetensors file stands in front; its size and beginning tell models apart without a read of
        # everything at each start.
        with (folder / WEIGHTS).open("rb") as file:
            digest.update(b"%d" % os.fstat(file.fileno()).st_size)
            digest.update(file.read(_SAMPLE_BYTES))
    except OSError as error:
        raise SourceUnavailable("The folder of the model's weights cannot be read") from error
    return (cache or _default_cache()) / f"{digest.hexdigest()[:32]}.gguf"


def convert(
    folder: Path,
    *,
    cache: Path | None = None,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Path:
    """The GGUF of the folder's model, written if it is not in the cache yet. Two processes may do so at once: each
    writes a file of its own and the last one stays. About a second for 22 million parameters.

    Raises: UnusableModel (another architecture, damaged), SourceUnavailable (the package `gguf` is missing, no room).
    """
    path = converted_path(folder, cache)
    if path.is_file():
        return path
    try:
        import gguf  # noqa: F401 - asked for here, so that its absence is told before anything is written
    except ModuleNotFoundError as error:
        raise SourceUnavailable(
            "Converting the model needs the package 'gguf', which is not installed"
        ) from error
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        os.close(descriptor)
        partial = Path(name)
        try:
            _write(folder, partial, on_progress)
            partial.chmod(0o644)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except ModelError:
        raise
    except OSError as error:
        raise SourceUnavailable(
            f"The converted model cannot be written: {(error.strerror or 'input/output error').lower()}"
        ) from error
    _log.info("converted %s into %s", folder, path)
    return path


def _default_cache() -> Path:
    """Beside the hub's own cache, so that HF_HOME moves both."""
    from huggingface_hub import constants

    return Path(constants.HF_HOME) / "llm-inference"


def _write(folder: Path, path: Path, on_progress: Callable[[int, int], None]) -> None:
    import gguf
    import numpy as np

    from models.safetensors_file import read_tensors

    config = _json(folder / "config.json")
    if config.get("model_type") != "bert":
        raise UnusableModel(
            f"Models of the kind {str(config.get('model_type'))[:64]!r} cannot be converted here"
        )
    writer = gguf.GGUFWriter(path, "bert")
    try:
        _write_metadata(writer, folder, config)
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, int(config["num_hidden_layers"]))
        total, done = (folder / WEIGHTS).stat().st_size, 0
        for name, values in read_tensors(folder / WEIGHTS):
            done += values.nbytes
            bare = name.removeprefix("bert.")
            if bare.startswith(_SKIPPED):
                continue
            target = names.get_name(bare, try_suffixes=(".weight", ".bias"))
            if target is None:
                raise UnusableModel(f"The model's weights hold a tensor that is not BERT's: {name[:128]!r}")
            # As published, and faster than half precision on a CPU: 4,180 against 3,440 tokens/s and core, texts of 12
            # tokens in batches of 32.
            writer.add_tensor(target, np.ascontiguousarray(values, dtype="<f4"))
            on_progress(done, total)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    except (KeyError, TypeError, ValueError) as error:
        raise UnusableModel("The model's configuration lacks what BERT needs") from error
    finally:
        writer.close()


def _write_metadata(writer: Any, folder: Path, config: Mapping[str, Any]) -> None:
    import gguf

    writer.add_name(str(config.get("_name_or_path") or folder.name))
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    # The number of rows of the position table; how many of them are good for anything is the card's to say.
    writer.add_context_length(int(config["max_position_embeddings"]))
    writer.add_embedding_length(int(config["hidden_size"]))
    writer.add_feed_forward_length(int(config["intermediate_size"]))
    writer.add_block_count(int(config["num_hidden_layers"]))
    writer.add_head_count(int(config["num_attention_heads"]))
    writer.add_layer_norm_eps(float(config["layer_norm_eps"]))
    writer.add_causal_attention(False)
    writer.add_pooling_type(_pooling(folder))
    tokens, kinds = _vocabulary(folder, int(config["vocab_size"]))
    writer.add_tokenizer_model("bert")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_type_count(int(config.get("type_vocab_size", 1)))
    for token, add in _SPECIAL.items():
        getattr(writer, add)(tokens.index(token))


_SPECIAL: Final = {
    "[CLS]": "add_bos_token_id",
    "[SEP]": "add_sep_token_id",
    "[UNK]": "add_unk_token_id",
    "[PAD]": "add_pad_token_id",
    "[MASK]": "add_mask_token_id",
}


def _pooling(folder: Path) -> Any:
    """How sentence-transformers makes one vector of a text's; the first token where the folder does not say."""
    import gguf

    place = folder / "1_Pooling" / "config.json"
    chosen = _json(place) if place.is_file() else {"pooling_mode_cls_token": True}
    if chosen.get("pooling_mode_mean_tokens"):
        return gguf.PoolingType.MEAN
    if chosen.get("pooling_mode_lasttoken"):
        return gguf.PoolingType.LAST
    if chosen.get("pooling_mode_cls_token"):
        return gguf.PoolingType.CLS
    raise UnusableModel("The model's pooling is neither mean, first nor last token")


def _vocabulary(folder: Path, size: int) -> tuple[list[str], list[int]]:
    """Tokens by id and their kinds, in the spelling of llama.cpp's WordPiece: there the beginning of a word is marked
    (with U+2581) and its other pieces are bare, where BERT marks those with ##."""
    place = folder / "tokenizer.json"
    if not place.is_file():
        raise UnusableModel("The model's folder holds no tokenizer.json")
    tokenizer = _json(place)
    model = tokenizer.get("model", {})
    normalizer = tokenizer.get("normalizer") or {}
    if model.get("type") != "WordPiece" or model.get("continuing_subword_prefix") != "##":
        raise UnusableModel("The model's tokenizer is not BERT's WordPiece")
    if not normalizer.get("lowercase") or normalizer.get("strip_accents") is False:
        raise UnusableModel("The model's tokenizer keeps capitals or accents, which llama.cpp's does not")
    by_id = {index: token for token, index in model["vocab"].items()}
    special = {
        entry["id"]: entry["content"] for entry in tokenizer.get("added_tokens", ()) if entry["special"]
    }
    tokens, kinds = [], []
    for index, (token, kind) in enumerate(_spelled(by_id | special, special, size)):
        tokens.append(token if token is not None else f"[PAD{index}]")
        kinds.append(int(kind))
    if missing := [token for token in _SPECIAL if token not in tokens]:
        raise UnusableModel(f"The model's vocabulary has no {missing[0]}")
    return tokens, kinds


def _spelled(
    by_id: Mapping[int, str], special: Mapping[int, str], size: int
) -> Iterator[tuple[str | None, int]]:
    import gguf

    for index in range(size):
        token = by_id.get(index)
        if token is None:
            yield None, gguf.TokenType.UNUSED
        elif index in special:
            kind = gguf.TokenType.UNKNOWN if token == "[UNK]" else gguf.TokenType.CONTROL  # noqa: S105
            yield token, kind
        elif token.startswith("##") and len(token) > 2:
            yield token[2:], gguf.TokenType.NORMAL
        else:
            yield "▁" + token, gguf.TokenType.NORMAL


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UnusableModel(f"The model's {path.name} cannot be read") from error
    if not isinstance(content, dict):
        raise UnusableModel(f"The model's {path.name} holds no object")
    return content
