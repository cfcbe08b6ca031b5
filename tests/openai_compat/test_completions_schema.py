"""The fields that text completions have for themselves."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_compat.errors import ValidationFailed
from openai_compat.schemas.completions import COMPLETIONS, CompletionRequest, read_completion
from openai_compat.schemas.fields import TOKEN_ID, Integer, ListOf
from openai_compat.schemas.problems import INVALID, Problems


def read(**fields: Any) -> CompletionRequest:
    return read_completion({"prompt": "Once", **fields})


def param(**fields: Any) -> str | None:
    with pytest.raises(ValidationFailed) as caught:
        read(**fields)
    return caught.value.param


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([1.0, 2], [[1, 2]]),
        ([[1, 2], [3.0]], [[1, 2], [3]]),
    ],
)
def test_a_prompt_is_text_or_tokens_once_or_several_times(prompt: Any, prompts: list[Any]) -> None:
    assert read(prompt=prompt).prompts == prompts


@pytest.mark.parametrize(
    ("prompt", "where"),
    [
        (None, "prompt"),
        ("", "prompt"),
        ([], "prompt"),
        (5, "prompt"),
        (True, "prompt"),
        ({}, "prompt"),
        (["a", 1], "prompt"),
        ([1, True], "prompt"),
        ([1, 2.5], "prompt.1"),
        ([["a"]], "prompt.0.0"),
        ([[1], []], "prompt.1"),
        (["a", ""], "prompt.1"),
        ([1, -1], "prompt.1"),
        ([1, 2**31], "prompt.1"),
        (["a"] * 1001, "prompt"),
    ],
)
def test_what_is_no_prompt_is_named(prompt: Any, where: str) -> None:
    assert param(prompt=prompt) == where


def test_a_prompt_is_required() -> None:
    with pytest.raises(ValidationFailed) as caught:
        read_completion({"model": "tiny"})

    assert caught.value.param == "prompt"


@pytest.mark.parametrize("field", [name for name, field in COMPLETIONS.items() if not field.required])
def test_null_equals_absent(field: str) -> None:
    assert read(**{field: None}) == read()


def test_a_model_is_optional() -> None:
    assert read().model is None


def test_the_number_of_choices_is_bounded() -> None:
    assert param(prompt=["a"] * 65, n=16) == "n"
    assert read(prompt=["a"] * 64, n=16).n == 16


@pytest.mark.parametrize(
    ("fields", "needed"),
    [
        ({"suffix": "x"}, {"suffix": "suffix"}),
        ({"suffix": ""}, {}),
        ({"best_of": 1}, {}),
        ({"best_of": 3, "n": 3}, {}),
        ({"best_of": 3, "n": 2}, {"best_of": "best_of"}),
        ({"echo": True}, {}),
        ({"echo": False, "logprobs": 1}, {}),
        ({"echo": True, "logprobs": 1}, {"echo": "echo_logprobs"}),
        ({"structured_outputs": {"regex": "a"}}, {"structured_outputs": "structured_outputs"}),
        ({"response_format": {"type": "json_object"}}, {"response_format": "structured_outputs"}),
        ({"response_format": {"type": "text"}}, {}),
    ],
)
def test_a_field_says_what_its_backend_must_have(fields: dict[str, Any], needed: dict[str, str]) -> None:
    assert read(**fields).needed == needed


def test_best_of_does_not_stream() -> None:
    assert param(best_of=3, n=2, stream=True) == "best_of"
    assert read(best_of=2, n=2, stream=True).best_of is None


def test_best_of_is_at_least_n() -> None:
    assert param(best_of=1, n=2) == "best_of"


@pytest.mark.parametrize(
    ("value", "kind"), [(True, "int_type"), (-1, "greater_than_equal"), (21, "less_than_equal")]
)
def test_logprobs_is_a_number_of_alternatives(value: Any, kind: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        read(logprobs=value)

    assert caught.value.entries[0]["type"] == kind


def test_logprobs_of_zero_is_not_off() -> None:
    assert read(logprobs=0).sampling == {"logprobs": 0}


ODD_NUMBERS = st.one_of(
    st.integers(-2, 2**31 + 2),
    st.floats(allow_nan=True),
    st.integers(0, 9).map(float),
    st.booleans(),
    st.text(max_size=2),
)


@given(st.one_of(st.lists(st.integers(0, 2**31 - 1)), st.lists(ODD_NUMBERS, max_size=6)))
def test_a_list_of_token_ids_is_judged_as_its_items_are(values: list[Any]) -> None:
    problems = Problems()
    items = [TOKEN_ID.check(value, (i,), problems) for i, value in enumerate(values)]
    told = Problems()
    whole = ListOf(TOKEN_ID, max_items=100).check(values, (), told)

    assert (whole is INVALID) == bool(problems.entries)
    assert told.entries == problems.entries
    assert whole is INVALID or (whole == items and {*map(type, whole)} <= {int})


@pytest.mark.parametrize("number", [1, 1.0])
def test_long_prompts_of_token_ids_are_not_checked_one_by_one(
    number: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Integer, "check", lambda *_: pytest.fail("one id was checked"))

    assert read(prompt=[[number] * 1000] * 2).prompts == [[1] * 1000] * 2


def test_a_list_of_wrong_items_is_not_read_to_its_end() -> None:
    problems = Problems()
    ListOf(TOKEN_ID, max_items=1000).check(["?"] * 1000, (), problems)

    assert problems.count < 20
