"""Which backends are served, and which of them is the default."""

from __future__ import annotations

from typing import Any

import pytest

from settings import Args, SettingsError, load_settings
from tests.settings.loading import load


def test_the_default_backend_has_no_default_and_is_asked_for_in_one_sentence() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings().require_default_backend()

    assert str(caught.value) == (
        "LLM_DEFAULT_BACKEND is not set and has no default; set it to one of llamacpp, vllm, litellm, fake"
    )


def test_a_given_default_backend_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(monkeypatch, LLM_DEFAULT_BACKEND="fake").require_default_backend() == "fake"


@pytest.mark.parametrize(
    ("variables", "data", "kinds"),
    [
        ({}, {}, ()),
        ({"LLM_DEFAULT_BACKEND": "vllm"}, {}, ("vllm",)),
        ({"LLM_DEFAULT_BACKEND": "vllm"}, {"llamacpp": {"enabled": True}}, ("vllm", "llamacpp")),
        ({"LLM_DEFAULT_BACKEND": "fake", "LLM_LLAMACPP_URL": "file:///x"}, {}, ("fake", "llamacpp")),
        ({"LLM_DEFAULT_BACKEND": "fake", "LLM_VLLM_BASE_URL": "http://h/v1"}, {}, ("fake", "vllm")),
        (
            {"LLM_DEFAULT_BACKEND": "fake", "LLM_VLLM_BASE_URL": "http://h/v1"},
            {"vllm": {"enabled": False}},
            ("fake",),
        ),
        (
            {"LLM_DEFAULT_BACKEND": "fake", "LLM_ENABLED_BACKENDS": "vllm,fake"},
            {"llamacpp": {"enabled": True}},
            ("fake", "vllm"),
        ),
    ],
)
def test_the_enabled_backends_follow_from_variables_and_arguments(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], data: dict[str, Any], kinds: tuple[str, ...]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    args = Args(**data)

    assert load_settings(args).backends_to_serve(args) == kinds


@pytest.mark.parametrize(
    ("variables", "data"),
    [({"LLM_ENABLED_BACKENDS": "fake"}, {}), ({}, {"llamacpp": {"enabled": False}})],
)
def test_a_default_backend_that_is_switched_off_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], data: dict[str, Any]
) -> None:
    for name, value in {"LLM_DEFAULT_BACKEND": "llamacpp", **variables}.items():
        monkeypatch.setenv(name, value)
    args = Args(**data)

    with pytest.raises(SettingsError, match="LLM_DEFAULT_BACKEND is 'llamacpp', but"):
        load_settings(args)
