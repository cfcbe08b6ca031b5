"""HTTP itself: bodies, types, paths, methods, headers and connections."""

from __future__ import annotations

import json

import httpx

from openai_compat.conformance.api import CHAT, Api, contract_error, encode, error_of, ok
from openai_compat.conformance.check import extension, given, openai_api
from openai_compat.conformance.raw_http import RawResponse

JSON = {"Content-Type": "application/json"}


def headers_of(api: Api, **more: str) -> dict[str, str]:
    return api.auth | JSON | {name.replace("_", "-"): value for name, value in more.items()}


def raw_error(response: RawResponse, statuses: tuple[int, ...]) -> dict[str, object]:
    assert response.status in statuses, response
    assert response.headers["content-type"].startswith("application/json"), response
    error = json.loads(response.body)["error"]
    assert isinstance(error, dict)
    return error


@openai_api
@given("body", [b"null", b"[]", b'"text"', b"5", b"true", b"[{}]"])
def http_body_not_an_object__it_is_refused(service: Api, body: bytes) -> None:
    error_of(service.post(CHAT, body))


@openai_api
@given("body", [b"", b"   ", b"\n", b'{"model": "x"', b"{", b"}", b"{}{}", b"{} x", b"{'a': 1}", b"\xff\xfe"])
def http_body_truncated_or_empty__it_is_refused(service: Api, body: bytes) -> None:
    error_of(service.post(CHAT, body))


@openai_api
@given("kind", ["text/plain", "application/xml", "multipart/form-data", "", "nonsense", "a/b/c"])
def http_other_content_types__they_are_refused_or_work(service: Api, kind: str) -> None:
    response = service.post(CHAT, service.chat_body(max_tokens=1), headers={"Content-Type": kind})

    assert response.status_code == 200 or 400 <= response.status_code < 500


@openai_api
def http_other_content_types__none_at_all_is_refused_or_works(service: Api) -> None:
    with service.connect() as connection:
        response = connection.request("POST", CHAT, encode(service.chat_body(max_tokens=1)), service.auth)

    assert response.status == 200 or 400 <= response.status < 500


@extension
def http_content_type_rule__json_in_any_spelling_and_nothing_else(service: Api) -> None:
    body = service.chat_body(max_tokens=1)
    spellings = (
        "application/json",
        "Application/JSON",
        "application/json; charset=utf-8",
        "application/json;charset=UTF-8",
        'application/json; charset="utf-8"',
    )

    for kind in spellings:
        ok(service.post(CHAT, body, headers={"Content-Type": kind}))
    for kind in ("text/plain", "application/xml", "application/x-www-form-urlencoded", "multipart/form-data"):
        contract_error(
            service.post(CHAT, body, headers={"Content-Type": kind}),
            415,
            "invalid_request_error",
            "unsupported_media_type",
        )
    with service.connect() as connection:
        assert connection.request("POST", CHAT, encode(body), service.auth).status == 200


@extension
def http_413_before_reading__a_large_length_is_refused_before_the_body_is_sent(service: Api) -> None:
    with service.connect(timeout_s=10) as connection:
        connection.send(connection.head("POST", CHAT, headers_of(service, Content_Length="99999999")))
        error = raw_error(connection.read(), (413,))

    assert error["code"] == "request_too_large"


@openai_api
@given("method", ["GET", "POST", "PUT", "DELETE", "PATCH"])
@given("path", ["/nothing", "/v1/nothing", "/v2/chat/completions", "/v1/chat", "/v1"])
def http_unknown_path__it_is_404_with_json_whatever_the_method(service: Api, method: str, path: str) -> None:
    error_of(service.http.request(method, path), (404,))


WRONG_METHODS = [
    ("GET", CHAT, "POST"),
    ("PUT", CHAT, "POST"),
    ("GET", "/v1/completions", "POST"),
    ("DELETE", "/v1/models", "GET"),
    ("POST", "/health", "GET"),
    ("PATCH", "/ready", "GET"),
    ("GET", "/v1/models/load", "POST"),
    ("GET", "/v1/models/unload", "POST"),
]


@openai_api
@given(("method", "path", "right"), WRONG_METHODS)
def http_wrong_method__it_is_405_with_allow_or_404(service: Api, method: str, path: str, right: str) -> None:
    response = service.http.request(method, path)

    error_of(response, (404, 405))
    if response.status_code == 405:
        assert right in response.headers["allow"].replace(" ", "").split(",")


@extension
@given(("method", "path", "right"), WRONG_METHODS)
def http_404_405_bodies__both_carry_the_two_sided_body(
    service: Api, method: str, path: str, right: str
) -> None:
    wrong = service.http.request(method, path)

    contract_error(wrong, 405, "invalid_request_error", "method_not_allowed")
    assert right in wrong.headers["allow"].replace(" ", "").split(",")
    contract_error(service.http.request(method, "/v1/nothing"), 404, "invalid_request_error", "not_found")


@extension
@given("path", ["/health", "/ready", "/v1/models", "/v1/backends", "/v1/info", "/metrics"])
def http_head__it_answers_as_get_without_a_body(service: Api, path: str) -> None:
    get = service.http.get(path)
    with service.connect() as connection:
        head = connection.request("HEAD", path, headers=service.auth)
        following = connection.request("GET", "/ready", headers=service.auth)

    assert (head.status, head.body) == (get.status_code, b"")
    assert head.headers["content-type"] == get.headers["content-type"]
    assert following.status == 200


@extension
def http_trailing_and_double_slash__they_are_answered_directly(service: Api) -> None:
    for path in ("/v1/models/", "//v1/models", "/v1//models", "/health/", "//ready", "/v1/backends//"):
        with service.connect() as connection:
            assert connection.request("GET", path, headers=service.auth).status == 200, path
    for path in (CHAT + "/", "/v1//chat//completions", "//v1/chat/completions"):
        with service.connect() as connection:
            body = encode(service.chat_body(max_tokens=1))
            assert connection.request("POST", path, body, headers_of(service)).status == 200, path


@openai_api
def http_preflight_without_key__options_needs_no_token(guarded: Api) -> None:
    for path in (CHAT, "/v1/models", "/health"):
        response = httpx.options(
            guarded.base_url + path,
            headers={
                "Origin": "https://app.example",
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
            },
            trust_env=False,
        )
        assert response.status_code not in (401, 403), path
        assert response.status_code < 500, path
        if "access-control-allow-methods" in response.headers:
            assert "POST" in response.headers["access-control-allow-methods"]
            allowed = response.headers["access-control-allow-headers"].lower()
            assert allowed == "*" or "authorization" in allowed


def every_kind(api: Api, headers: dict[str, str]) -> list[httpx.Response]:
    """An answer, a stream, a list, and refusals of several kinds, all asked with these headers."""
    return [
        api.post(CHAT, api.chat_body(max_tokens=1), headers=headers),
        api.post(CHAT, api.chat_body(max_tokens=1, stream=True), headers=headers),
        api.post(CHAT, b"{", headers=headers),
        api.post(CHAT, api.chat_body(model="nobody/has-this-model"), headers=headers),
        api.http.get("/v1/models", headers=headers),
        api.http.get("/health", headers=headers),
        api.http.get("/nothing", headers=headers),
        api.http.get(CHAT, headers=headers),
    ]


@extension
def http_request_id_echoed__a_well_formed_one_comes_back_unchanged(service: Api) -> None:
    for request_id in ("a", "Trace-1.2_3", "x" * 128):
        for response in every_kind(service, {"X-Request-ID": request_id}):
            assert response.headers["x-request-id"] == request_id, response.status_code


@extension
def http_request_id_minted__every_response_gets_a_fresh_one(service: Api) -> None:
    minted = [response.headers["x-request-id"] for response in every_kind(service, {})]
    for malformed in ("x" * 129, "two words", "semi;colon", ""):
        for response in every_kind(service, {"X-Request-ID": malformed})[-3:]:
            assert response.headers["x-request-id"] != malformed
            minted.append(response.headers["x-request-id"])

    assert all(minted)
    assert len(set(minted)) == len(minted)


@extension
def http_completion_headers__the_backend_and_two_times_are_told(service: Api) -> None:
    responses = [service.chat(max_tokens=1), service.chat(stream=True)]

    for response in responses:
        assert response.headers["x-llm-backend"] == service.entry()["backend"]
        assert float(response.headers["x-llm-queue-ms"]) >= 0
        assert float(response.headers["x-llm-overhead-ms"]) >= 0
    assert responses[-1].headers["cache-control"] == "no-cache"
    assert responses[-1].headers["x-accel-buffering"] == "no"


SMALL_4XX = [
    ("GET", "/nothing", b""),
    ("POST", "/nothing", b'{"a": 1}'),
    ("PUT", CHAT, b'{"a": 1}'),
    ("POST", CHAT, b"{"),
    ("POST", CHAT, b'{"model": "x", "messages": []}'),
]


@openai_api
def http_keep_alive_after_4xx__the_connection_stays_in_step(service: Api) -> None:
    for method, path, body in SMALL_4XX:
        with service.connect() as connection:
            refused = connection.request(method, path, body, headers_of(service))
            assert 400 <= refused.status < 500
            if refused.headers.get("connection", "").lower() == "close":
                continue
            assert connection.request("GET", "/v1/models", headers=service.auth).status == 200


@extension
def http_keep_alive_kept__a_small_4xx_does_not_cost_the_connection(service: Api) -> None:
    with service.connect() as connection:
        for method, path, body in SMALL_4XX:
            refused = connection.request(method, path, body, headers_of(service))
            assert 400 <= refused.status < 500
            assert refused.headers.get("connection", "").lower() != "close"


@openai_api
@given("stream", [None, False, True], ids=["get", "plain", "stream"])
def http_10_client__its_answer_is_not_chunked_and_the_connection_closes(
    service: Api, stream: bool | None
) -> None:
    with service.connect() as connection:
        if stream is None:
            connection.send(connection.head("GET", "/v1/models", service.auth, version="1.0"))
        else:
            body = encode(service.chat_body(max_tokens=2, stream=stream))
            headers = headers_of(service, Content_Length=str(len(body)))
            connection.send(connection.head("POST", CHAT, headers, version="1.0") + body)
        response = connection.read()
        closed = connection.at_end

    assert response.status == 200
    assert "transfer-encoding" not in response.headers
    assert closed
    if stream:
        assert response.body.startswith(b"data: {")
        assert response.body.endswith(b"data: [DONE]\n\n")
    else:
        assert isinstance(json.loads(response.body), dict)


@openai_api
def http_chunked_request__extensions_and_a_split_character_are_read(service: Api) -> None:
    body = json.dumps(service.chat_body("Say 海 and 🐙.", max_tokens=2), ensure_ascii=False).encode()
    cut = body.index("🐙".encode()) + 2
    parts = [body[:10], body[10:cut], body[cut:]]
    with service.connect() as connection:
        connection.send(connection.head("POST", CHAT, headers_of(service, Transfer_Encoding="chunked")))
        for part in parts:
            connection.send(f"{len(part):x};name=value\r\n".encode() + part + b"\r\n")
        connection.send(b"0\r\n\r\n")
        response = connection.read()

    assert response.status == 200, response.body
    expected = ok(service.post(CHAT, service.chat_body("Say 海 and 🐙.", max_tokens=2)))
    assert json.loads(response.body)["usage"]["prompt_tokens"] == expected["usage"]["prompt_tokens"]
