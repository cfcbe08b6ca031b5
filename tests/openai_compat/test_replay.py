"""`python -m openai_compat replay`: from the file to the exit code, against the real application over a real socket."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.provenance import Provenance
from backends.types import ChoiceFinished, Event, Finished, GenerationRequest, Started, TextDelta, Usage
from openai_compat.__main__ import main
from openai_compat.receipts.seal import seal_of
from openai_compat.replay.run import NOT_ANSWERED, OTHER, SAME, UNEXPLAINED, UNUSABLE
from tests.openai_compat.embedding_backend import EmbeddingBackend, embed, embedding_app, pack
from tests.openai_compat.scripted_backend import ScriptedBackend
from tests.openai_compat.wire import Reply, call, card, chat, make_app

EXACT = Provenance(engine="e", engine_version="1", model_sha256="aa" * 32, repeats="exact", machine="m")
Reader = Callable[[], tuple[str, str]]


def saying(text: str = "Hello!", told: Provenance = EXACT, **usage: int) -> ScriptedBackend:
    """A backend that answers every choice with the text."""

    def script(request: GenerationRequest) -> list[Event]:
        indexes = range(request.n * len(request.prompts))
        return [
            Started(0.0, 5),
            *(TextDelta(index, text) for index in indexes),
            *(ChoiceFinished(index, "stop") for index in indexes),
            Finished(Usage(usage.get("prompt_tokens", 5), 2), provenance=told),
        ]

    return ScriptedBackend(script=script)


def changed(**fields: Any) -> Provenance:
    return msgspec.structs.replace(EXACT, **fields)


@contextmanager
def served(app: Any, *, token: str | None = None) -> Iterator[str]:
    """The address of a server that hands each POST to the application."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if token is not None and self.headers["authorization"] != f"Bearer {token}":
                self.answer(401, b'{"error": {"message": "Missing Authorization header"}}')
                return
            reply = asyncio.run(call(app, "POST", self.path, body))
            self.answer(reply.status, reply.body)

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Replayed:
    """What the command did."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.text = out + err
        self.document: Any = json.loads(out) if out.startswith("{") else None

    @property
    def names(self) -> list[str]:
        return [reason["name"] for reason in self.document["reasons"]]

    @property
    def notes(self) -> list[str]:
        return [note["name"] for note in self.document["notes"]]


@pytest.fixture
def replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Replayed]:
    """Writes what is given into a file and replays it."""

    def run(content: Any, base_url: str = "http://127.0.0.1:1", *options: str) -> Replayed:
        file = tmp_path / "receipt.json"
        file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        capsys.readouterr()
        code = main(["replay", str(file), "--base-url", base_url, "--json", *options])
        return Replayed(code, *capsys.readouterr())

    return run


Replay = Callable[..., Replayed]


def answered(backend: ScriptedBackend, make: Callable[..., Awaitable[Reply]] = chat, **fields: Any) -> Any:
    return asyncio.run(make(make_app(backend), receipt=True, **fields)).json


def test_the_same_text_is_exit_0(replay: Replay) -> None:
    answer = answered(saying())
    with served(make_app(saying())) as url:
        done = replay(answer, url)

    assert (done.code, done.document["result"]) == (SAME, "same text")
    assert done.names == done.notes == []


def test_a_receipt_alone_suffices(replay: Replay) -> None:
    receipt = answered(saying())["llm_receipt"]
    with served(make_app(saying())) as url:
        assert replay(receipt, url).code == SAME
    with served(make_app(saying("Hullo!"))) as url:
        done = replay(receipt, url)

    assert done.code == UNEXPLAINED
    assert "no text to compare" in done.document["difference"]


def test_a_stream_that_was_kept_as_it_came_suffices(replay: Replay) -> None:
    stream = asyncio.run(chat(make_app(saying("Hello there")), receipt=True, stream=True, n=2)).body
    with served(make_app(saying("Hello there"))) as url:
        assert replay(stream, url).code == SAME
    with served(make_app(saying("Hello three"))) as url:
        done = replay(b": keep-alive\n\n" + stream, url)

    assert done.code == UNEXPLAINED
    assert "character 8" in done.document["difference"]


def test_what_is_sent_is_the_request_with_what_took_effect(replay: Replay) -> None:
    app = make_app(saying(), cards=[card(sampling={"top_p": 0.5, "stop": ["x"]}, aliases=["a"])])
    answer = asyncio.run(
        chat(app, receipt=True, model="a", max_completion_tokens=9, top_k=-1, stream=True, user="me")
    )
    sampling = answer.chunks[-1]["llm_receipt"]["sampling"]
    backend = saying()
    with served(make_app(backend)) as url:
        replay(answer.body, url)
    (sent,) = backend.requests

    assert (sent.model, sent.stream) == ("tiny", False)
    assert (sent.sampling.top_p, sent.sampling.stop) == (0.5, ("x",))
    assert (sent.sampling.max_tokens, sent.sampling.top_k) == (9, 0)
    assert sent.sampling.seed == sampling["seed"] is not None


def test_another_text_shows_where_it_begins(replay: Replay) -> None:
    answer = answered(saying("The quick brown fox"))
    with served(make_app(saying("The quick\x1b[31m red fox"))) as url:
        done = replay(answer, url)

    assert (done.code, done.names) == (UNEXPLAINED, ["unexplained"])
    assert "choice 0 differs at character 9" in done.document["difference"]
    assert "\x1b" not in done.text


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ({"model_sha256": "bb" * 32}, "model_file"),
        ({"engine": "other"}, "engine"),
        ({"engine_version": "2"}, "engine_version"),
        ({"machine": "n"}, "machine"),
        ({"context_length": 8}, "context_length"),
        ({"prompt_sha256": "cc" * 32}, "prompt"),
        ({"model_revision": "main2"}, "model_revision"),
        ({"provider_model": "p2"}, "provider_model"),
        ({"system_fingerprint": "fp2"}, "system_fingerprint"),
        ({"used": {"max_tokens": 3}}, "sampling"),
        ({"repeats": "likely"}, "not_exact"),
        ({"repeats": "no"}, "not_deterministic"),
    ],
)
def test_why_a_text_is_another_one_has_a_name(replay: Replay, told: dict[str, Any], name: str) -> None:
    before = changed(
        context_length=9,
        prompt_sha256="dd" * 32,
        model_revision="main",
        provider_model="p",
        system_fingerprint="fp",
    )
    answer = answered(saying("one", before), max_tokens=5)
    with served(make_app(saying("two", msgspec.structs.replace(before, **told)))) as url:
        done = replay(answer, url)

    assert (done.code, done.names) == (OTHER, [name])


def test_what_changed_and_made_no_difference_is_a_note(replay: Replay) -> None:
    answer = answered(saying())
    with served(make_app(saying(told=changed(engine_version="2")))) as url:
        done = replay(answer, url)

    assert (done.code, done.names, done.notes) == (SAME, [], ["engine_version"])


def test_what_is_not_known_is_no_reason(replay: Replay) -> None:
    answer = answered(saying("one", changed(model_sha256=None)))
    with served(make_app(saying("two"))) as url:
        assert replay(answer, url).names == ["unexplained"]


def test_other_prompt_tokens_are_a_reason_where_their_digest_is_not_known(replay: Replay) -> None:
    answer = answered(saying("one"))
    with served(make_app(saying("two", prompt_tokens=6))) as url:
        assert replay(answer, url).names == ["prompt"]


def test_draws_without_a_seed_are_a_reason(replay: Replay) -> None:
    told = changed(repeats="no", why_not="nobody promises it")
    cards = [card(sources={"litellm": {"name": "openai/x"}})]

    def cloud(text: str) -> Any:
        backend = saying(text, told)
        backend.kind = "litellm"
        return make_app(backends={"litellm": backend}, cards=cards, default_backend="litellm")

    answer = asyncio.run(chat(cloud("one"), receipt=True)).json
    with served(cloud("two")) as url:
        done = replay(answer, url)

    assert (done.code, done.names) == (OTHER, ["unseeded", "not_deterministic"])
    assert "nobody promises it" in done.text


def test_a_cloud_is_asked_what_it_was_asked_before_and_no_default(replay: Replay) -> None:
    backend = saying()
    backend.kind = "litellm"
    app = make_app(
        backends={"litellm": backend},
        cards=[card(sources={"litellm": {"name": "openai/x"}})],
        default_backend="litellm",
    )
    answer = asyncio.run(chat(app, receipt=True, top_p=0.3)).json
    with served(app) as url:
        replay(answer, url)

    assert backend.requests[1].sampling.explicit == {"top_p"}


def test_the_answer_of_a_fallback_is_asked_of_the_model_that_gave_it(replay: Replay) -> None:
    answer = answered(saying())
    receipt = answer["llm_receipt"]
    receipt["request"]["model"] = "first"
    receipt["sha256"] = seal_of(receipt)
    with served(make_app(saying())) as url:
        assert replay(answer, url).code == SAME


def test_a_text_that_was_edited_beside_its_receipt_is_told(replay: Replay) -> None:
    answer = answered(saying("one"))
    answer["choices"][0]["message"]["content"] = "won"
    with served(make_app(saying("two"))) as url:
        done = replay(answer, url)

    assert "not the one that the receipt is of" in done.document["difference"]


def test_a_receipt_that_was_edited_is_told_and_replayed_all_the_same(replay: Replay) -> None:
    answer = answered(saying("one"))
    answer["llm_receipt"]["request"]["messages"][0]["content"] = "Ho"
    with served(make_app(saying("one"))) as url:
        same = replay(answer, url)
    with served(make_app(saying("two"))) as url:
        other = replay(answer, url)

    assert (same.code, same.notes) == (SAME, ["edited"])
    assert (other.code, other.names) == (OTHER, ["edited"])


def test_a_server_without_receipts_is_compared_by_its_text(replay: Replay) -> None:
    answer = answered(saying("one"))

    class Bare(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            body = {key: value for key, value in answer.items() if key != "llm_receipt"}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: Any) -> None:
            pass

    with listening(Bare) as url:
        done = replay(answer, url)

    assert (done.code, done.notes) == (SAME, ["no_receipt"])


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("status", "body", "name"),
    [
        (401, b'{"error": {"message": "no"}}', "unauthorized"),
        (404, b"<html>", "not_found"),
        (400, b'{"error": "x"}', "refused"),
        (422, b"[]", "refused"),
        (429, b"", "busy"),
        (503, b"", "busy"),
        (504, b"", "timeout"),
        (500, b"\xff", "failed"),
        (302, b"", "refused"),
        (200, b"<html>", "failed"),
        (200, b"[" * 100_000, "failed"),
        (200, b"[1]", "failed"),
        (200, b'{"choices": 5}', "failed"),
        (200, b'{"choices": [{"index": "x"}]}', "failed"),
    ],
)
def test_a_server_that_does_not_answer_is_exit_3(replay: Replay, status: int, body: bytes, name: str) -> None:
    asked: list[str] = []

    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            if status == 302:
                self.send_header("location", "/elsewhere")
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST

        def log_message(self, *_: Any) -> None:
            pass

    with listening(Refusing) as url:
        done = replay(answered(saying()), url)

    assert (done.code, done.names) == (NOT_ANSWERED, [name])
    assert asked == ["/v1/chat/completions"]


@pytest.mark.parametrize(
    "base_url",
    ["http://127.0.0.1:1", "http://no-such-host.invalid", "file:///etc", "nonsense", "http://[", ""],
)
def test_an_address_where_nobody_is_is_exit_3(replay: Replay, base_url: str) -> None:
    done = replay(answered(saying()), base_url)

    assert (done.code, done.names) == (NOT_ANSWERED, ["unreachable"])


@pytest.mark.parametrize("key", ["a\nb", "schlüssel→"])
def test_a_key_that_no_header_can_hold_is_exit_3(replay: Replay, key: str) -> None:
    with served(make_app(saying())) as url:
        done = replay(answered(saying()), url, "--api-key", key)

    assert done.code == NOT_ANSWERED


def test_the_token_is_sent_and_told_to_nobody(replay: Replay) -> None:
    answer = answered(saying())
    with served(make_app(saying()), token="sk-1") as url:
        right, wrong = [replay(answer, url, "--api-key", key) for key in ("sk-1", "sk-2")]
        none = replay(answer, url)

    assert (right.code, wrong.code, none.code) == (SAME, NOT_ANSWERED, NOT_ANSWERED)
    assert wrong.names == none.names == ["unauthorized"]
    assert "sk-" not in right.text + wrong.text + none.text


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"nonsense", "no JSON"),
        (b"[]", "no object"),
        (b"{}", "no version"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"version": "1"}', "no version"),
        (b'{"version": true}', "no version"),
        (b'{"version": 99}', "version 99"),
        (b'{"version": 1}', "makes no sense"),
        (b'{"choices": []}', "not asked for"),
        (b'{"llm_receipt": 5}', "no object"),
        (b"data: {}\n\ndata: [DONE]\n\n", "no llm_receipt"),
        (b'data: {"error": {}}\n\n', "ended with an error"),
        (b"data: {\n\n", "no JSON"),
    ],
)
def test_a_file_that_is_none_is_exit_2(replay: Replay, content: bytes, says: str) -> None:
    done = replay(content)

    assert (done.code, done.document["result"]) == (UNUSABLE, "unusable")
    assert says in done.document["reasons"][0]["says"]


@pytest.mark.parametrize(
    "edit",
    [
        {"route": "/etc/passwd"},
        {"route": None},
        {"backend": 5},
        {"model": "tiny"},
        {"model": {"id": None}},
        {"output": {}},
        {"output": [{"index": "0"}]},
        {"sampling": []},
        {"request": "messages"},
        {"repeats": "always"},
        {"usage": {}},
        {"engine": {}},
    ],
)
def test_members_of_the_wrong_type_are_exit_2(replay: Replay, edit: dict[str, Any]) -> None:
    done = replay({**answered(saying())["llm_receipt"], **edit})

    assert done.code == UNUSABLE
    assert "makes no sense" in done.text


def test_a_file_that_is_too_large_is_exit_2(replay: Replay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai_compat.replay.saved.MAX_FILE_BYTES", 100)
    done = replay(answered(saying()))

    assert done.code == UNUSABLE
    assert "larger than 100 bytes" in done.text


@pytest.mark.parametrize("name", ["none.json", ".", "a\0b"])
def test_a_file_that_is_not_there_is_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    code = main(["replay", f"{tmp_path}/{name}", "--base-url", "http://127.0.0.1:1"])

    assert code == UNUSABLE
    assert "cannot be read" in capsys.readouterr().err


def test_a_long_request_is_given_beside_its_receipt(replay: Replay, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "x" * (1 << 20)}]
    answer = answered(saying(), messages=messages)
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"model": "tiny", "messages": messages, "stream": True}))
    with served(make_app(saying())) as url:
        without, with_it = replay(answer, url), replay(answer, url, "--request", str(body))

    assert without.code == UNUSABLE
    assert "--request" in without.text
    assert with_it.code == SAME


def test_embeddings_are_compared_number_by_number(replay: Replay) -> None:
    answer = asyncio.run(embed(embedding_app(), receipt=True)).json
    base64 = asyncio.run(embed(embedding_app(), receipt=True, encoding_format="base64")).json

    def nearly(request: Any) -> Any:
        found = EmbeddingBackend().answer(request)
        return msgspec.structs.replace(found, vectors=(pack(0.6, -0.8, 0.5),))

    with served(embedding_app()) as url:
        assert replay(answer, url).code == replay(base64, url).code == SAME
    with served(embedding_app(EmbeddingBackend(answer=nearly))) as url:
        done = replay(base64, url)

    assert done.code == OTHER
    assert "differs by 0.5 at most" in done.document["difference"]


def test_words_say_the_same_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "answer.json"
    file.write_text(json.dumps(answered(saying("one"))))
    with served(make_app(saying("two", changed(engine_version="2")))) as url:
        code = main(["replay", str(file), "--base-url", f"{url}/v1/"])

    assert code == OTHER
    assert capsys.readouterr().out.splitlines() == [
        'other text, 1 choice of "tiny" on "fake"',
        'choice 0 differs at character 0: "one" became "two"',
        'reason: engine_version: its version was "1" and is "2"',
    ]
