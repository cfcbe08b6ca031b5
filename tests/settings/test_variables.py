"""`LLM_…` variables: what they mean, and which values and names stop the start."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from backends.runner.app import MAX_BODY_BYTES
from settings import Settings, load_settings
from tests.settings.loading import load, refused

# Variables


def test_the_defaults_are_those_of_the_api_documentation() -> None:
    loaded = load_settings()

    assert (loaded.rate_limit_rps, loaded.rate_limit_burst, loaded.max_concurrent_completions) == (10, 20, 10)
    assert (loaded.request_timeout_s, loaded.load_wait_s, loaded.max_body_bytes) == (
        300,
        60,
        16 * 1024 * 1024,
    )
    assert (loaded.queue_size, loaded.queue_timeout_s, loaded.vllm_disable_thinking) == (0, 0, True)
    assert (loaded.api_tokens, loaded.hub_allow, loaded.model_dirs, loaded.cors_origins) == ((), (), (), ())


@pytest.mark.parametrize(
    ("variable", "value", "meaning"),
    [
        ("LLM_DEFAULT_BACKEND", "llamacpp", "llamacpp"),
        ("LLM_DEFAULT_MODEL", "m", "m"),
        ("LLM_ENABLED_BACKENDS", "fake, llamacpp", ("fake", "llamacpp")),
        ("LLM_API_TOKENS_FILE", __file__, Path(__file__)),
        ("LLM_RATE_LIMIT_RPS", "0.5", 0.5),
        ("LLM_QUEUE_TIMEOUT_S", "2", 2.0),
        ("LLM_TRUSTED_PROXIES", "10.0.0.1, 10.1.2.3/8,::1", ("10.0.0.1/32", "10.0.0.0/8", "::1/128")),
        (
            "LLM_CORS_ORIGINS",
            "https://a.example,http://localhost:3000",
            ("https://a.example", "http://localhost:3000"),
        ),
        ("LLM_CORS_ORIGINS", "*", ("*",)),
        (
            "LLM_CORS_ORIGINS",
            "HTTPS://A.Example:443,http://[::1]:80,http://b:8080",
            ("https://a.example", "http://[::1]", "http://b:8080"),
        ),
        ("LLM_METRICS_AUTH", "true", True),
        ("LLM_VLLM_DISABLE_THINKING", "false", False),
        ("LLM_VLLM_BASE_URL", "http://gpu:8000/v1/", ("http://gpu:8000/v1",)),
        ("LLM_VLLM_BASE_URL", "http://a:1/v1 , https://b,", ("http://a:1/v1", "https://b")),
        ("LLM_LLAMACPP_URL", "file:///run/llm.sock", "file:///run/llm.sock"),
        ("LLM_LLAMACPP_URL", "http://127.0.0.1:9000", "http://127.0.0.1:9000"),
        ("LLM_HUB_ALLOW", "meta-llama/*,,Qwen/*", ("meta-llama/*", "Qwen/*")),
        ("LLM_MEDIA_ALLOW", "Example.com, *.b.example:8443,*", ("example.com", "*.b.example:8443", "*")),
        (
            "LLM_MEDIA_ALLOW",
            "127.0.0.1:9000,[::1]:80,::1,10.0.0.7",
            ("127.0.0.1:9000", "[::1]:80", "[::1]", "10.0.0.7"),
        ),
        ("LLM_MEDIA_ALLOW", "3.example.com,1password.example", ("3.example.com", "1password.example")),
        ("LLM_MEDIA_MAX_PIXELS", "1000", 1000),
        ("LLM_MEDIA_TIMEOUT_S", "0.5", 0.5),
        ("LLM_LOG_LEVEL", "debug", "DEBUG"),
    ],
)
def test_a_variable_is_read(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, meaning: object
) -> None:
    loaded = load(monkeypatch, **{variable: value})

    assert getattr(loaded, variable.removeprefix("LLM_").lower()) == meaning


@pytest.mark.parametrize("separator", [",", os.pathsep])
def test_model_folders_are_separated_by_commas_or_as_in_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, separator: str
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    loaded = load(monkeypatch, LLM_MODEL_DIRS=f"{tmp_path}/a{separator}{tmp_path}/b")

    assert loaded.model_dirs == (tmp_path / "a", tmp_path / "b")


def test_folders_may_start_at_home_or_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    assert load(monkeypatch, LLM_MODEL_DIRS="~/m,m").model_dirs == (tmp_path / "m",) * 2


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load(monkeypatch, **{f"LLM_{name.upper()}": "" for name in Settings.model_fields})

    assert loaded == load_settings()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        *(("LLM_DEFAULT_BACKEND", value) for value in ("llama", "LLAMACPP ", "vllm,litellm")),
        ("LLM_ENABLED_BACKENDS", "llamacpp,lama"),
        *(("LLM_RATE_LIMIT_RPS", value) for value in ("-1", "ten", "nan", "inf")),
        *(("LLM_RATE_LIMIT_BURST", value) for value in ("0", "1.5")),
        *(("LLM_MAX_CONCURRENT_COMPLETIONS", value) for value in ("0", "many")),
        *(("LLM_QUEUE_SIZE", value) for value in ("-1", "1.5")),
        *(("LLM_REQUEST_TIMEOUT_S", value) for value in ("0", "-5", "inf")),
        *(("LLM_MAX_BODY_BYTES", value) for value in ("0", "16M", "67108865")),
        *(("LLM_TRUSTED_PROXIES", value) for value in ("10.0.0.0/99", "proxy.example")),
        *(
            ("LLM_CORS_ORIGINS", value)
            for value in (
                "example.com",
                "https://a.example/path",
                "https://*.example",
                "https://a b",
                "https://u@a.example",
                "https://ä.example",
            )
        ),
        *(
            ("LLM_VLLM_BASE_URL", value)
            for value in (
                "gpu:8000",
                "file:///x",
                "http://",
                "http://u:p@h/v1",
                "http://h:x",
                "http://h/v1?a=b",
            )
        ),
        *(("LLM_LLAMACPP_URL", value) for value in ("ftp://h", "/run/x.sock")),
        *(
            ("LLM_MEDIA_ALLOW", value)
            for value in (
                "http://a.example",
                "a.example/x",
                "a b",
                "*.",
                "a.example:0",
                "a.example:65536",
                "999.1.1.1",
            )
        ),
        *(
            ("LLM_MEDIA_ALLOW", value)
            for value in (
                "169.254.169.254",
                "[fe80::1]:80",
                "0.0.0.1",
                "224.0.0.1",
                "[::]:80",
                "[::ffff:10.0.0.1]:80",
            )
        ),
        *(("LLM_MEDIA_MAX_IMAGES", value) for value in ("0", "1001")),
        *(("LLM_MEDIA_MAX_BYTES", value) for value in ("1023", "50331649")),
        ("LLM_MEDIA_MAX_PIXELS", "0"),
        ("LLM_MEDIA_TIMEOUT_S", "0"),
        ("LLM_MEDIA_MAX_FETCHES", "0"),
        ("LLM_METRICS_AUTH", "maybe"),
        ("LLM_LOG_LEVEL", "LOUD"),
        ("LLM_CATALOGUE", "/no/such/file"),
        ("LLM_API_TOKENS_FILE", "/no/such/file"),
        ("LLM_MODEL_DIRS", "/no/such/folder"),
    ],
)
def test_a_bad_value_stops_the_start_with_key_value_and_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    message = refused(monkeypatch, **{variable: value})

    assert len(message.splitlines()) == 1
    assert message.startswith(variable)
    assert "@" in value or value in message
    assert "allowed:" in message or "create it" in message
    assert "pydantic" not in message


def test_every_bad_value_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    message = refused(monkeypatch, LLM_RATE_LIMIT_RPS="x", LLM_QUEUE_SIZE="y", LLM_DEFAULT_BACKEND="z")

    assert [line.split()[0] for line in message.splitlines()] == [
        "LLM_DEFAULT_BACKEND",
        "LLM_RATE_LIMIT_RPS",
        "LLM_QUEUE_SIZE",
    ]


# Names nobody knows


def test_an_unknown_name_is_warned_about_with_the_near_miss(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        load(monkeypatch, LLM_RATE_LIMIT_BURTS="1")

    assert caplog.messages == [
        "LLM_RATE_LIMIT_BURTS is not a setting of this service; did you mean LLM_RATE_LIMIT_BURST?"
    ]


def test_an_unknown_name_is_refused_when_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "LLM_FOO is not a setting" in refused(monkeypatch, LLM_FOO="1", LLM_STRICT_ENV="1")


def test_an_unknown_name_is_refused_beside_a_bad_value_when_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    message = refused(monkeypatch, LLM_FOO="1", LLM_STRICT_ENV="1", LLM_QUEUE_SIZE="x")

    assert len(message.splitlines()) == 2


@pytest.mark.parametrize(
    "name",
    [
        *(
            "LLM_SERVICE_HOST",
            "LLM_SERVICE_PORT",
            "LLM_SERVICE_PORT_HTTP_API",
            "LLM_PORT",
            "LLM_PORT_8080_TCP",
        ),
        *(
            "LLM_PORT_8080_TCP_PROTO",
            "LLM_PORT_8080_TCP_ADDR",
            "LLM_PORT_53_UDP_PORT",
            "LLM_INFERENCE_SERVICE_HOST",
        ),
        *("LLM_INFERENCE_PORT", "LLM_API_V2_PORT_14011_TCP", "LLM_X_SERVICE_PORT"),
    ],
)
def test_names_that_kubernetes_injects_are_no_mistake_even_when_strict(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    load(monkeypatch, **{name: "tcp://10.0.0.1:80", "LLM_STRICT_ENV": "1"})

    assert caplog.messages == []


# The default backend and the enabled ones


def test_budgets_are_amounts_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load(monkeypatch, LLM_BUDGETS=" alice=5, key:0123456789ab = 0.5 ,*=0")

    assert loaded.budgets == {"alice": 5, "key:0123456789ab": 0.5, "*": 0}


@pytest.mark.parametrize(
    "value", ["alice", "alice=", "alice=x", "alice=-1", "alice=nan", "a b=1", "a=1,a=2", ",", "=1"]
)
def test_budgets_that_cannot_be_meant_are_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    assert "LLM_BUDGETS" in refused(monkeypatch, LLM_BUDGETS=value)


@pytest.mark.parametrize("value", ["", "a b", "ä", "x" * 65])
def test_a_prefix_of_keys_is_short_and_visible(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    if value:
        assert "LLM_REDIS_PREFIX" in refused(monkeypatch, LLM_REDIS_PREFIX=value)
    else:
        assert load(monkeypatch, LLM_REDIS_PREFIX=value).redis_prefix == "llm-inference:"


def test_state_is_kept_where_a_users_programs_keep_theirs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert load_settings().state_folder == tmp_path / "llm-inference"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert load_settings().state_folder == Path("~/.local/state/llm-inference").expanduser()
    assert load(monkeypatch, LLM_STATE_DIR="/var/lib/x").state_folder == Path("/var/lib/x")


# Arguments


def test_the_largest_body_that_may_be_allowed_is_what_a_runner_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(monkeypatch, LLM_MAX_BODY_BYTES=str(MAX_BODY_BYTES)).max_body_bytes == MAX_BODY_BYTES
    assert "LLM_MAX_BODY_BYTES" in refused(monkeypatch, LLM_MAX_BODY_BYTES=str(MAX_BODY_BYTES + 1))
