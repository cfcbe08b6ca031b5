"""What BentoML serves beside the app does not stand open."""

from __future__ import annotations

import httpx
import pytest

from tests.service.conftest import Start


def test_only_the_probes_of_the_parent_are_reachable(start: Start) -> None:
    instance = start(LLM_DEFAULT_BACKEND="fake", LLM_API_TOKENS="secret-token")
    token = {"Authorization": "Bearer secret-token"}

    with httpx.Client(base_url=instance.base_url) as client:
        probes = [client.get(path).status_code for path in ("/livez", "/healthz", "/readyz")]
        hidden = [
            client.get(path, headers=token) for path in ("/schema.json", "/docs.json", "/static_content/x")
        ]
        without = client.get("/docs")

    assert probes == [200, 200, 200]
    assert [answer.status_code for answer in hidden] == [404, 404, 404]
    assert all(answer.json()["error"]["code"] == "not_found" for answer in hidden)
    assert without.status_code == 401


def test_a_probe_is_a_route_like_any_other(start: Start) -> None:
    instance = start(LLM_DEFAULT_BACKEND="fake", LLM_API_TOKENS="secret-token")

    with httpx.Client(base_url=instance.base_url) as client:
        named = client.get("/readyz", headers={"X-Request-ID": "mine"})
        slashes = [
            client.get(f"{instance.base_url}{path}").status_code
            for path in ("/livez/", "//readyz", "/healthz//")
        ]
        head = client.head("/livez")
        wrong = client.post("/livez")

    assert (named.status_code, named.headers["x-request-id"]) == (200, "mine")
    assert slashes == [200, 200, 200]
    assert (head.status_code, head.content) == (200, b"")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "GET, HEAD, OPTIONS"


@pytest.mark.parametrize("header", ["203.0.113.9", "127.0.0.1"])
def test_a_forwarded_address_is_not_believed_from_a_peer_that_is_no_proxy(start: Start, header: str) -> None:
    instance = start(LLM_DEFAULT_BACKEND="fake", LLM_RATE_LIMIT_RPS="0.01", LLM_RATE_LIMIT_BURST="3")

    with httpx.Client(base_url=instance.base_url) as client:
        statuses = [
            client.get("/v1/models", headers={"X-Forwarded-For": f"{header[:-1]}{i}"}).status_code
            for i in range(6)
        ]

    assert statuses.count(200) == 3
