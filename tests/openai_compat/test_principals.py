"""The file of named callers: what it may say, and what it means."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_compat import __main__ as command
from openai_compat.auth import Authenticator
from openai_compat.errors import AuthenticationRequired
from openai_compat.metrics import Metrics
from openai_compat.principals import MAX_FILE_BYTES, Principal, digest_of, parse_principals
from tests.openai_compat.scripted_backend import Hang, ScriptedBackend, hello
from tests.openai_compat.test_auth import Clock, header
from tests.openai_compat.wire import HELLO, Connection, make_app

A, B = digest_of(b"token-a").hex(), digest_of(b"token-b").hex()


def entry(**fields: object) -> dict[str, object]:
    return {"name": "alice", "token_sha256": A, **fields}


def file_of(*entries: dict[str, object]) -> bytes:
    return json.dumps({"principals": entries}).encode()


def test_a_yaml_file_names_callers_with_all_they_may_do() -> None:
    text = f"""
principals:
  - name: alice            # a comment
    token_sha256: "{A}"
    limits: {{rps: 0.5, burst: 3, max_concurrent: 2}}
    budget_usd_per_day: 5
    privacy: local
  - name: bob
    token_sha256: ["{B}"]
"""

    found = parse_principals(text.encode())

    assert found == {
        digest_of(b"token-a"): Principal(
            name="alice",
            is_named=True,
            rate_limit_rps=0.5,
            rate_limit_burst=3,
            max_concurrent=2,
            budget_usd_per_day=5.0,
            privacy="local",
        ),
        digest_of(b"token-b"): Principal(name="bob", is_named=True),
    }


def test_json_with_tabs_and_a_byte_order_mark_is_read_too() -> None:
    text = "\ufeff" + json.dumps({"principals": [entry()]}, indent="\t")

    assert [p.name for p in parse_principals(text.encode()).values()] == ["alice"]


def test_a_principal_may_have_several_tokens_while_one_is_replaced() -> None:
    found = parse_principals(file_of(entry(token_sha256=[A, B])))

    assert len(found) == 2
    assert len(set(map(id, found.values()))) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "the whole: Input should be a valid dictionary$"),
        (b"- 1", "dictionary"),
        (b"{", "neither YAML nor JSON"),
        (b"a: [", r"neither YAML nor JSON \(line"),
        (b"\xff\xfe", "neither YAML nor JSON"),
        (b"[" * 100_000, "neither YAML nor JSON"),
        (file_of(), "principals"),
        (file_of({"name": "alice"}), r"principals\.0\.token_sha256: Field required"),
        (file_of(entry(), entry(token_sha256=B)), "two principals are called 'alice'"),
        (file_of(entry(), entry(name="bob")), "'alice' and 'bob' have the same token"),
        (file_of(entry(token="token-a")), r"principals\.0\.token: Extra inputs"),
        (file_of(entry(token_sha256="token-a")), "token_sha256"),
        (file_of(entry(token_sha256=[])), "token_sha256"),
        (file_of(entry(name="ip:1.2.3.4")), "name"),
        (file_of(entry(name="a b")), "name"),
        (file_of(entry(limits={"rps": -1})), "rps"),
        (file_of(entry(limits={"burst": 0})), "burst"),
        (file_of(entry(limits={"max_concurrent": True})), "must be a number"),
        (file_of(entry(budget_usd_per_day="5")), "must be a number"),
        (file_of(entry(budget_usd_per_day=-1)), "budget_usd_per_day"),
        (file_of(entry(privacy="secret")), "privacy"),
        (b" " * (MAX_FILE_BYTES + 1), "the limit is"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_with_the_place(text: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_principals(text)


@pytest.mark.parametrize("field", ["token_sha256", "budget_usd_per_day", "privacy", "limits", "secret-word"])
def test_a_refusal_never_quotes_a_value(field: str) -> None:
    with pytest.raises(ValueError, match=r"principals\.0") as caught:
        parse_principals(file_of(entry(**{field: "s3cr3t"})))

    assert "s3cr3t" not in str(caught.value)


@given(st.binary(max_size=200))
def test_whatever_the_file_holds_it_is_read_or_refused(text: bytes) -> None:
    try:
        parse_principals(text)
    except ValueError:
        return


def test_a_named_token_opens_the_door_under_its_name(tmp_path: Path) -> None:
    file = tmp_path / "principals.yaml"
    file.write_bytes(file_of(entry(privacy="local")))
    auth = Authenticator([b"plain"], principals_file=file)

    assert auth.enabled
    assert auth.principal(header(b"Bearer token-a")) == Principal(
        name="alice", is_named=True, privacy="local"
    )
    assert auth.principal(header(b"Bearer plain")).name.startswith("key:")
    with pytest.raises(AuthenticationRequired):
        auth.principal(header(b"Bearer token-b"))


def test_a_token_that_is_also_in_the_plain_list_is_the_named_one(tmp_path: Path) -> None:
    file = tmp_path / "principals.yaml"
    file.write_bytes(file_of(entry()))

    assert Authenticator([b"token-a"], principals_file=file).principal(header(b"Bearer token-a")).is_named


def test_the_hash_itself_is_no_token(tmp_path: Path) -> None:
    file = tmp_path / "principals.yaml"
    file.write_bytes(file_of(entry()))

    with pytest.raises(AuthenticationRequired):
        Authenticator(principals_file=file).principal(header(f"Bearer {A}".encode()))


def test_a_changed_file_counts_after_a_second(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "principals.yaml"
    file.write_bytes(file_of(entry()))
    auth = Authenticator(principals_file=file, clock=clock)
    file.write_bytes(file_of(entry(budget_usd_per_day=1, token_sha256=B)))

    clock.now += 1.1
    assert auth.principal(header(b"Bearer token-b")).budget_usd_per_day == 1
    with pytest.raises(AuthenticationRequired):
        auth.principal(header(b"Bearer token-a"))


def test_a_broken_new_file_keeps_the_old_callers_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, file = Clock(), tmp_path / "principals.yaml"
    file.write_bytes(file_of(entry()))
    auth = Authenticator(principals_file=file, clock=clock)
    file.write_bytes(b"principals: [")

    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            clock.now += 2
            assert auth.principal(header(b"Bearer token-a")).name == "alice"
    assert caplog.text.count("the old principals stay") == 1


def test_a_file_that_is_gone_is_mentioned_once_and_read_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, file = Clock(), tmp_path / "principals.yaml"
    file.write_bytes(file_of(entry()))
    auth = Authenticator(principals_file=file, clock=clock)
    file.unlink()

    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            clock.now += 2
            assert auth.principal(header(b"Bearer token-a"))
    file.write_bytes(file_of(entry(name="carol")))
    clock.now += 2
    assert auth.principal(header(b"Bearer token-a")).name == "carol"
    assert caplog.text.count("the old principals stay") == 1


def test_a_file_that_could_not_be_read_at_first_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, file = Clock(), tmp_path / "principals.yaml"
    file.write_bytes(file_of(entry()))
    auth = Authenticator(principals_file=file, clock=clock)
    file.write_bytes(file_of(entry(name="carol")))

    def refuse(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", refuse)
        clock.now += 2
        assert auth.principal(header(b"Bearer token-a")).name == "alice"
    clock.now += 2
    assert auth.principal(header(b"Bearer token-a")).name == "carol"


def test_a_broken_file_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(b"principals: []")
    with pytest.raises(ValueError, match=r"The file of principals cannot be used: principals:"):
        Authenticator(principals_file=tmp_path / "p")


def test_the_command_hashes_what_it_reads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("token-a\n"))

    assert command.main(["hash-token"]) == 0
    assert capsys.readouterr().out == f"token_sha256: {A}\n"


def test_the_command_makes_a_token_that_its_hash_belongs_to(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["hash-token", "--new"]) == 0

    lines = dict(line.split(": ") for line in capsys.readouterr().out.splitlines())
    assert len(lines["token"]) >= 40
    assert digest_of(lines["token"].encode()).hex() == lines["token_sha256"]


@pytest.mark.parametrize("text", ["", "\n", "two words\n"])
def test_the_command_refuses_what_no_header_can_carry(
    monkeypatch: pytest.MonkeyPatch, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))

    assert command.main(["hash-token"]) == 2
    assert capsys.readouterr().out == ""


# On the wire


class Service:
    """`alice` has limits of her own, `bob` none."""

    def __init__(self, folder: Path, backend: ScriptedBackend | None = None, **config: Any) -> None:
        file = folder / "principals.json"
        limits = {"rps": 0.01, "burst": 2, "max_concurrent": 1}
        file.write_bytes(file_of(entry(limits=limits), {"name": "bob", "token_sha256": B}))
        self.app = make_app(backend, principals_file=file, **config)

    def begin(self, token: str = "token-a") -> Connection:
        headers = {"authorization": f"Bearer {token}"}
        return Connection(
            self.app, "POST", "/v1/chat/completions", body=json.dumps(HELLO).encode(), headers=headers
        )


async def test_a_callers_own_rate_holds_for_him_alone(tmp_path: Path) -> None:
    service = Service(tmp_path, rate_limit_rps=1000, rate_limit_burst=1000)

    alice = [(await service.begin().run()).status for _ in range(4)]
    bob = [(await service.begin("token-b").run()).status for _ in range(4)]

    assert alice == [200, 200, 429, 429]
    assert bob == [200] * 4


async def test_a_caller_at_his_own_concurrency_limit_is_refused_and_others_are_not(tmp_path: Path) -> None:
    backend = ScriptedBackend(script=[Hang()])
    service = Service(tmp_path, backend)
    first = service.begin()
    running = asyncio.create_task(first.run())
    await backend.reached.wait()
    backend.script = hello

    refused = await service.begin().run()
    other = await service.begin("token-b").run()
    first.leave()
    await running

    assert (refused.status, refused.error["code"]) == (429, "concurrency_limit")
    assert int(refused.headers["retry-after"]) >= 1
    assert other.status == 200


async def test_the_name_stands_in_the_log_and_in_metrics(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service(tmp_path, access_log=True, api_tokens=(b"plain",))

    with caplog.at_level(logging.INFO, logger="llm.access"):
        await service.begin().run()
        await service.begin("plain").run()
    text = service.app.state.gateway.metrics.render().decode()

    assert '"principal":"alice"' in caplog.text
    assert "token-a" not in caplog.text
    assert 'llm:principal_requests_total{principal="alice"} 1.0' in text
    assert "key:" not in text


def test_names_beyond_the_bound_share_a_series(tmp_path: Path) -> None:
    metrics = Metrics(directory=tmp_path)
    for number in range(1100):
        metrics.principal_cost(Principal(name=f"p{number}", is_named=True), 1.0)
    metrics.principal_cost(Principal(name="ip:1.2.3.4"), 1.0)
    text = metrics.render().decode()
    metrics.close()

    assert text.count("llm:principal_cost_usd_total{") == 1001
    assert 'llm:principal_cost_usd_total{principal="unknown"} 100.0' in text
