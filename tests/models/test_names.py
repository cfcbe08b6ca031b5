"""Which strings may be looked up as a model's name."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models import names


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "smollm2-135m-instruct",
        "folder/Model.Q4_K_M",
        "meta-llama/Llama-2-7b",
        "模型/ü",
        "a..b",
        "x:8b",
        "/abs/x",
    ],
)
def test_ordinary_names_pass(name: str) -> None:
    assert names.is_safe(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", " a", "a ", "a\n", "a\0b", "a\tb", "x" * 257, "\ud800", "a\u202eb", "a\u2028b"),
        *("..", "../a", "a/../b", "a/..", "./a", "a/./b", "a//b", "a/", "//a", "/", "~/a", "~root/a"),
        *("a\\b", "..\\a", "http://host/a", "file:///etc/passwd", "s3://bucket/a"),
        *("load", "unload"),
    ],
)
def test_names_that_could_lead_elsewhere_are_refused(name: str) -> None:
    assert not names.is_safe(name)


@given(st.text(max_size=300))
def test_a_safe_name_has_no_part_that_climbs_and_no_control_character(name: str) -> None:
    if names.is_safe(name):
        parts = name.removeprefix("/").split("/")
        assert not {"", ".", ".."} & set(parts)
        assert not any(unicodedata.category(char) in ("Cc", "Cs") for char in name)


@given(st.text(max_size=300))
def test_a_hub_name_is_plain_ascii_with_one_owner_and_one_repository(name: str) -> None:
    split = names.split_hub_name(name)
    if split is not None:
        assert name.isascii()
        assert split[0].count("/") == 1
        assert ".." not in name


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("meta-llama/Llama-2-7b-chat-hf", ("meta-llama/Llama-2-7b-chat-hf", None)),
        ("o/r/m.Q4_K_M.gguf", ("o/r", "m.Q4_K_M.gguf")),
        ("o/r/sub/m.gguf", ("o/r", "sub/m.gguf")),
        *(
            (bad, None)
            for bad in ("repo", "o/r/x", "o/r/x.bin", "/o/r", "o/..", "o/r.git", "-o/r", "o/r/../x.gguf")
        ),
        *((bad, None) for bad in ("o/r?x=1", "o/r#x", "o/r@main", "o/r/%2e%2e/x.gguf", "ö/r")),
    ],
)
def test_hub_names_are_split_into_repository_and_file(
    name: str, split: tuple[str, str | None] | None
) -> None:
    assert names.split_hub_name(name) == split


def test_no_patterns_allow_nothing() -> None:
    assert not names.is_allowed("o/r", ())


def test_patterns_are_matched_with_their_case() -> None:
    assert names.is_allowed("meta-llama/Llama-2", ("google/*", "meta-llama/*"))
    assert not names.is_allowed("Meta-Llama/Llama-2", ("meta-llama/*",))


def test_near_names_are_found_without_regard_to_case() -> None:
    assert names.near("SmolLM2-135M-instuct", ["other", "smollm2-135m-instruct"]) == (
        "smollm2-135m-instruct",
    )


def test_nothing_is_near_an_unsafe_name() -> None:
    assert names.near("../smollm2", ["smollm2"]) == ()


def test_a_long_list_is_compared_only_at_its_beginning() -> None:
    assert names.near("needle", [*(f"x{i}" for i in range(500)), "needles"]) == ()


def test_decomposed_file_names_meet_composed_requests() -> None:
    assert names.normalise("u\u0308") == "ü"
