"""The Bento's arguments: what overrides what, what is refused, and what BentoML is told."""

from __future__ import annotations

from typing import Any

import pytest

from settings import Args, SettingsError, load_settings
from tests.settings.loading import refused_args


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
