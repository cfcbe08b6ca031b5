"""Who may ask: bearer tokens, what does not count as one, and what needs none."""

from __future__ import annotations

import base64
from typing import Any

import httpx

from openai_compat.conformance.api import CHAT, COMPLETIONS, Api, contract_error, encode, error_of
from openai_compat.conformance.check import extension, openai_api

OPENAI_ROUTES = [("POST", CHAT), ("POST", COMPLETIONS), ("GET", "/v1/models")]
PROTECTED = [
    *OPENAI_ROUTES,
    ("POST", "/v1/models/load"),
    ("POST", "/v1/models/unload"),
    ("GET", "/v1/backends"),
]


def asked(
    api: Api, method: str, path: str, headers: dict[str, str], body: Any = None, **options: Any
) -> httpx.Response:
    """A request that carries exactly these headers and no token of its own."""
    content = encode(body if body is not None else {}) if method == "POST" else None
    sent = headers | ({"Content-Type": "application/json"} if method == "POST" else {})
    return httpx.request(
        method, api.base_url + path, headers=sent, content=content, timeout=30, trust_env=False, **options
    )


def with_authorization(api: Api, value: str) -> int:
    """The status of a chat with this very header value, sent byte for byte."""
    with api.connect() as connection:
        sent = {"Authorization": value, "Connection": "close", "Content-Type": "application/json"}
        return connection.request("POST", CHAT, encode(api.chat_body(max_tokens=1)), sent).status


@openai_api
def auth_missing_is_401__without_a_token_every_model_route_is_401(guarded: Api) -> None:
    bodies = {CHAT: guarded.chat_body(), COMPLETIONS: guarded.completion_body()}
    for method, path in OPENAI_ROUTES:
        for stream in (False, True):
            error_of(asked(guarded, method, path, {}, bodies.get(path, {}) | {"stream": stream}), (401,))


@openai_api
def auth_wrong_tokens__a_wrong_longer_shorter_or_differently_cased_token_is_401(guarded: Api) -> None:
    token = guarded.token or ""
    for wrong in ("nonsense", token[:-1], token + "x", token.swapcase(), "x" + token, f"{token},{token}"):
        headers = {"Authorization": f"Bearer {wrong}"}
        error_of(asked(guarded, "POST", CHAT, headers, guarded.chat_body(max_tokens=1)), (401,))


@openai_api
def auth_empty_and_other_schemes__only_bearer_with_a_value_counts(guarded: Api) -> None:
    token = guarded.token or ""
    basic = base64.b64encode(f"user:{token}".encode()).decode()
    for value in ("", "Bearer", "Bearer ", f"Basic {basic}", f"Token {token}", token, f"Bearer{token}"):
        assert with_authorization(guarded, value) == 401, value


@openai_api
def auth_scheme_is_case_insensitive__bearer_may_be_spelled_in_any_case(guarded: Api) -> None:
    for scheme in ("Bearer", "bearer", "BEARER", "bEaReR"):
        assert with_authorization(guarded, f"{scheme} {guarded.token}") == 200, scheme


@openai_api
def auth_not_by_query_or_body__a_token_elsewhere_does_not_authenticate(guarded: Api) -> None:
    token = guarded.token or ""
    query = {"token": token, "api_key": token, "access_token": token, "authorization": f"Bearer {token}"}
    cookie = {"Cookie": f"token={token}; Authorization=Bearer {token}"}
    body = guarded.chat_body() | {"api_key": token, "token": token, "Authorization": f"Bearer {token}"}

    error_of(asked(guarded, "POST", CHAT, {}, guarded.chat_body(), params=query), (401,))
    error_of(asked(guarded, "POST", CHAT, cookie, guarded.chat_body()), (401,))
    error_of(asked(guarded, "POST", CHAT, {}, body), (401,))


@extension
def auth_not_by_other_headers__what_other_apis_read_counts_for_nothing(guarded: Api) -> None:
    token = guarded.token or ""

    for name in ("X-Api-Key", "Api-Key"):
        error_of(asked(guarded, "GET", "/v1/models", {name: token}), (401,))


@extension
def auth_401_forms__the_detail_and_the_error_stand_side_by_side(guarded: Api) -> None:
    missing = asked(guarded, "GET", "/v1/models", {})
    wrong = asked(guarded, "POST", CHAT, {"Authorization": "Bearer nonsense"}, guarded.chat_body())

    for response in (missing, wrong):
        contract_error(response, 401, "authentication_error", "invalid_api_key")
        assert response.headers["www-authenticate"] == "Bearer"
    assert missing.json()["detail"] == {
        "error": "Authentication required",
        "message": "Missing Authorization header",
    }
    assert wrong.json()["detail"]["error"]
    assert "nonsense" not in wrong.text


@extension
def auth_public_and_protected__extra_slashes_open_nothing(guarded: Api) -> None:
    for path in ("/health", "/ready", "/health/", "//ready"):
        assert asked(guarded, "GET", path, {}).status_code == 200, path
    for method, path in PROTECTED:
        for spelled in (path, path + "/", "/" + path, path.replace("/v1/", "/v1//"), path + "//"):
            assert asked(guarded, method, spelled, {}).status_code == 401, spelled
    for path in ("/v1/info", "/docs", "/openapi.json", f"/v1/models/{guarded.model}"):
        assert asked(guarded, "GET", path, {}).status_code == 401, path
    assert asked(guarded, "POST", "/v1/embeddings", {}).status_code == 401
    assert asked(guarded, "GET", "/schema.json", {}).status_code in (401, 404)
