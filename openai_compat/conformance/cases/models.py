"""What can be asked for: models, backends, health, and the catalogue's page."""

from __future__ import annotations

import statistics
import time
from urllib.parse import quote

from openai_compat.conformance.api import CHAT, COMPLETIONS, Api, contract_error, encode, error_of, ok, user
from openai_compat.conformance.check import NotOffered, extension, given, openai_api, within


@openai_api
def models_list_shape__entries_have_openais_fields_and_stay_the_same(service: Api) -> None:
    body = ok(service.http.get("/v1/models"))

    assert body["object"] == "list"
    ids = [entry["id"] for entry in body["data"]]
    assert service.model in ids
    assert len(set(ids)) == len(ids)
    for entry in body["data"]:
        assert isinstance(entry["id"], str)
        assert entry["object"] == "model"
        assert isinstance(entry["created"], int)
        assert not isinstance(entry["created"], bool)
        assert isinstance(entry["owned_by"], str)
    assert ok(service.http.get("/v1/models")) == body


@extension
def models_list_seed_fields__entries_say_where_and_how_they_are_served(service: Api) -> None:
    for entry in service.models():
        assert entry["backend"] in ok(service.http.get("/v1/backends"))["backends"]
        assert isinstance(entry["loaded"], bool)
        assert entry["context_length"] is None or entry["context_length"] > 0
        assert entry["capabilities"]
        assert all(isinstance(capability, str) for capability in entry["capabilities"])
    assert "chat" in service.entry()["capabilities"]
    assert service.entry()["context_length"] > 0


@extension
def models_backend_filter__it_gives_exactly_that_backends_entries(service: Api) -> None:
    everything = service.models()

    for backend in ok(service.http.get("/v1/backends"))["backends"]:
        filtered = ok(service.http.get("/v1/models", params={"backend": backend}))["data"]
        assert filtered == [entry for entry in everything if entry["backend"] == backend]


@extension
def models_unknown_backend__it_is_400_in_the_documented_words(service: Api) -> None:
    for response in (
        service.http.get("/v1/models", params={"backend": "nonsense"}),
        service.chat(backend="nonsense"),
        service.complete(backend="nonsense"),
        service.post("/v1/models/load", {"model": service.model, "backend": "nonsense"}),
    ):
        contract_error(response, 400, "invalid_request_error", "backend_not_available", "backend")
        assert response.json()["detail"] == "Backend 'nonsense' is not available"


@openai_api
def models_by_id__it_is_the_lists_own_entry(service: Api) -> None:
    for entry in service.models():
        response = service.http.get(f"/v1/models/{quote(entry['id'], safe='')}")
        if response.status_code in (404, 405, 501) and entry["id"] == service.model:
            raise NotOffered(f"{response.status_code} for the model's own id")
        assert ok(response) == entry


@openai_api
@given(
    "path",
    ["nobody/model", "nobody%2Fmodel", "模型", "%E6%A8%A1%E5%9E%8B", "name:tag", "a.b-c_d", "a%20b", "%"],
)
def models_unknown_id__it_is_404_with_an_error_object(service: Api, path: str) -> None:
    error_of(service.http.get(f"/v1/models/{path}"), (404,))


@openai_api
@given("stream", [False, True])
def models_chat_unknown_model__it_is_404_streaming_or_not(service: Api, stream: bool) -> None:
    for model in ("nobody/has-this-model", "模型", "../etc/passwd", "a" * 2000):
        error_of(service.chat(model=model, stream=stream), (404,))


@openai_api
@within(120)
def models_fast_during_generation__the_list_never_waits_for_a_stream(service: Api) -> None:
    body = encode(service.chat_body("Count from one to a thousand.", max_tokens=400, stream=True))
    times = []
    with service.http.stream(
        "POST", CHAT, content=body, headers={"Content-Type": "application/json"}
    ) as stream:
        pieces = stream.iter_raw()
        next(pieces)
        for _ in range(7):
            started = time.monotonic()
            ok(service.http.get("/v1/models"))
            times.append(time.monotonic() - started)

    assert statistics.median(times) < 0.2


@extension
def models_health_and_ready__the_status_follows_from_the_backends(service: Api) -> None:
    health = ok(service.http.get("/health"))

    healthy = [backend["healthy"] for backend in health["backends"]]
    expected = "healthy" if all(healthy) else "degraded" if any(healthy) else "unhealthy"
    assert health["status"] == expected
    assert all({"name", "healthy", "message"} <= set(backend) for backend in health["backends"])
    assert {b["name"] for b in health["backends"]} == set(ok(service.http.get("/v1/backends"))["backends"])
    assert ok(service.http.get("/ready")) == {"ready": True}


@extension
def models_info__it_has_the_resource_the_models_and_the_routes(service: Api) -> None:
    info = ok(service.http.get("/v1/info"))

    assert info["resource"]
    assert service.model in {
        model if isinstance(model, str) else model.get("id", model.get("name")) for model in info["models"]
    }
    described = str(info["functions"])
    for path in (CHAT, COMPLETIONS, "/v1/models", "/v1/backends"):
        assert path in described


@extension
def models_load_loaded__it_succeeds_at_once_and_changes_nothing(service: Api) -> None:
    service.chat_body()
    service.assert_alive()
    entry = service.entry()
    if entry["backend"] == "litellm":
        raise NotOffered("there is nothing to load")
    started = time.monotonic()
    answer = ok(service.post("/v1/models/load", {"model": service.model, "backend": entry["backend"]}))
    took = time.monotonic() - started

    assert answer["success"] is True
    assert (answer["model"], answer["backend"]) == (service.model, entry["backend"])
    assert isinstance(answer["message"], str)
    assert took < 1
    assert service.entry() == entry


@extension
def models_load_on_litellm__load_and_unload_there_are_400(service: Api) -> None:
    for action in ("load", "unload"):
        body = {"model": service.model, "backend": "litellm"}
        error_of(service.post(f"/v1/models/{action}", body), (400,))
    assert ok(service.post(CHAT, {"model": service.model, "messages": [user("Hi.")], "max_tokens": 1}))
