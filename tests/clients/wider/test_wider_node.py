"""What users of the JavaScript clients do besides their quick starts."""

from __future__ import annotations

from tests.clients.conftest import RunNode, Served


def test_vercels_objects_are_generated_and_streamed(run_node: RunNode, llamacpp: Served) -> None:
    told = run_node("ai/objects.mjs", llamacpp)

    assert set(told["object"]) == set(told["streamed"]) == {"city", "days"}
    assert told["pieces"] >= 1
    assert told["usage"]["outputTokens"] > 0
    assert told["choice"] in ("yes", "no")


def test_vercels_stream_with_tools_calls_and_runs_them(run_node: RunNode, llamacpp: Served) -> None:
    told = run_node("ai/stream_tools.mjs", llamacpp)

    assert {"tool-input-delta", "tool-call", "tool-result", "finish"} <= set(told["kinds"])
    assert "error" not in told["kinds"]
    assert told["reason"] == "tool-calls"
    assert told["usage"]["outputTokens"] > 0


def test_vercels_errors_have_the_status_and_our_words(run_node: RunNode, llamacpp: Served) -> None:
    unknown, invalid = run_node("ai/errors.mjs", llamacpp)

    assert unknown["status"] == 404
    assert "nobody/has-this" in unknown["message"]
    assert invalid["status"] == 422
    assert "temperature" in invalid["message"]


def test_openais_client_streams_calls_lists_models_and_reads_errors(
    run_node: RunNode, llamacpp: Served
) -> None:
    told = run_node("openai/wider.mjs", llamacpp)

    assert told["parsed"]
    assert all(set(arguments) == {"city"} for arguments in told["parsed"])
    assert told["backend"] == "llamacpp"
    assert told["request"]
    assert llamacpp.model in told["models"]
    assert told["found"] == "sentence-transformers"
    assert told["missing"] == {"status": 404, "code": "not_found"}
