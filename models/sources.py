"""From a card to a path on this machine: find the file, or fetch it, and check it.

Blocking throughout; a runner calls `materialise` in a thread. Paths go to the log, never into an error's
message."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from models.card import FileSource, HubSource, ModelCard, PackageSource, RemoteSource
from models.convert import convert, converted_path, is_convertible
from models.errors import ModelError, SourceUnavailable, UnknownModel, UnusableModel
from models.gguf import shard_paths

OnProgress = Callable[[int, int], None]
"""(bytes done, bytes in all). The total is 0 while it is unknown; both start again when a fetch turns into a
check."""

_CHUNK_BYTES: Final = 4 << 20
_TAKES_ONE_FILE: Final = "llamacpp"
"""The kind that reads a GGUF; a folder of weights is converted for it."""

_log = logging.getLogger(__name__)
_checked: set[tuple[str, int, int, int, str]] = set()
_checked_lock = threading.Lock()


def materialise(card: ModelCard, kind: str, *, on_progress: OnProgress) -> Path:
    """The model's file (its first shard, or a folder) for the backend `kind`, fetched if it is not here yet.

    For llama.cpp a folder of weights is made into a GGUF once (`models.convert`). A fetch that was cut off goes on
    where it stopped. With a `sha256` in the card the file is hashed once per
    process.

    Raises: UnknownModel (the card points to a file or repository that does not exist), UnusableModel (wrong
    checksum), SourceUnavailable (no source for this backend, package missing or of another version, hub
    unreachable or refusing, disk full).
    """
    path = _locate(card, kind, on_progress)
    if kind == _TAKES_ONE_FILE and is_convertible(path):
        return convert(path, on_progress=on_progress)
    if card.sha256 and path.is_file():
        verify_checksum(path, card.sha256, on_progress=on_progress)
    elif path.is_file():
        size = _size(path)
        on_progress(size, size)
    return path


def local_path(card: ModelCard, kind: str) -> Path | None:
    """Where the model's file lies if nothing has to be fetched; None for hub and remote sources and for what
    is missing. Cheap; touches no network."""
    source = card.sources.get(kind)  # type: ignore[call-overload]  # any string may be asked for
    try:
        if isinstance(source, FileSource):
            return _file_made_of(_file(card, source), kind)
        if isinstance(source, PackageSource):
            return _file_made_of(_package_file(source), kind)
    except ModelError:
        return None
    return None


def _file_made_of(path: Path, kind: str) -> Path | None:
    """`path` itself, or the GGUF that was made of the folder, None if that is still to be done."""
    if kind != _TAKES_ONE_FILE or not is_convertible(path):
        return path
    made = converted_path(path)
    return made if made.is_file() else None


def verify_checksum(path: Path, sha256: str, *, on_progress: OnProgress, again: bool = False) -> None:
    """Hash the file and compare. A file that passed in this process and is unchanged is not read a second
    time, unless `again`. About 1.5 GB/s with the CPU's SHA instructions, a quarter of that without.

    Raises: UnusableModel if they differ, SourceUnavailable if the file cannot be read.
    """
    try:
        status = path.stat()
        identity = (str(path), status.st_ino, status.st_size, status.st_mtime_ns, sha256)
        with _checked_lock:
            if identity in _checked and not again:
                on_progress(status.st_size, status.st_size)
                return
        found = _sha256(path, status.st_size, on_progress)
    except OSError as error:
        raise SourceUnavailable(f"The model's file cannot be read: {_reason(error)}") from error
    if found != sha256:
        raise UnusableModel(
            f"The model's file has the SHA-256 {found[:12]}…, its card says {sha256[:12]}…; fetch it again"
        )
    with _checked_lock:
        _checked.add(identity)


def verified_sha256(path: Path) -> str | None:
    """What `verify_checksum` found in this process, if the file is still the same."""
    try:
        status = path.stat()
    except OSError:
        return None
    seen = (str(path), status.st_ino, status.st_size, status.st_mtime_ns)
    with _checked_lock:
        return next((identity[4] for identity in _checked if identity[:4] == seen), None)


def _sha256(path: Path, size: int, on_progress: OnProgress) -> str:
    digest = hashlib.sha256()
    done = 0
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            done += count
            on_progress(done, max(size, done))
    return digest.hexdigest()


def _locate(card: ModelCard, kind: str, on_progress: OnProgress) -> Path:
    source = card.sources.get(kind)  # type: ignore[call-overload]  # any string may be asked for
    match source:
        case FileSource():
            return _file(card, source)
        case PackageSource():
            return _package_file(source)
        case HubSource():
            from models.hub import fetch

            return fetch(card, source, on_progress=on_progress)
        case RemoteSource():
            raise SourceUnavailable(f"The model {card.id!r} is served elsewhere; there is no file to load")
        case _:
            raise SourceUnavailable(f"The model {card.id!r} has no source for the backend {kind[:64]!r}")


def _file(card: ModelCard, source: FileSource) -> Path:
    path = Path(source.path)
    if not path.is_absolute():
        # The catalogue makes paths absolute; a card made by hand and used without one has no folder to look
        # in.
        raise SourceUnavailable(f"The model {card.id!r} has a relative path and no model folder to look in")
    if not path.exists():
        _log.warning("model %s: its file %s does not exist", card.id, path)
        raise UnknownModel(card.id)
    return path


def _package_file(source: PackageSource) -> Path:
    try:
        spec = importlib.util.find_spec(source.package)
    except (ImportError, ValueError) as error:
        raise SourceUnavailable(f"The package {source.package!r} cannot be located") from error
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not places:
        raise SourceUnavailable(f"The package {source.package!r}, which holds the model, is not installed")
    if source.version is not None:
        installed = _installed_version(source.package)
        if installed != source.version:
            raise SourceUnavailable(
                f"The package {source.package!r} has version {installed or 'unknown'}; "
                f"the model's card asks for {source.version}"
            )
    for place in places:
        path = Path(place, source.resource)
        if path.exists():
            return path
    raise SourceUnavailable(f"The package {source.package!r} holds no file {source.resource!r}")


def _installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        # The distribution has another name than the package; this table costs about 100 ms, hence only now.
        distributions = importlib.metadata.packages_distributions().get(package, [])
        return importlib.metadata.version(distributions[0]) if distributions else None


def _size(path: Path) -> int:
    return sum(os.path.getsize(part) for part in shard_paths(path) if part.is_file())


def _reason(error: OSError) -> str:
    return (error.strerror or "input/output error").lower()
