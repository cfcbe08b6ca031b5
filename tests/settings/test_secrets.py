"""Secrets are masked, never empty, and asked for where they are needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.settings.loading import load, refused

# Secrets


SECRETS = {
    "LLM_API_TOKENS": "hush-1,hush-2",
    "LLM_RUNNER_TOKEN": "hush-3",
    "LLM_VLLM_API_KEY": "hush-4",
    "LLM_REDIS_URL": "redis://user:hush-5@host/0",
}


def test_secrets_are_masked_wherever_settings_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load(monkeypatch, **SECRETS)

    assert loaded.api_token_bytes == (b"hush-1", b"hush-2")
    assert "hush" not in f"{loaded!r} {loaded} {loaded.model_dump()} {loaded.model_dump_json()}"


@pytest.mark.parametrize("variable", SECRETS)
def test_a_bad_secret_is_masked_in_the_refusal(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    message = refused(monkeypatch, **{variable: "hush hush"})

    assert message.startswith(f"{variable} is ****")
    assert "hush" not in message


def test_the_line_break_of_a_secret_read_from_a_file_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load(monkeypatch, LLM_API_TOKENS="one, two\n", LLM_RUNNER_TOKEN="three\n")

    assert loaded.api_token_bytes == (b"one", b"two")
    assert loaded.runner_token is not None
    assert loaded.runner_token.get_secret_value() == "three"


@pytest.mark.parametrize("value", [",", " ", " , "])
def test_tokens_that_are_set_to_nothing_do_not_open_the_service(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    assert refused(monkeypatch, LLM_API_TOKENS=value).startswith("LLM_API_TOKENS is ****")


# The default backend and the enabled ones


def test_a_runner_on_the_network_needs_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    message = refused(monkeypatch, LLM_LLAMACPP_URL="http://far.example:9000")

    assert message.startswith("LLM_RUNNER_TOKEN is not set")
    assert load(monkeypatch, LLM_RUNNER_TOKEN="t").llamacpp_url == "http://far.example:9000"


@pytest.mark.parametrize("value", ["http://h", "redis://", "redis://h:port", "h:6379", "redis://h x"])
def test_what_is_no_address_of_redis_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    said = refused(monkeypatch, LLM_REDIS_URL=value)

    assert said == "LLM_REDIS_URL is ****; allowed: redis://… or rediss://…"


def test_a_principals_file_is_a_reason_to_ask_for_tokens(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "principals.yaml"
    file.write_text("")

    assert load(monkeypatch, LLM_PRINCIPALS_FILE=str(file)).needs_token
    assert "LLM_PRINCIPALS_FILE" in refused(monkeypatch, LLM_PRINCIPALS_FILE=str(tmp_path / "none"))
