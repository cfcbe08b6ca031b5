"""Fetching from the Hugging Face hub, into its own cache, with its own token and address (`HF_HOME`,
`HF_TOKEN`, `HF_ENDPOINT`, `HF_HUB_OFFLINE`; see its documentation).

Imported only when something has to be fetched: `huggingface_hub` takes a second to import.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from models.card import HubSource, ModelCard
from models.errors import ModelError, SourceUnavailable, UnknownModel
from models.gguf import shard_paths

OnProgress = Callable[[int, int], None]

# What a repository often holds beside the weights that vLLM loads: the same weights in other formats.
_OTHER_FORMATS: Final = (
    "*.gguf",
    "*.onnx",
    "*.h5",
    "*.msgpack",
    "*.tflite",
    "*.ot",
    "original/*",
    "onnx/*",
    "gguf/*",
)

_RESUMED_FROM: Final = 64 << 20
"""Bytes; smaller files are simply fetched again."""
_SHA256: Final = re.compile(r"[0-9a-f]{64}")

_log = logging.getLogger(__name__)


def fetch(card: ModelCard, source: HubSource, *, on_progress: OnProgress) -> Path:
    """The file, its first shard with all others fetched too, or the repository's folder.

    What is in the cache already is not fetched again, and serves as it is when the hub cannot be reached.

    Raises: UnknownModel (no such repository, revision or file), SourceUnavailable (unreachable, gated, disk
    full)."""
    import huggingface_hub

    revision = source.revision or card.revision
    arrived = False

    def note(done: int, total: int) -> None:
        nonlocal arrived
        arrived = arrived or done > 0
        on_progress(done, total)

    bar = _progress_class(note)
    try:
        if source.file is None:
            folder = huggingface_hub.snapshot_download(
                source.repo, revision=revision, tqdm_class=bar, ignore_patterns=list(_OTHER_FORMATS)
            )
            return Path(folder)
        parts = [path.as_posix() for path in shard_paths(Path(source.file))]
        for part in parts:
            _fetch_resumably(source.repo, part, revision, bar)
        paths = [
            Path(huggingface_hub.hf_hub_download(source.repo, part, revision=revision, tqdm_class=bar))
            for part in parts
        ]
        if arrived:
            for path in paths:
                _check_blob(card, path)
        return paths[0]
    except Exception as error:
        raise _translate(card, source, error) from error


def _fetch_resumably(repo: str, file: str, revision: str | None, bar: type[Any]) -> None:
    """Put a large file into the cache's `blobs`, where `hf_hub_download` then finds it.

    That function goes on after a broken connection, but since huggingface_hub 2 throws the part it has away when the
    process ends; a model of many gigabytes would start over with every restart. What cannot be done here is left
    to it: it meets the same trouble, knows the cache and names it.
    """
    from huggingface_hub import constants, file_download, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # re-exported without saying so

    if file_download.try_to_load_from_cache(repo, file, revision=revision) is not None:
        return
    url = hf_hub_url(repo, file, revision=revision)
    try:
        facts = get_hf_file_metadata(url)
    except Exception as error:
        _log.debug("asking the hub about %s failed: %s", url, error)
        return
    size = facts.size or 0
    if (
        not _SHA256.fullmatch(facts.etag or "")
        or not _RESUMED_FROM < size <= constants.MAX_HTTP_DOWNLOAD_SIZE
    ):
        return
    folder = Path(
        constants.HF_HUB_CACHE, file_download.repo_folder_name(repo_id=repo, repo_type="model"), "blobs"
    )
    folder.mkdir(parents=True, exist_ok=True)
    blob, partial = folder / str(facts.etag), folder / f"{facts.etag}.partial"
    with partial.open("ab") as out:
        # Another process may be fetching the same file; it is waited for.
        fcntl.flock(out, fcntl.LOCK_EX)
        if blob.exists():
            partial.unlink(missing_ok=True)
            return
        done = out.seek(0, os.SEEK_END)
        if done > size:
            done = out.truncate(0)
        free = shutil.disk_usage(folder).free
        if free < size - done:
            raise SourceUnavailable(f"{repo!r} needs {size - done} bytes of disk; {free} are free")
        if done < size:
            file_download.http_get(
                url, out, resume_size=done, headers=build_hf_headers(), expected_size=size, tqdm_class=bar
            )
        out.flush()
        partial.rename(blob)


def _check_blob(card: ModelCard, path: Path) -> None:
    """The cache names a large file by the SHA-256 the hub announced, and the client checks only its size. A
    damaged one is removed, so that the next fetch starts over instead of finding it."""
    blob = path.resolve()
    if not _SHA256.fullmatch(blob.name):
        return
    with blob.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != blob.name:
        blob.unlink(missing_ok=True)
        raise SourceUnavailable(f"The file of {card.id!r} arrived damaged and was removed; fetch it again")


def _translate(card: ModelCard, source: HubSource, error: Exception) -> Exception:
    """The order matters: `huggingface_hub` derives "not in the cache and offline" from "no such file", and
    "gated" from "no such repository"."""
    from huggingface_hub import errors

    _log.warning("fetching %s from the hub failed: %s", source.repo, error)
    if isinstance(error, ModelError):
        return error
    if isinstance(error, errors.GatedRepoError):
        return SourceUnavailable(
            f"The repository {source.repo!r} is gated and the service's hub token may not read it"
        )
    if isinstance(error, errors.LocalEntryNotFoundError):
        return SourceUnavailable(f"The hub cannot be reached and {source.repo!r} is not in the local cache")
    missing = (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.EntryNotFoundError)
    if isinstance(error, missing):
        return UnknownModel(card.id)
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code if error.response is not None else "no status"
        return SourceUnavailable(f"The hub answered {status} for {source.repo!r}")
    if isinstance(error, OSError) and error.strerror:
        return SourceUnavailable(f"{source.repo!r} cannot be fetched: {error.strerror.lower()}")
    return SourceUnavailable(f"{source.repo!r} cannot be fetched from the hub right now")


def _progress_class(on_progress: OnProgress) -> type[Any]:
    """A tqdm that draws nothing and reports the sums over all byte counters of one fetch.

    A subclass of tqdm rather than a look-alike: `huggingface_hub` reads its rates and sets its totals from
    several threads. `update_transfer` announces that bytes on the network need no counter of their own beside
    bytes on disk."""
    from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]  # stubs are a package of their own

    lock = threading.RLock()
    counters: list[Any] = []

    class Counter(tqdm):  # type: ignore[type-arg,misc,unused-ignore]  # tqdm ships no types
        monitor_interval = 0  # no watcher thread

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            kwargs.update(disable=False, file=io.StringIO(), mininterval=0, leave=False)
            super().__init__(*args, **kwargs)
            if self.unit == "B" and "total_fmt" in (self.bar_format or "total_fmt"):
                with lock:
                    counters.append(self)
                self.report()

        def report(self) -> None:
            with lock:
                done = sum(int(counter.n) for counter in counters)
                total = sum(int(counter.total or 0) for counter in counters)
                on_progress(done, max(done, total))

        def update(self, n: float | None = 1) -> bool | None:
            with lock:
                self.n += n or 0
            self.report()
            return None

        def update_transfer(self, n: float | None = 1) -> None:
            """Bytes on the network; not counted."""

        def set_transfer_postfix_str(self, *_args: Any, **_kwargs: Any) -> None:
            """Nothing is drawn."""

        def display(self, *_args: Any, **_kwargs: Any) -> bool:
            return True

    Counter.set_lock(lock)
    return Counter
