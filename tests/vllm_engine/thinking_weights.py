"""A model that thinks before it answers, made of one that does not.

Two of the tokenizer's tokens that no text holds become `<think>` and `</think>`. The first gets the embedding of a line
break, a little shorter, and stands in the template where a line break stood: the model begins as it always did. The
second gets that of the full stop, a little longer: where it would end its first sentence it ends its thought. With
`enable_thinking` false the template writes an empty thought.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import numpy as np

OPEN, CLOSE = "<think>", "</think>"
_RENAMED: Final = {"<repo_name>": OPEN, "<reponame>": CLOSE}
_LENT: Final = {OPEN: ("Ċ", 0.95), CLOSE: (".", 1.1)}
"""Whose embedding each gets, and by how much longer; as of equals the longer one is chosen."""
_EMBEDDINGS: Final = "model.embed_tokens.weight"
"""Of the output, too: they are tied."""
TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + (message['content'] or '') + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant<think>' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '\n</think>\n\n' }}{% endif %}{% endif %}"
)


def make(text_model: Path, folder: Path) -> None:
    """`text_model`: a folder with tied embeddings in bfloat16. Its small files are shared, not copied."""
    folder.mkdir()
    for file in text_model.iterdir():
        if file.name not in ("tokenizer.json", "chat_template.jinja", "model.safetensors"):
            (folder / file.name).symlink_to(file)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    tokenizer = json.loads((text_model / "tokenizer.json").read_text())
    tokens = tokenizer["model"]["vocab"]
    for token in tokenizer["added_tokens"]:
        if (name := _RENAMED.get(token["content"])) is not None:
            tokens[name] = tokens.pop(token["content"], token["id"])
            # As in the models that think: their marks are part of what the server reads.
            token |= {"content": name, "special": False}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    shutil.copyfile(text_model / "model.safetensors", folder / "model.safetensors")
    rows = _embeddings(folder / "model.safetensors")
    for name, (lender, longer) in _LENT.items():
        row = (rows[tokens[lender]].astype(np.uint32) << 16).view(np.float32) * np.float32(longer)
        rows[tokens[name]] = (row.view(np.uint32) + 0x8000) >> 16
    rows.flush()


def _embeddings(file: Path) -> np.memmap[Any, np.dtype[np.uint16]]:
    """One row per token, to write in; bfloat16 is the upper half of a float."""
    with file.open("rb") as weights:
        size = int.from_bytes(weights.read(8), "little")
        entry = json.loads(weights.read(size))[_EMBEDDINGS]
    assert entry["dtype"] == "BF16"
    offset = 8 + size + entry["data_offsets"][0]
    return np.memmap(file, dtype=np.uint16, mode="r+", offset=offset, shape=tuple(entry["shape"]))
