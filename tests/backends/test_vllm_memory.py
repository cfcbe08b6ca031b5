"""What a machine and a folder of weights say of themselves."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from backends.vllm.memory import Gpu, visible_gpus
from backends.vllm.weights import read_facts
from models.errors import UnusableModel
from tests.backends.fake_vllm import make_weights

GIB = 1 << 30


class FakeNvml:
    """The driver's library with two GPUs, of 80 and 24 GiB."""

    sizes = (80 * GIB, 24 * GIB)
    uuids = (b"GPU-big", b"GPU-small")

    def __init__(self, *, init: int = 0) -> None:
        self._init = init
        self.closed = False

    def nvmlInit_v2(self) -> int:
        return self._init

    def nvmlShutdown(self) -> int:
        self.closed = True
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.sizes)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        handle._obj.value = index.value + 1
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: Any, handle: Any) -> int:
        if uuid.value not in self.uuids:
            return 6
        handle._obj.value = self.uuids.index(uuid.value) + 1
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, info: Any) -> int:
        info._obj.total = self.sizes[handle.value - 1]
        return 0


@pytest.mark.parametrize(
    ("wanted", "sizes"),
    [
        (None, (80, 24)),
        ("1", (24,)),
        ("1, 0", (24, 80)),
        ("GPU-small", (24,)),
        ("", ()),
        ("-1", ()),
        ("0,9,1", (80,)),
    ],
)
def test_the_gpus_are_those_that_cuda_would_show(wanted: str | None, sizes: tuple[int, ...]):
    nvml = FakeNvml()

    assert visible_gpus(wanted, open_library=lambda _: nvml) == tuple(Gpu(size * GIB) for size in sizes)
    assert nvml.closed


def test_a_machine_without_a_driver_has_none():
    def missing(name: str) -> ctypes.CDLL:
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    assert visible_gpus(None, open_library=missing) == ()


def test_a_driver_that_refuses_is_no_gpu():
    assert visible_gpus("GPU-unknown", open_library=lambda _: FakeNvml()) == ()
    assert visible_gpus(None, open_library=lambda _: FakeNvml(init=9)) == ()


def test_the_weights_say_vocabulary_context_and_sizes(tmp_path: Path):
    facts = read_facts(make_weights(tmp_path / "m"))

    assert (facts.num_vocab_tokens, facts.context_length, facts.weights_bytes) == (100, 2048, 1000)
    assert facts.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2  # keys and values, layers, heads, elements, bytes


def test_the_text_part_of_a_model_of_several_kinds_counts(tmp_path: Path):
    facts = read_facts(make_weights(tmp_path / "m", vocab_size=0, text_config={"vocab_size": 77}))

    assert (facts.num_vocab_tokens, facts.context_length, facts.kv_bytes_per_token) == (77, None, 0)


def test_weights_in_two_formats_count_once(tmp_path: Path):
    folder = make_weights(tmp_path / "m")
    (folder / "pytorch_model.bin").write_bytes(bytes(5000))

    assert read_facts(folder).weights_bytes == 1000


def test_a_single_file_says_its_size(tmp_path: Path):
    file = tmp_path / "m.gguf"
    file.write_bytes(bytes(10))

    assert (read_facts(file).weights_bytes, read_facts(file).num_vocab_tokens) == (10, None)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (None, "holds no config.json"),
        ("[1]", "holds no object"),
        ("{", "cannot be read"),
        ("{}", "no weights"),
    ],
)
def test_a_folder_that_is_no_model_is_refused(tmp_path: Path, config: str | None, words: str):
    if config is not None:
        (tmp_path / "config.json").write_text(config)

    with pytest.raises(UnusableModel, match=words) as refused:
        read_facts(tmp_path)
    assert str(tmp_path) not in refused.value.message


@pytest.mark.parametrize("value", [True, -1, "many", 1.5, None])
def test_a_number_that_is_none_counts_as_not_said(tmp_path: Path, value: object):
    assert read_facts(make_weights(tmp_path / "m", max_position_embeddings=value)).context_length is None
