"""What a folder of weights says about itself, read from `config.json` and the sizes of its files."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from models.errors import UnusableModel

log = logging.getLogger("llm.vllm")

_WEIGHTS: Final = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_MAX_CONFIG_BYTES: Final = 16 << 20
_KV_ELEMENT_BYTES: Final = 2


@dataclass(frozen=True, kw_only=True)
class WeightsFacts:
    """None and 0: it does not say."""

    num_vocab_tokens: int | None = None
    """Rows of the embedding: an id from here on reads past its end."""
    context_length: int | None = None
    kv_bytes_per_token: int = 0
    """Of all layers, in 16 bits."""
    weights_bytes: int = 0


def read_facts(model: Path) -> WeightsFacts:
    """Of a folder with `config.json`, or of a single file, of which only the size is told.

    Raises: UnusableModel for a folder without a readable `config.json`, or without weights.
    """
    if model.is_file():
        return WeightsFacts(weights_bytes=model.stat().st_size)
    config = _config(model / "config.json")
    # Models of text and images keep the text's part in a section.
    text = next(
        (config[key] for key in ("text_config", "llm_config") if isinstance(config.get(key), dict)), config
    )
    size = weights_bytes(model)
    if size == 0:
        raise UnusableModel(f"The model's folder holds no weights ({', '.join(_WEIGHTS)})")
    return WeightsFacts(
        num_vocab_tokens=_whole(text, "vocab_size") or _whole(config, "vocab_size"),
        context_length=_whole(text, "max_position_embeddings"),
        kv_bytes_per_token=_kv_bytes(text),
        weights_bytes=size,
    )


def weights_bytes(folder: Path) -> int:
    """Of the format that has most bytes: a repository often holds the same weights twice."""
    sizes: dict[str, int] = {}
    for path in folder.iterdir():
        if path.suffix in _WEIGHTS and path.is_file():
            sizes[path.suffix] = sizes.get(path.suffix, 0) + path.stat().st_size
    return sizes.get(".safetensors") or max(sizes.values(), default=0)


def _config(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            raise UnusableModel(f"The model's config.json is larger than {_MAX_CONFIG_BYTES} bytes")
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UnusableModel("The model's folder holds no config.json") from None
    except (OSError, ValueError) as error:
        log.warning("%s cannot be read: %s", path, error)
        raise UnusableModel("The model's config.json cannot be read") from None
    if not isinstance(config, dict):
        raise UnusableModel("The model's config.json holds no object")
    return config


def _whole(config: dict[str, Any], name: str) -> int | None:
    value = config.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _kv_bytes(config: dict[str, Any]) -> int:
    layers, heads = _whole(config, "num_hidden_layers"), _whole(config, "num_attention_heads")
    if layers is None or heads is None:
        return 0
    hidden = _whole(config, "hidden_size")
    size = _whole(config, "head_dim") or (hidden // heads if hidden else 0)
    kv_heads = _whole(config, "num_key_value_heads") or heads
    return 2 * layers * kv_heads * size * _KV_ELEMENT_BYTES
