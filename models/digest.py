"""The SHA-256 of a model's files, remembered on disk by what the files looked like: a large one takes minutes to read.

Blocking; whoever needs it on an event loop has `backends.digest`.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from models.gguf import shard_paths

_WEIGHTS: Final = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_CHUNK_BYTES: Final = 4 << 20
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")

_log = logging.getLogger(__name__)


def weight_files(model: Path) -> list[Path]:
    """The files that hold the weights, in order: the shards of a GGUF, or those of a folder that has them in the format
    with most bytes (a repository often holds the same weights twice)."""
    if not model.is_dir():
        return [path for path in shard_paths(model) if path.is_file()]
    files = sorted(path for path in model.iterdir() if path.suffix in _WEIGHTS and path.is_file())
    sizes = {suffix: sum(p.stat().st_size for p in files if p.suffix == suffix) for suffix in _WEIGHTS}
    most = ".safetensors" if sizes[".safetensors"] else max(sizes, key=lambda suffix: sizes[suffix])
    return [path for path in files if path.suffix == most]


def hub_commit(model: Path) -> str | None:
    """The commit that a file or folder of the hub's cache is of; None for what lies elsewhere."""
    parts = model.parts
    for place, name in itertools.pairwise(parts):
        if place == "snapshots" and _COMMIT.fullmatch(name):
            return name
    return None


def digest_of(
    files: Sequence[Path],
    *,
    cache: Path | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> str | None:
    """The SHA-256 of the files one after the other: of a single one what `sha256sum` says. About 1.5 GB/s with the
    CPU's SHA instructions, a quarter of that without. `cache` None: `llm-inference/digests` below HF_HOME. A cache that
    cannot be read or written costs time only.

    None where there is no file, one changed meanwhile, or `is_stopped` said so. Raises: OSError.
    """
    if not files:
        return None
    identity = _identity(files)
    kept = (cache or _default_cache()) / hashlib.sha256(identity.encode("utf-8", "replace")).hexdigest()
    with contextlib.suppress(OSError, UnicodeDecodeError):
        found = kept.read_text("ascii")
        if _DIGEST.fullmatch(found):
            return found
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    for path in files:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                if is_stopped():
                    return None
                digest.update(buffer[:count])
    if _identity(files) != identity:
        return None
    found = digest.hexdigest()
    _keep(kept, found)
    return found


def _identity(files: Sequence[Path]) -> str:
    lines = []
    for path in files:
        status = path.stat()
        real = os.path.realpath(path)
        lines.append(f"{real}\0{status.st_ino}\0{status.st_size}\0{status.st_mtime_ns}")
    return "\n".join(lines)


def _keep(kept: Path, found: str) -> None:
    """Whole or not at all: another process may read it at the same moment."""
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=kept.parent, suffix=".part")
        with os.fdopen(descriptor, "w") as file:
            file.write(found)
        Path(name).replace(kept)
    except OSError as error:
        _log.debug("the digest of a model cannot be kept: %s", error)


def _default_cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HOME) / "llm-inference" / "digests"
