"""Request over card over the service's defaults."""

from __future__ import annotations

from openai_compat.serving.sampling import resolve
from tests.openai_compat.wire import card


def test_the_service_has_defaults_of_its_own() -> None:
    sampling = resolve({}, card())

    assert (sampling.temperature, sampling.top_p, sampling.repetition_penalty) == (0.7, 1.0, 1.0)
    assert sampling.presence_penalty == sampling.frequency_penalty == 0.0
    assert sampling.max_tokens is None


def test_a_card_overrides_the_service() -> None:
    sampling = resolve({}, card(sampling={"temperature": 0.2, "stop": ["x"], "top_k": 40}))

    assert (sampling.temperature, sampling.stop, sampling.top_k) == (0.2, ("x",), 40)


def test_a_request_overrides_the_card() -> None:
    sampling = resolve({"temperature": 0.0, "stop": ()}, card(sampling={"temperature": 0.2, "stop": ["x"]}))

    assert (sampling.temperature, sampling.stop) == (0.0, ())


def test_only_what_the_caller_set_is_explicit() -> None:
    sampling = resolve({"top_p": 0.5}, card(sampling={"temperature": 0.2}))

    assert sampling.explicit == {"top_p"}


def test_a_card_never_undercuts_the_callers_min_tokens() -> None:
    sampling = resolve({"min_tokens": 20}, card(sampling={"max_tokens": 10}))

    assert (sampling.min_tokens, sampling.max_tokens) == (20, None)
