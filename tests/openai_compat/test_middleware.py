"""The layers together: their order, and what each request costs."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Query
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Message

from backends.errors import BackendFailed, Overloaded
from openai_compat.access_log import LOGGER, open_access_log
from openai_compat.config import WireConfig
from openai_compat.metrics import Metrics
from openai_compat.middleware import PASS_ON, layers
from openai_compat.record import record_of

KEY = {"Authorization": "Bearer right"}


class Service:
    """A small app behind the layers, its client and its log."""

    def __init__(self, folder: Path, **knobs: Any) -> None:
        self.seen: list[str] = []
        self.log = io.StringIO()
        open_access_log(self.log)
        self.metrics = Metrics(directory=folder)
        knobs = {"api_tokens": (b"right", b"other"), "rate_limit_rps": 0.001, "rate_limit_burst": 3, **knobs}
        config = WireConfig(default_backend="fake", **knobs)
        self.app = FastAPI(middleware=layers(config, metrics=self.metrics), exception_handlers=PASS_ON)
        self._add_routes()

    def client(self, peer: str = "9.9.9.9") -> httpx.AsyncClient:
        """A client at this address."""
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False, client=(peer, 5000))
        return httpx.AsyncClient(transport=transport, base_url="http://test")

    def lines(self) -> list[dict[str, Any]]:
        """The access log."""
        return [json.loads(line) for line in self.log.getvalue().splitlines()]

    def _add_routes(self) -> None:
        app = self.app

        @app.post("/v1/chat/completions")
        async def chat(request: Request) -> Response:
            body = await request.body()
            self.seen.append(body.decode())
            if body == b"bug":
                raise ValueError("secret")
            if body == b"full":
                raise Overloaded("Concurrency limit exceeded", retry_after_s=4.0)
            record = record_of(request.scope)
            return JSONResponse({"principal": record.principal, "id": record.request_id})

        @app.get("/v1/models")
        async def models(backend: int = Query(0)) -> dict[str, int]:
            return {"backend": backend}

        @app.get("/v1/models/{id:path}")
        async def model(id: str) -> dict[str, str]:
            return {"id": id}

        @app.post("/v1/models/load")
        async def load() -> None: ...

        @app.get("/health")
        async def health() -> dict[str, str]:
            return {"status": "healthy"}

        @app.get("/metrics")
        async def metrics() -> Response:
            return Response(self.metrics.render(), media_type="text/plain")

        @app.get("/stream")
        async def stream() -> Response:
            async def chunks() -> AsyncIterator[bytes]:
                yield b"one"
                raise BackendFailed("half way")

            return StreamingResponse(chunks())


def scope_of(method: str, path: str) -> dict[str, Any]:
    """The scope of a request, for tests that look at ASGI messages."""
    return {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "client": ("9.9.9.9", 1),
        "headers": [],
    }


@pytest.fixture(autouse=True)
def logger_as_before() -> Iterator[None]:
    """The access log is the process's own; each test gives it back as it was."""
    logger = logging.getLogger(LOGGER)
    before = (logger.handlers[:], logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """With two tokens and a burst of three."""
    made = Service(tmp_path)
    yield made
    made.metrics.close()


async def test_every_answer_names_its_request(service: Service) -> None:
    async with service.client() as http:
        answers = [
            await http.get("/health"),
            await http.get("/nope"),
            await http.put("/health"),
            await http.get("/v1/models"),
            await http.options("/v1/models"),
            await http.post("/v1/chat/completions", headers=KEY, content=b"bug"),
        ]

    assert [answer.status_code for answer in answers] == [200, 404, 405, 401, 204, 500]
    assert len({answer.headers["x-request-id"] for answer in answers}) == len(answers)


async def test_the_callers_id_comes_back_and_reaches_the_route(service: Service) -> None:
    async with service.client() as http:
        answer = await http.post(
            "/v1/chat/completions", headers={**KEY, "X-Request-ID": "mine.1"}, content=b"x"
        )

    assert answer.headers.get_list("x-request-id") == ["mine.1"]
    assert answer.json()["id"] == "mine.1"


async def test_an_unknown_path_or_method_is_told_before_the_token(service: Service) -> None:
    async with service.client() as http:
        unknown = await http.post("/v1/nope")
        wrong = await http.get("/v1/chat/completions")
        no_id = await http.get("/v1/models/load")

    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "not_found")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "OPTIONS, POST")
    assert no_id.status_code == 405


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models",
        "/v1/models/",
        "//v1//models",
        "/v1/models/a/b",
        "/v1//models//a/b/",
        "/docs",
        "/openapi.json",
    ],
)
async def test_a_protected_route_is_protected_however_it_is_spelled(service: Service, path: str) -> None:
    async with service.client() as http:
        assert (await http.get(f"http://test{path}")).status_code == 401
        assert (await http.get(f"http://test{path}", headers=KEY)).status_code == 200


async def test_a_token_elsewhere_does_not_count(service: Service) -> None:
    async with service.client() as http:
        http.cookies.set("Authorization", "Bearer right")
        answer = await http.post("/v1/chat/completions?token=right", json={"api_key": "right"})

    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_401_404_405_cost_no_token_and_415_413_do(service: Service) -> None:
    async with service.client() as http:
        for _ in range(5):
            await http.get("/v1/models", headers={"Authorization": "Bearer wrong"})
            await http.get("/nope", headers=KEY)
            await http.put("/v1/models", headers=KEY)
        kind = await http.post(
            "/v1/chat/completions", headers={**KEY, "Content-Type": "text/plain"}, content=b"x"
        )
        size = await http.post("/v1/chat/completions", headers={**KEY, "Content-Length": "99999999"})
        schema = await http.get("/v1/models?backend=x", headers=KEY)
        spent = await http.get("/v1/models", headers=KEY)

    assert [kind.status_code, size.status_code, schema.status_code] == [415, 413, 422]
    assert spent.status_code == 429
    assert spent.json()["detail"] == "Rate limit exceeded"
    assert int(spent.headers["retry-after"]) >= 1
    assert "retry-after-ms" in spent.headers


async def test_the_rate_is_told_before_size_and_type(service: Service) -> None:
    async with service.client() as http:
        for _ in range(3):
            await http.get("/v1/models", headers=KEY)
        answer = await http.post("/v1/chat/completions", headers={**KEY, "Content-Length": "99999999"})

    assert answer.status_code == 429


async def test_each_token_has_its_own_bucket_and_probes_have_none(service: Service) -> None:
    async with service.client() as http:
        for _ in range(4):
            last = await http.get("/v1/models", headers=KEY)
        other = await http.get("/v1/models", headers={"Authorization": "Bearer other"})
        probes = [(await http.get(path)).status_code for path in ("/health", "/metrics") for _ in range(10)]

    assert (last.status_code, other.status_code) == (429, 200)
    assert set(probes) == {200}


async def test_without_tokens_the_address_is_the_principal(tmp_path: Path) -> None:
    service = Service(tmp_path, api_tokens=(), trusted_proxies=("10.0.0.0/8",))
    async with service.client("10.1.1.1") as proxy, service.client("8.8.8.8") as direct:
        via = await proxy.post("/v1/chat/completions", headers={"X-Forwarded-For": "1.2.3.4"}, content=b"x")
        straight = await direct.post(
            "/v1/chat/completions", headers={"X-Forwarded-For": "1.2.3.4"}, content=b"x"
        )
    service.metrics.close()

    assert via.json()["principal"] == "ip:1.2.3.4"
    assert straight.json()["principal"] == "ip:8.8.8.8"


async def test_metrics_can_ask_for_a_token_but_are_never_limited(tmp_path: Path) -> None:
    service = Service(tmp_path, metrics_auth=True)
    async with service.client() as http:
        closed = await http.get("/metrics")
        opened = [(await http.get("/metrics", headers=KEY)).status_code for _ in range(10)]
    service.metrics.close()

    assert closed.status_code == 401
    assert set(opened) == {200}


async def test_head_is_get_without_a_body(service: Service) -> None:
    async with service.client() as http:
        get, head = await http.get("/health"), await http.head("/health")
        no_get = await http.head("/v1/chat/completions")

    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == get.headers["content-length"]
    assert no_get.status_code == 405


async def test_nothing_of_a_head_answer_reaches_the_server(service: Service) -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await service.app(scope_of("HEAD", "/health"), receive, send)

    assert b"".join(message.get("body", b"") for message in sent) == b""
    assert sent[-1]["type"] == "http.response.body"


async def test_options_needs_no_key_and_names_the_methods(service: Service) -> None:
    async with service.client() as http:
        known = await http.options("/v1/chat/completions/")
        unknown = await http.options("/nope")

    assert (known.status_code, known.headers["allow"]) == (204, "OPTIONS, POST")
    assert unknown.status_code == 404


async def test_errors_carry_cors_headers_when_it_is_on(tmp_path: Path) -> None:
    service = Service(tmp_path, cors_origins=("https://a.example",))
    async with service.client() as http:
        answer = await http.get("/v1/models", headers={"Origin": "https://a.example"})
        preflight = await http.options(
            "/v1/chat/completions",
            headers={"Origin": "https://a.example", "Access-Control-Request-Method": "POST"},
        )
    service.metrics.close()

    assert answer.status_code == 401
    assert answer.headers["access-control-allow-origin"] == "https://a.example"
    assert (preflight.status_code, "POST" in preflight.headers["access-control-allow-methods"]) == (204, True)


async def test_cors_is_off_by_default(service: Service) -> None:
    async with service.client() as http:
        answer = await http.get("/health", headers={"Origin": "https://a.example"})

    assert not any(name.startswith("access-control") for name in answer.headers)


async def test_a_bug_is_a_500_that_says_nothing_and_stands_in_the_log(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    async with service.client() as http:
        answer = await http.post("/v1/chat/completions", headers=KEY, content=b"bug")

    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert answer.json()["error"]["type"] == "server_error"
    assert "secret" in caplog.text
    assert answer.headers["x-request-id"] in caplog.text


async def test_an_error_of_the_tree_keeps_its_status_and_is_not_logged_as_a_bug(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    async with service.client() as http:
        answer = await http.post("/v1/chat/completions", headers=KEY, content=b"full")

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "4")
    assert "Traceback" not in caplog.text


async def test_a_chunked_body_over_the_limit_is_413(tmp_path: Path) -> None:
    service = Service(tmp_path, max_body_bytes=10)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"12345"

    async with service.client() as http:
        answer = await http.post("/v1/chat/completions", headers=KEY, content=chunks())
    service.metrics.close()

    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
    assert service.seen == []


async def test_a_body_that_never_ends_is_408(tmp_path: Path) -> None:
    service = Service(tmp_path, request_timeout_s=0.02)

    async def beginning() -> AsyncIterator[bytes]:
        yield b"12345"
        await asyncio.Event().wait()

    async with service.client() as http:
        answer = await http.post("/v1/chat/completions", headers=KEY, content=beginning())
    service.metrics.close()

    assert (answer.status_code, answer.json()["error"]["code"]) == (408, "timeout")
    assert service.seen == []


async def test_the_log_has_one_line_per_request_without_key_or_body(service: Service) -> None:
    async with service.client() as http:
        await http.post("/v1/chat/completions", headers=KEY, content=b"prompt-text")
        await http.get("/nope/with/secret")
    chat, unknown = service.lines()

    assert (chat["route"], chat["status"], chat["principal"][:4]) == ("/v1/chat/completions", 200, "key:")
    assert chat["bytes"] > 0
    assert (unknown["status"], unknown["route"], unknown["error"]) == (404, None, "not_found")
    assert not any(word in service.log.getvalue() for word in ("right", "prompt-text", "secret"))


async def test_requests_are_counted_under_their_template(service: Service) -> None:
    async with service.client() as http:
        await http.get("/v1/models/some/id", headers=KEY)
        await http.get("/made/up")
        await http.request("BREW", "/health")
        text = (await http.get("/metrics")).text

    assert 'method="GET",route="/v1/models/{id:path}",status="200"} 1.0' in text
    assert 'method="GET",route="unknown",status="404"} 1.0' in text
    assert 'method="OTHER",route="/health",status="405"} 1.0' in text
    assert "some/id" not in text
    assert "BREW" not in text


async def test_an_error_after_the_headers_breaks_the_connection(service: Service) -> None:
    async with service.client() as http:
        answer = await http.get("/stream", headers=KEY)

    # The test transport hides the break; what matters is that no second answer was made up.
    assert answer.content in (b"one", b"")
    assert service.lines()[0]["error"] == "backend_error"


async def test_a_client_that_leaves_while_sending_is_no_error(service: Service) -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = scope_of("POST", "/v1/chat/completions")
    scope["headers"] = [(b"authorization", b"Bearer right"), (b"content-length", b"5")]
    await service.app(scope, receive, send)

    assert sent == []
    assert (service.lines()[0]["status"], service.lines()[0]["cancelled"]) == (499, "receiving")


async def test_other_protocols_pass_through(service: Service) -> None:
    sent: list[Message] = []
    messages: list[Message] = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    await service.app({"type": "lifespan", "state": {}}, receive, send)

    assert [message["type"] for message in sent] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]
