"""How much memory the GPUs have, asked of the driver (NVML), without importing an engine."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

log = logging.getLogger("llm.vllm")


@dataclass(frozen=True)
class Gpu:
    """One GPU that CUDA would show to a process started now."""

    total_bytes: int


def visible_gpus(wanted: str | None, *, open_library: Callable[[str], Any] = ctypes.CDLL) -> tuple[Gpu, ...]:
    """The NVIDIA GPUs that `wanted`, the text of `CUDA_VISIBLE_DEVICES`, leaves, in its order; all for None; none where
    there is no driver."""
    try:
        nvml = _Nvml(open_library)
    except OSError:
        return ()
    try:
        return tuple(Gpu(size) for size in nvml.sizes(wanted) if size > 0)
    except OSError as error:
        log.warning("the GPUs cannot be asked for their memory: %s", error)
        return ()
    finally:
        nvml.close()


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Nvml:
    """The driver's management library. Raises: OSError where it is missing or refuses."""

    def __init__(self, open_library: Callable[[str], Any]) -> None:
        self._library = open_library("libnvidia-ml.so.1")
        self._call("nvmlInit_v2")

    def close(self) -> None:
        self._library.nvmlShutdown()

    def sizes(self, wanted: str | None) -> Sequence[int]:
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        if wanted is None:
            return [self._size(self._by_index(index)) for index in range(count.value)]
        sizes = []
        for name in (part.strip() for part in wanted.split(",")):
            if name.isdecimal() and int(name) < count.value:
                sizes.append(self._size(self._by_index(int(name))))
            elif name.startswith(("GPU-", "MIG-")):
                sizes.append(self._size(self._by_uuid(name)))
            else:
                break  # CUDA sees none from the first bad entry on
        return sizes

    def _by_index(self, index: int) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        return handle

    def _by_uuid(self, uuid: str) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByUUID", ctypes.c_char_p(uuid.encode()), ctypes.byref(handle))
        return handle

    def _size(self, handle: ctypes.c_void_p) -> int:
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        return int(memory.total)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            raise OSError(code, f"{name} answered {code}")
