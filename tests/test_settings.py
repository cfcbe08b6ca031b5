"""The environment and the Bento's arguments: what they mean, what wins, and what stops the start."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from backends.runner.app import MAX_BODY_BYTES
from settings import Args, Settings, SettingsError, load_settings
from settings.reference import reference

DOCS = Path(__file__).parents[1] / "docs" / "configuration.md"


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("LLM_"):
            monkeypatch.delenv(name)


def load(monkeypatch: pytest.MonkeyPatch, args: Args | None = None, /, **variables: str) -> Settings:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return load_settings(args)


def refused(monkeypatch: pytest.MonkeyPatch, /, **variables: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load(monkeypatch, **variables)
    return str(caught.value)


def refused_args(**data: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        Args(**data)
    return str(caught.value)


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
        ("LLM_METRICS_AUTH", "true", True),
        ("LLM_VLLM_DISABLE_THINKING", "false", False),
        ("LLM_VLLM_BASE_URL", "http://gpu:8000/v1/", ("http://gpu:8000/v1",)),
        ("LLM_VLLM_BASE_URL", "http://a:1/v1 , https://b,", ("http://a:1/v1", "https://b")),
        ("LLM_LLAMACPP_URL", "file:///run/llm.sock", "file:///run/llm.sock"),
        ("LLM_LLAMACPP_URL", "http://127.0.0.1:9000", "http://127.0.0.1:9000"),
        ("LLM_HUB_ALLOW", "meta-llama/*,,Qwen/*", ("meta-llama/*", "Qwen/*")),
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
        *(("LLM_CORS_ORIGINS", value) for value in ("example.com", "https://a.example/path")),
        *(
            ("LLM_VLLM_BASE_URL", value)
            for value in ("gpu:8000", "file:///x", "http://", "http://u:p@h/v1", "http://h:x")
        ),
        *(("LLM_LLAMACPP_URL", value) for value in ("ftp://h", "/run/x.sock")),
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


def test_a_runner_on_the_network_needs_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    message = refused(monkeypatch, LLM_LLAMACPP_URL="http://far.example:9000")

    assert message.startswith("LLM_RUNNER_TOKEN is not set")
    assert load(monkeypatch, LLM_RUNNER_TOKEN="t").llamacpp_url == "http://far.example:9000"


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


def test_state_is_kept_where_a_users_programs_keep_theirs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert load_settings().state_folder == tmp_path / "llm-inference"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert load_settings().state_folder == Path("~/.local/state/llm-inference").expanduser()
    assert load(monkeypatch, LLM_STATE_DIR="/var/lib/x").state_folder == Path("/var/lib/x")


# Arguments


def test_the_defaults_are_a_valid_configuration() -> None:
    args = Args()

    assert (args.gateway.max_concurrency, args.llamacpp.num_slots, args.vllm.enabled) == (10, 16, None)


def test_the_bentofile_is_read() -> None:
    args = Args(gateway={"workers": "cpu_count"}, llamacpp={"num_slots": 4, "batch": {"max_batch_size": 8}})

    assert (args.gateway.workers, args.llamacpp.num_slots, args.llamacpp.batch.max_batch_size) == (
        "cpu_count",
        4,
        8,
    )


def test_a_dotted_argument_keeps_what_stands_beside_it() -> None:
    args = Args(**{"llamacpp": {"num_slots": 4, "n_ctx": 4096}, "llamacpp.num_slots": "8"})

    assert (args.llamacpp.num_slots, args.llamacpp.n_ctx) == (8, 4096)


def test_an_argument_may_be_a_section_in_json() -> None:
    assert Args(llamacpp='{"num_slots": 3}').llamacpp.num_slots == 3


def test_a_nested_section_in_json_is_merged() -> None:
    args = Args(**{"llamacpp": {"batch": {"max_batch_size": 8}}, "llamacpp.batch": '{"max_latency_ms": 9}'})

    assert (args.llamacpp.batch.max_batch_size, args.llamacpp.batch.max_latency_ms) == (8, 9)


def test_a_variable_wins_over_an_argument_over_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    data: dict[str, Any] = {
        "llamacpp": {"num_slots": 2, "n_ctx": 1000, "n_batch": 100},
        "llamacpp.num_slots": "3",
        "llamacpp.n_ctx": "2000",
    }
    monkeypatch.setenv("LLM_ARGS__LLAMACPP__NUM_SLOTS", "4")

    args = Args(**data)

    assert (args.llamacpp.num_slots, args.llamacpp.n_ctx, args.llamacpp.n_batch) == (4, 2000, 100)


def test_a_variable_may_hold_a_section_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_ARGS__LLAMACPP", '{"num_slots": 4, "resources": {"cpu": 2}}')

    args = Args(llamacpp={"n_ctx": 1000})

    assert (args.llamacpp.num_slots, args.llamacpp.n_ctx, args.llamacpp.resources.cpu) == (4, 1000, 2)


def test_null_as_text_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_ARGS__LLAMACPP__N_THREADS", "null")

    assert Args(llamacpp={"n_threads": 3}).llamacpp.n_threads is None


def test_an_empty_overriding_variable_overrides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_ARGS__LLAMACPP__NUM_SLOTS", "")

    assert Args(llamacpp={"num_slots": 3}).llamacpp.num_slots == 3


def test_the_callers_dictionary_is_left_alone() -> None:
    data = {"llamacpp": {"num_slots": 2}}

    Args(**data, **{"llamacpp.num_slots": "3"})  # type: ignore[arg-type]

    assert data == {"llamacpp": {"num_slots": 2}}


@pytest.mark.parametrize(
    ("variable", "argument", "field"),
    [
        ("LLM_QUEUE_SIZE", ("gateway", "queue_size"), "queue_size"),
        ("LLM_MAX_CONCURRENT_COMPLETIONS", ("gateway", "max_concurrency"), "max_concurrent_completions"),
    ],
)
def test_a_knob_in_both_trees_has_one_final_value(
    monkeypatch: pytest.MonkeyPatch, variable: str, argument: tuple[str, str], field: str
) -> None:
    section, name = argument
    assert getattr(load_settings(Args(**{section: {name: 5}})), field) == 5

    monkeypatch.setenv(variable, "7")
    args = Args(**{section: {name: 5}})

    assert getattr(load_settings(args), field) == 7
    assert getattr(getattr(args, section), name) == 7


def test_the_runners_address_may_stand_in_either_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings(Args(llamacpp={"url": "file:///a"})).llamacpp_url == "file:///a"

    monkeypatch.setenv("LLM_LLAMACPP_URL", "file:///b")

    assert Args(llamacpp={"url": "file:///a"}).llamacpp.url == "file:///b"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"gatway": {}}, "gatway is not an argument; did you mean gateway?"),
        ({"llamacpp": {"num_slot": 1}}, "llamacpp.num_slot is not an argument; did you mean num_slots?"),
        (
            {"llamacpp": {"batch": {"x": 1}}},
            "llamacpp.batch.x is not an argument; known: max_batch_size, max_latency_ms",
        ),
        ({"llamacpp": {"num_slots": 0}}, "llamacpp.num_slots is 0; allowed: a whole number, 1-256"),
        ({"llamacpp": {"num_slots": True}}, "llamacpp.num_slots is True; allowed: a whole number, 1-256"),
        ({"llamacpp": {"workers": 2}}, "llamacpp.workers is 2; allowed: 1: one process owns the models"),
        ({"llamacpp": 3}, "llamacpp is 3; allowed: a section"),
        (
            {"gateway": {"workers": "many"}},
            "gateway.workers is 'many'; allowed: a whole number >= 1, or cpu_count",
        ),
        (
            {"gateway": {"timeout": 0}},
            "gateway.timeout is 0; allowed: a number > 0, above LLM_REQUEST_TIMEOUT_S",
        ),
        (
            {"fake": {"batch": {"max_batch_size": 0}}},
            "fake.batch.max_batch_size is 0; allowed: a whole number >= 1",
        ),
        (
            {"llamacpp.num_slots": "x"},
            "--arg llamacpp.num_slots is 'x'; allowed: a whole number, 1-256",
        ),
    ],
)
def test_a_bad_argument_is_named_with_its_path(data: dict[str, Any], message: str) -> None:
    assert refused_args(**data) == message


def test_a_bad_overriding_variable_is_named_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_ARGS__LLAMACPP__NUM_SLOTS", "0")
    monkeypatch.setenv("LLM_QUEUE_SIZE", "-1")

    message = refused_args()

    assert "LLM_ARGS__LLAMACPP__NUM_SLOTS is '0'; allowed: a whole number, 1-256" in message
    assert "LLM_QUEUE_SIZE is '-1'; allowed: a whole number >= 0" in message


def test_an_unknown_overriding_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_ARGS__LLAMACPP__NUM_SLOT", "1")

    assert "from LLM_ARGS__LLAMACPP__NUM_SLOT" in refused_args()


def test_the_largest_body_that_may_be_allowed_is_what_a_runner_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(monkeypatch, LLM_MAX_BODY_BYTES=str(MAX_BODY_BYTES)).max_body_bytes == MAX_BODY_BYTES
    assert "LLM_MAX_BODY_BYTES" in refused(monkeypatch, LLM_MAX_BODY_BYTES=str(MAX_BODY_BYTES + 1))


def test_bentomls_time_limit_must_lie_above_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_REQUEST_TIMEOUT_S", "600")
    monkeypatch.setenv("LLM_DEFAULT_BACKEND", "fake")

    with pytest.raises(SettingsError) as caught:
        load_settings(Args())

    assert [line.split()[0] for line in str(caught.value).splitlines()] == ["gateway.timeout", "fake.timeout"]


def test_a_section_becomes_the_arguments_of_a_bentoml_service() -> None:
    options = Args(gateway={"workers": 2, "timeout": 900, "resources": {"cpu": "500m"}}).gateway.bento()

    assert options == {
        "workers": 2,
        "traffic": {"timeout": 900.0},
        "resources": {"cpu": "500m"},
        "tracing": {"excluded_urls": [".*"]},
        "logging": {"access": {"enabled": False}},
        "metrics": {"enabled": False},
        "runner_connection": {"max_requests": 2**31 - 1, "max_age": 1e9},
    }


def test_a_section_without_resources_names_none() -> None:
    assert "resources" not in Args().llamacpp.bento()


def test_bentoml_accepts_what_a_section_gives() -> None:
    config = pytest.importorskip("_bentoml_sdk.service.config")
    args = Args(gateway={"resources": {"cpu": 1.5, "memory": "2Gi"}}, vllm={"resources": {"gpu": 1}})

    for section in (args.gateway, args.llamacpp, args.vllm):
        assert config.validate(section.bento())


# The documentation and the file itself


def sections(text: str) -> dict[str, str]:
    return dict(re.findall(r"<!-- (\w+) -->\n(.*?)\n<!-- end -->", text, re.DOTALL))


def test_the_tables_of_the_documentation_are_those_of_the_code() -> None:
    assert sections(DOCS.read_text("utf-8")) == reference()


def test_every_variable_and_argument_stands_in_the_reference() -> None:
    def leaves(model: type[BaseModel], prefix: str) -> set[str]:
        names: set[str] = set()
        for name, field in model.model_fields.items():
            inner = field.annotation
            nested = isinstance(inner, type) and issubclass(inner, BaseModel)
            names |= leaves(inner, f"{prefix}{name}.") if nested else {prefix + name}  # type: ignore[arg-type]
        return names

    documented = set(re.findall(r"^\| `([\w.]+)`", "\n".join(reference().values()), re.MULTILINE))

    assert documented == {f"LLM_{name.upper()}" for name in Settings.model_fields} | leaves(Args, "")


def test_every_knob_says_what_is_allowed_and_what_it_does() -> None:
    rows = [row for table in reference().values() for row in table.splitlines()[2:]]

    assert all(len(row.split(" | ")) == 4 and "|  |" not in row for row in rows)


def test_nothing_else_in_the_service_reads_the_environment() -> None:
    root = Path(__file__).parents[1]
    readers = [
        str(path.relative_to(root))
        for folder in ("models", "backends", "openai_compat")
        for path in (root / folder).rglob("*.py")
        if re.search(r"os\.environ|getenv", path.read_text("utf-8"))
    ]

    assert readers == []


def test_importing_the_settings_brings_neither_bentoml_nor_a_parser_nor_the_hub() -> None:
    program = "import sys, settings, models.catalogue, models.sources; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50
    )

    assert not {"bentoml", "yaml", "huggingface_hub", "tqdm", "fastapi", "llama_cpp"} & set(
        done.stdout.split()
    )
