"""A BERT of a few numbers, as transformers and sentence-transformers save one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

SIZE, LAYERS, INNER, POSITIONS = 8, 1, 16, 12
VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "river", "##s", "run", "##ning", "##", "é")
CONFIG: dict[str, Any] = {
    "model_type": "bert",
    "_name_or_path": "tiny",
    "hidden_size": SIZE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "intermediate_size": INNER,
    "max_position_embeddings": POSITIONS,
    "layer_norm_eps": 1e-12,
    "vocab_size": len(VOCABULARY),
    "type_vocab_size": 2,
}
TOKENIZER: dict[str, Any] = {
    "added_tokens": [
        {"id": index, "content": token, "special": True} for index, token in enumerate(VOCABULARY[:5])
    ],
    "normalizer": {"type": "BertNormalizer", "lowercase": True, "strip_accents": None},
    "model": {
        "type": "WordPiece",
        "continuing_subword_prefix": "##",
        "vocab": {token: index for index, token in enumerate(VOCABULARY)},
    },
}


def tensors(prefix: str = "") -> dict[str, Any]:
    """Every tensor of the model, and two that a GGUF has no place for."""
    numbers = np.random.default_rng(0)

    def weights(*shape: int) -> Any:
        return numbers.standard_normal(shape).astype(np.float32)

    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(VOCABULARY), SIZE),
        "embeddings.position_embeddings.weight": (POSITIONS, SIZE),
        "embeddings.token_type_embeddings.weight": (2, SIZE),
        "embeddings.LayerNorm.weight": (SIZE,),
        "embeddings.LayerNorm.bias": (SIZE,),
        "pooler.dense.weight": (SIZE, SIZE),
        "pooler.dense.bias": (SIZE,),
    }
    for part, wide, narrow in (
        ("attention.self.query", SIZE, SIZE),
        ("attention.self.key", SIZE, SIZE),
        ("attention.self.value", SIZE, SIZE),
        ("attention.output.dense", SIZE, SIZE),
        ("intermediate.dense", INNER, SIZE),
        ("output.dense", SIZE, INNER),
    ):
        shapes[f"encoder.layer.0.{part}.weight"] = (wide, narrow)
        shapes[f"encoder.layer.0.{part}.bias"] = (wide,)
    for part in ("attention.output.LayerNorm", "output.LayerNorm"):
        shapes[f"encoder.layer.0.{part}.weight"] = shapes[f"encoder.layer.0.{part}.bias"] = (SIZE,)
    made = {prefix + name: weights(*shape) for name, shape in shapes.items()}
    return {prefix + "embeddings.position_ids": np.arange(POSITIONS, dtype=np.int64)[None], **made}


def write_safetensors(path: Path, content: dict[str, Any], kinds: dict[str, str] | None = None) -> None:
    """`kinds`: the name of a tensor's type in the file, where it is not the array's own."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    names = {"float32": "F32", "float16": "F16", "int64": "I64", "uint16": "BF16"}
    body = b""
    for name, values in content.items():
        data = values.tobytes()
        kind = (kinds or {}).get(name, names.get(str(values.dtype), str(values.dtype)))
        table[name] = {
            "dtype": kind,
            "shape": list(values.shape),
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    head = json.dumps(table).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + body)


def bert_folder(
    folder: Path,
    *,
    config: dict[str, Any] | None = None,
    tokenizer: dict[str, Any] | None = None,
    pooling: dict[str, Any] | None = None,
    content: dict[str, Any] | None = None,
) -> Path:
    """Writes the folder; what is given takes the place of what is usual."""
    (folder / "1_Pooling").mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or CONFIG))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer or TOKENIZER))
    if pooling is not None:
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    write_safetensors(folder / "model.safetensors", tensors() if content is None else content)
    return folder
