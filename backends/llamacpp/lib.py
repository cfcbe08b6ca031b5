"""The one place that imports llama_cpp, and the few calls of it that need care.

Only the low-level bindings are used. The library is initialised once per process and its log is ours: warnings and
errors go to `logging`, and the last error lines are kept, because the C functions only answer NULL.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import logging
import threading
from pathlib import Path
from typing import Any

log = logging.getLogger("llm.llamacpp")

_GGML_LOG_LEVEL_WARN = 3
_GGML_LOG_LEVEL_ERROR = 4
_GGML_LOG_LEVEL_CONT = 5


class EngineLog:
    """Receives llama.cpp's log lines from any thread. `errors` holds the newest error lines, oldest first."""

    def __init__(self) -> None:
        self._lines: collections.deque[str] = collections.deque(maxlen=20)
        self._lock = threading.Lock()
        self._last_level = 0
        self.callback: Any = None
        """The C function made of `write`; it must outlive every call into the library."""

    def write(self, level: int, text: bytes | None, _user_data: Any) -> None:
        line = (text or b"").decode("utf-8", "replace").rstrip()
        level = self._last_level if level == _GGML_LOG_LEVEL_CONT else level
        self._last_level = level
        if not line or level < _GGML_LOG_LEVEL_WARN:
            return
        if level == _GGML_LOG_LEVEL_ERROR:
            with self._lock:
                self._lines.append(line)
        log.log(logging.ERROR if level == _GGML_LOG_LEVEL_ERROR else logging.WARNING, "%s", line)

    def take_errors(self) -> list[str]:
        """The error lines since the last call."""
        with self._lock:
            lines = list(self._lines)
            self._lines.clear()
        return lines


engine_log = EngineLog()


_first_call = threading.Lock()


def llama() -> Any:
    """The low-level module, imported and initialised on the first call (0.7 s). Thread-safe."""
    with _first_call:
        return _initialised()


@functools.cache
def _initialised() -> Any:
    """Only once, which `cache` alone does not see to: of two models that load at once the second would free the log
    function that the library is calling for the first."""
    from llama_cpp import llama_cpp as library

    engine_log.callback = library.llama_log_callback(engine_log.write)
    library.llama_log_set(engine_log.callback, ctypes.c_void_p(0))
    _load_cpu_library(library, Path(library.__file__).parent / "lib")
    library.llama_backend_init()
    return library


def llama_tokenize_address() -> int:
    """Of the C function, for libraries that call it themselves."""
    address = ctypes.cast(llama()._lib.llama_tokenize, ctypes.c_void_p).value
    assert address is not None
    return address


def _load_cpu_library(library: Any, folder: Path) -> None:
    """A build for any x86-64 CPU has one library per generation beside libllama; llama.cpp takes the best one that this
    CPU runs, but only when asked to, and it would look in the folder of the Python that runs us."""
    if any(folder.glob("libggml-cpu-*")):
        library._lib.ggml_backend_load_all_from_path(bytes(folder))
