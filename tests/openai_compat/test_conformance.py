"""The command that tries behaviours on a running server, with three behaviours in place of the real ones."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from openai_compat.__main__ import main
from openai_compat.conformance import run as running

pytestmark = pytest.mark.timeout(180)  # each run is a pytest of its own

CONFTEST = """
def pytest_addoption(parser):
    for name in ("--base-url", "--model", "--token-file"):
        parser.addoption(name)

def pytest_configure(config):
    config.addinivalue_line("markers", "ours: of this service")
"""
CASES = """
import pytest

def test_good__a_good_server_passes(pytestconfig):
    assert pytestconfig.getoption("--model") == "m"

@pytest.mark.parametrize("n", [1, 2])
def test_even__only_even_numbers_pass(n):
    assert n % 2 == 0, f"{n} is odd"

def test_locked__needs_a_key(pytestconfig):
    file = pytestconfig.getoption("--token-file")
    if file is None:
        pytest.skip("needs --api-key")
    with open(file) as text:
        assert text.read() == "k"

@pytest.mark.ours
def test_special__only_this_service_does_that():
    pass
"""


class _Server(BaseHTTPRequestHandler):
    backends = False

    def do_GET(self) -> None:
        known = self.path == "/v1/models" or (self.backends and self.path == "/v1/backends")
        body = b'{"backends": []}' if known else b"{}"
        self.send_response(200 if known else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class _OurServer(_Server):
    backends = True


@pytest.fixture(params=[_Server])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), request.param)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tests" / "conformance"
    folder.mkdir(parents=True)
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_params.py").write_text(CASES)
    monkeypatch.setattr(running, "CASES", folder)
    return folder


def results(output: str) -> dict[str, tuple[str, str]]:
    return {one["id"]: (one["result"], one["seen"]) for one in json.loads(output)["behaviours"]}


@pytest.mark.usefixtures("cases")
def test_each_behaviour_is_passed_failed_or_not_applicable(
    url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    code = main(["conformance", "--base-url", url, "--model", "m", "--json"])

    found = results(capfd.readouterr().out)
    assert code == 1
    assert found["good"] == ("passed", "")
    assert found["even"][0] == "failed"
    assert found["even"][1].startswith("1 of 2 checks: [1] 1 is odd")
    assert found["locked"] == ("not applicable", "needs --api-key")
    assert found["special"] == ("not applicable", "only this service promises it")


@pytest.mark.usefixtures("cases")
@pytest.mark.parametrize("url", [_OurServer], indirect=True)
def test_extensions_are_tried_on_this_service(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    main(["conformance", "--base-url", url, "--model", "m", "--api-key", "k"])

    table = capfd.readouterr().out
    assert "special * passed" in table
    assert "3 passed, 1 failed, 0 not applicable" in table


@pytest.mark.usefixtures("cases")
def test_a_server_that_answers_nobody_is_neither_passed_nor_failed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    code = main(["conformance", "--base-url", "http://127.0.0.1:9", "--model", "m"])

    assert code == 2
    assert "cannot be reached" in capfd.readouterr().err


def test_runs_are_compared_where_they_differ(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def write(name: str, even: str, special: str) -> str:
        entries = [
            {"id": "good", "level": "openai", "says": "good", "result": "passed", "seen": ""},
            {"id": "even", "level": "openai", "says": "a | b", "result": even, "seen": "1 is odd"},
            {"id": "special", "level": "extension", "says": "special", "result": special, "seen": ""},
        ]
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps({"behaviours": entries}))
        return str(file)

    main(
        ["conformance-table", write("ours", "passed", "passed"), write("theirs", "failed", "not applicable")]
    )

    table = capfd.readouterr().out
    assert "| ours | 2 | 0 | 0 |\n| theirs | 1 | 1 | 0 |" in table
    assert "| `even` a \\| b | ✓ | ✗ |" in table
    assert "`good`" not in table
    assert "special" not in table
    assert "**theirs**\n\n- `even`: 1 is odd" in table
