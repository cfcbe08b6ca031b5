"""The command that tries behaviours on a running server, with a few in place of the real ones."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from openai_compat.__main__ import main
from openai_compat.conformance import run as running
from openai_compat.conformance.api import Api, offered
from openai_compat.conformance.cases import all_checks
from openai_compat.conformance.check import Check, extension, fail, given, openai_api, raises, within
from openai_compat.conformance.seen import seen_in

ROOT = Path(__file__).parents[2]


@openai_api
def good__a_good_server_passes(service: Api) -> None:
    assert service.model == "m"


@openai_api
@given("n", [1, 2])
@given("letter", ["a", "b"], ids=str)
def even__only_even_numbers_pass(service: Api, letter: str, n: int) -> None:
    assert n % 2 == 0


@openai_api
def locked__needs_a_key(guarded: Api) -> None:
    assert guarded.token == "k"


@openai_api
def choosy__some_do_it_and_some_say_that_they_do_not(service: Api) -> None:
    offered(service.http.get("/refuses"))


@openai_api
@within(0.05)
def slow__the_rest_does_not_wait(service: Api) -> None:
    forever.wait()


@openai_api
@within(0.5)
def endless__the_server_is_left(service: Api) -> None:
    with service.http.stream("GET", "/endless") as response:
        for _ in response.iter_raw():
            pass


@openai_api
async def later__a_coroutine_is_run(service: Api) -> None:
    fail("it ran")


@extension
def special__only_this_service_does_that(service: Api) -> None:
    assert service.http.get("/v1/backends").status_code == 200


forever = threading.Event()
left = threading.Event()
HERE = [value for value in list(globals().values()) if hasattr(value, "_conformance_check")]


class _Server(BaseHTTPRequestHandler):
    answers: ClassVar[dict[str, tuple[int, bytes]]] = {
        "/v1/models": (200, b"{}"),
        "/refuses": (501, b'{"error": {"message": "not here", "type": "t", "code": null, "param": null}}'),
    }

    def do_GET(self) -> None:
        if self.path == "/endless":
            self.go_on()
            return
        status, body = self.answers.get(self.path, (404, b"{}"))
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def go_on(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            while not forever.wait(0.01):
                self.wfile.write(b": still here\n\n")
        except OSError:
            left.set()

    def log_message(self, *_: object) -> None:
        pass


class _OurServer(_Server):
    answers = _Server.answers | {"/v1/backends": (200, b'{"backends": []}')}


class _Pretender(_Server):
    answers = _Server.answers | {"/v1/backends": (200, b"[]")}


@pytest.fixture(params=[_Server])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), request.param)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    forever.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def few_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [function._conformance_check for function in HERE]
    monkeypatch.setattr(running, "all_checks", lambda: checks)
    monkeypatch.setattr(running, "left_out", dict)
    forever.clear()
    left.clear()


def results(output: str) -> dict[str, tuple[str, str]]:
    return {one["id"]: (one["result"], one["seen"]) for one in json.loads(output)["behaviours"]}


def test_each_behaviour_is_passed_failed_not_offered_or_not_tried(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["conformance", "--base-url", url, "--model", "m", "--json"])

    found = results(capsys.readouterr().out)
    assert code == 1
    assert found["good"] == ("passed", "")
    assert found["even"][0] == "failed"
    assert found["even"][1].startswith("2 of 4 checks: [1-a] ")
    assert found["locked"] == ("not tried", "needs --api-key")
    assert found["choosy"] == ("not offered", "501 not here")
    assert found["slow"] == ("failed", "no end within 0.05 s")
    assert found["endless"] == ("failed", "no end within 0.5 s")
    assert left.wait(10), "the server goes on"
    assert found["later"] == ("failed", "it ran")
    assert found["special"] == ("not tried", "only this service promises it")


def test_what_only_this_service_promises_cannot_fail_elsewhere(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(
        ["conformance", "--base-url", url, "--model", "m", "--extensions", "--only", "special", "--json"]
    )

    assert code == 0
    assert results(capsys.readouterr().out)["special"][0] == "not offered"


@pytest.mark.parametrize("url", [_OurServer], indirect=True)
def test_extensions_are_tried_on_this_service(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["conformance", "--base-url", url, "--model", "m", "--api-key", "k"])

    table = capsys.readouterr().out
    assert "special * passed" in table
    assert "3 passed, 4 failed, 1 not offered, 0 not tried" in table


@pytest.mark.parametrize("url", [_Pretender], indirect=True)
def test_a_list_where_this_service_has_an_object_is_another_server(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["conformance", "--base-url", url, "--model", "m", "--only", "special", "--json"])

    assert json.loads(capsys.readouterr().out)["is_this_service"] is False


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("http://127.0.0.1:9", "cannot be reached"),
        ("127.0.0.1:9", "is no address"),
        ("ftp://host", "is no address"),
    ],
)
def test_a_server_that_cannot_be_asked_is_neither_passed_nor_failed(
    capsys: pytest.CaptureFixture[str], address: str, told: str
) -> None:
    code = main(["conformance", "--base-url", address, "--model", "m"])

    assert code == 2
    assert told in capsys.readouterr().err


def test_a_name_that_no_behaviour_has_is_told(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["conformance", "--base-url", url, "--model", "m", "--only", "nonsense"])

    assert code == 2
    assert "no behaviour's name holds 'nonsense'" in capsys.readouterr().err


def test_without_assertions_nothing_is_tried() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-O",
            "-m",
            "openai_compat",
            "conformance",
            "--base-url",
            "http://x",
            "--model",
            "m",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 2
    assert "without -O" in done.stderr


def test_the_checks_need_no_tool_of_tests() -> None:
    script = (
        "import sys\n"
        "sys.modules['pytest'] = None\n"
        "from openai_compat.conformance.cases import all_checks\n"
        "import openai_compat.conformance.run, openai_compat.conformance.compare\n"
        "assert len(all_checks()) > 100\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'tests', 'backends', 'models', 'fastapi'}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_each_check_is_named_once_and_needs_what_a_server_can_be() -> None:
    checks = all_checks()
    names = [(check.level, check.function.__name__) for check in checks]

    assert len(set(names)) == len(names)
    for check in checks:
        assert check.variants
        assert set(check.needs) <= {"service", "guarded", "limited", "small", "sdk"}, check.function.__name__


def _told(check: Any) -> str:
    with raises(BaseException) as caught:
        check()
    return seen_in(caught.value)


def test_a_bare_assertion_is_told_with_what_its_parts_came_to(tmp_path: Path) -> None:
    # In a file of its own: pytest gives the assertions of tests messages.
    file = tmp_path / "bare.py"
    file.write_text(
        "asked = []\n"
        "def answer():\n    asked.append(1)\n    return 5\n"
        "def compared():\n    body = {'usage': 4}\n    assert body['usage'] == answer()\n"
        "def whole():\n    text = ''\n    assert (\n        text\n    )\n"
        "def missing():\n    body = {}\n    assert all(body[name] for name in 'ab' if False) and body\n"
    )
    bare = runpy.run_path(str(file))

    assert _told(bare["compared"]) == "body['usage'] == answer(); body['usage'] is 4"
    assert _told(bare["whole"]) == "text; text is ''"
    assert _told(bare["missing"]) == "all((body[name] for name in 'ab' if False)) and body"
    assert bare["asked"] == [1], "to tell of a failure nothing may be asked again"


def test_other_exceptions_are_told_by_name_and_messages_as_they_are() -> None:
    def broken() -> None:
        json.loads("{")

    assert _told(broken).startswith("JSONDecodeError: Expecting")
    assert _told(lambda: fail("a\n message")) == "a message"


def test_a_block_that_must_raise_and_does_not_fails() -> None:
    with (
        pytest.raises(AssertionError, match="KeyError or ValueError was expected"),
        raises(KeyError, ValueError),
    ):
        pass


def test_two_givens_are_tried_in_every_combination() -> None:
    check: Check = even__only_even_numbers_pass._conformance_check  # type: ignore[attr-defined]

    assert [variant.label for variant in check.variants] == ["1-a", "1-b", "2-a", "2-b"]


def test_runs_are_compared_behaviour_by_behaviour(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def write(name: str, even: str, special: str) -> str:
        entries = [
            {"id": "good", "level": "openai", "says": "good", "result": "passed", "seen": ""},
            {"id": "even", "level": "openai", "says": "a | b", "result": even, "seen": "1 is odd"},
            {"id": "special", "level": "extension", "says": "special", "result": special, "seen": ""},
        ]
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps({"behaviours": entries}))
        return str(file)

    main(["conformance-table", write("ours", "passed", "passed"), write("theirs", "failed", "not offered")])

    table = capsys.readouterr().out
    assert "| OpenAI's API | ours | 2 | 0 | 0 | 0 |\n| OpenAI's API | theirs | 1 | 1 | 0 | 0 |" in table
    assert "| This project's extensions | theirs | 0 | 0 | 1 | 0 |" in table
    assert "| `even` a \\| b | ✓ | ✗ |" in table
    assert "| `good` good | ✓ | ✓ |" in table
    assert "| `special` special | ✓ | – |" in table
    assert "**theirs**\n\n- `even`: 1 is odd" in table
    assert "**ours**" not in table


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read: no such file"),
        ("# a page", "is not what"),
        ("[]", "is not what"),
        (
            '{"behaviours": [{"id": "a", "level": "openai", "result": "odd", "says": "b", "seen": ""}]}',
            "is not what",
        ),
    ],
)
def test_a_file_that_holds_no_run_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, says: str
) -> None:
    file = tmp_path / "run.json"
    if text is not None:
        file.write_text(text)

    code = main(["conformance-table", str(file)])

    assert code == 2
    assert f"{file} {says}" in capsys.readouterr().err


def test_two_runs_of_one_name_are_not_taken_for_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / folder / "ours.json" for folder in ("monday", "tuesday")]
    for file in files:
        file.parent.mkdir()
        file.write_text('{"behaviours": []}')

    code = main(["conformance-table", *map(str, files)])

    assert code == 2
    assert "another of the files is called 'ours'" in capsys.readouterr().err


@pytest.mark.parametrize(("status", "fields"), [(200, {"ignore_eos": True}), (400, {}), (422, {})])
def test_long_answers_are_asked_for_by_ignore_eos_where_a_server_takes_it(
    status: int, fields: dict[str, Any]
) -> None:
    api = Api("http://server", "m")
    api.http.close()
    api.http = httpx.Client(
        base_url="http://server", transport=httpx.MockTransport(lambda _: httpx.Response(status, json={}))
    )

    with api.http:
        assert api.unending == fields
