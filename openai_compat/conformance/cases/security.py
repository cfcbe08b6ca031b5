"""What a caller must not reach: keys, files, other hosts, and the metrics' memory."""

from __future__ import annotations

import re
from typing import Any

from openai_compat.conformance.api import Api, error_of
from openai_compat.conformance.check import extension, given, openai_api

SAMPLE = re.compile(
    r'^[a-zA-Z_:][a-zA-Z0-9_:]*(\{([a-zA-Z_][a-zA-Z0-9_]*="(\\.|[^"\\])*",?)*\})? '
    r"([-+]?[0-9.eE+-]+|NaN|[+-]Inf)( [0-9]+)?$"
)
COMMENT = re.compile(r"^# (HELP|TYPE|EOF|UNIT)( .*)?$")


@extension
@given("field", ["api_base", "base_url", "api_key"])
def sec_body_credentials_refused__they_are_never_taken_in_silence(service: Api, field: str) -> None:
    for response in (
        service.chat(**{field: "http://127.0.0.1:1/v1"}),
        service.complete(**{field: "http://127.0.0.1:1/v1"}),
    ):
        if response.status_code == 200:
            assert field in response.headers["x-llm-ignored"]
        else:
            error_of(response, (400, 422))


@openai_api
@given(
    "url",
    [
        "file:///etc/passwd",
        "http://127.0.0.1:1/x.png",
        "/etc/passwd",
        "nonsense",
        "",
        "ftp://127.0.0.1/x",
        None,
        5,
    ],
    ids=repr,
)
def sec_image_urls__they_are_refused_with_no_files_contents(service: Api, url: Any) -> None:
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": url}}]
    response = service.chat(parts)

    error_of(response, (400, 422))
    assert "root:" not in response.text


@openai_api
@given(
    "path",
    [
        "/../../../../etc/passwd",
        "/v1/models/../../../../etc/passwd",
        "/v1/models/..%2f..%2f..%2fetc%2fpasswd",
        "/v1/models/%2e%2e/%2e%2e/etc/passwd",
        "/v1/models/%2fetc%2fpasswd",
        "/v1/models/..%5c..%5cetc%5cpasswd",
        "/v1/models/a%00b",
        "/docs/..%2f..%2fetc%2fpasswd",
        "/static/../../etc/passwd",
        "/v1/models/%252e%252e%252fetc%252fpasswd",
    ],
)
def sec_path_traversal__no_file_is_served_and_nothing_breaks(service: Api, path: str) -> None:
    with service.connect() as connection:
        response = connection.request("GET", path, headers=service.auth)

    assert 400 <= response.status < 500
    assert b"root:" not in response.body


def samples(service: Api) -> dict[str, float]:
    """Every sample of the scrape, by its name with labels."""
    found: dict[str, float] = {}
    for line in service.http.get("/metrics").text.splitlines():
        if line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            found[name] = float(value)
    return found


@extension
def sec_metrics_text__it_is_prometheus_text_and_counts_the_requests(service: Api) -> None:
    before = samples(service)
    for _ in range(3):
        service.assert_alive()
    response = service.http.get("/metrics")
    after = samples(service)

    assert response.headers["content-type"].startswith("text/plain")
    lines = response.text.splitlines()
    assert all(COMMENT.match(line) or SAMPLE.match(line) for line in lines if line), [
        line for line in lines if line and not COMMENT.match(line) and not SAMPLE.match(line)
    ]
    assert any(line.startswith("# HELP ") for line in lines)
    assert any(line.startswith("# TYPE ") for line in lines)
    counted = [
        name
        for name, value in after.items()
        if "request" in name
        and re.search(r"(_total|_count)(\{|$)", name)
        and value - before.get(name, 0) == 3
    ]
    assert counted


@extension
def sec_metrics_labels_bounded__what_callers_make_up_leaves_no_trace(service: Api) -> None:
    samples(service)
    for number in range(20):
        service.chat(model=f"made-up-model-{number}")
    for number in range(5):
        service.http.get(f"/made-up-path-{number}")
        service.http.get(f"/v1/models/made-up-id-{number}")
    with service.connect() as connection:
        connection.request("MADEUP", "/v1/models", headers=service.auth)

    assert not re.search("made-?up", service.http.get("/metrics").text, re.I)
