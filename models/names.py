"""Which strings can be the name of a model, decided on the text alone.

A client's name is only ever looked up in tables; nothing joins it to a path or sends it anywhere before it
has passed here. So `..`, a URL or a NUL byte cannot reach the file system or the network, whatever is built
on top."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final

MAX_NAME_CHARS: Final = 256

_MAX_COMPARED: Final = 500
_ROUTES: Final = frozenset({"load", "unload"})
"""Addresses below `/v1/models/` that do something: a model called so could be listed, and never looked at."""
_HUB_PART: Final = r"[A-Za-z0-9](?:[A-Za-z0-9_]|[.-](?![.-])){0,95}"
_HUB_NAME: Final = re.compile(
    rf"(?P<repo>{_HUB_PART}/{_HUB_PART})(?P<file>(?:/[A-Za-z0-9_][\w.+-]*)+\.gguf)?", re.ASCII
)


def normalise(name: str) -> str:
    """`name` in Unicode's composed form: macOS hands file names out decomposed, clients type them
    composed."""
    return unicodedata.normalize("NFC", name)


def is_safe(name: str) -> bool:
    """Whether `name` may be looked up at all.

    False for: empty or over 256 characters, control and unassigned characters, lone surrogates (file names
    that are not UTF-8), line breaks, blanks at either end, backslashes, `.`, `..` or empty path segments, `~`
    in front, URLs, `load` and `unload`. A leading slash passes: an absolute path inside a model folder is a name."""
    if not name or len(name) > MAX_NAME_CHARS or name != name.strip() or name in _ROUTES:
        return False
    if "\\" in name or "://" in name or name.startswith("~"):
        return False
    if any(unicodedata.category(char) in _REFUSED for char in name):
        return False
    segments = name.removeprefix("/").split("/")
    return not any(segment in ("", ".", "..") for segment in segments)


# Control, surrogate, unassigned, line and paragraph separators. Format characters (Cf) too: they are
# invisible, so two names that look alike would be two models.
_REFUSED: Final = frozenset(("Cc", "Cs", "Cn", "Cf", "Zl", "Zp"))


def split_hub_name(name: str) -> tuple[str, str | None] | None:
    """(repository, file) of a hub id: `owner/repo`, or `owner/repo/path/to/file.gguf` for one GGUF of it;
    else None."""
    if not is_safe(name):
        return None
    match = _HUB_NAME.fullmatch(name)
    if match is None or match["repo"].endswith((".git", ".", "-")):
        return None
    file = match["file"]
    return match["repo"], file.removeprefix("/") if file else None


def is_allowed(name: str, patterns: Sequence[str]) -> bool:
    """Whether a hub id matches one of the shell patterns (`*`, `?`, `[…]`; `*` also matches `/`). None match
    none."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def near(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """At most three of `known` that look like `name`, best first. Compares the first 500 only, so that a long
    list of files cannot make a wrong name expensive."""
    if not is_safe(name):
        return ()
    table = {other.casefold(): other for _, other in zip(range(_MAX_COMPARED), known, strict=False)}
    return tuple(table[key] for key in difflib.get_close_matches(name.casefold(), table, n=3, cutoff=0.6))
