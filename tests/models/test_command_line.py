"""`python -m models`."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from models.__main__ import ProgressBar, main
from models.catalogue import schema_text
from models.gguf import read_header
from tests.models.bert_folder import bert_folder
from tests.models.gguf_files import write_gguf


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model folder with one whole and one broken file, and a catalogue with one card of each kind."""
    for name in list(os.environ):
        if name.startswith("LLM_"):
            monkeypatch.delenv(name)
    models = tmp_path / "models"
    path = write_gguf(models / "whole.gguf")
    (models / "broken.gguf").write_bytes(b"GGUF")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    catalogue = tmp_path / "catalogue.yaml"
    catalogue.write_text(
        f"""
models:
  - {{id: mine, aliases: [my], sha256: "{digest}", sources: {{llamacpp: {{path: {path}}}}}}}
  - {{id: cloud, sources: {{litellm: {{name: p/m}}}}}}
  - {{id: later, sources: {{vllm: {{repo: o/r}}}}}}
"""
    )
    monkeypatch.setenv("LLM_MODEL_DIRS", str(models))
    monkeypatch.setenv("LLM_CATALOGUE", str(catalogue))
    return models


def test_list_shows_every_model_and_why_a_file_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0

    shown = capsys.readouterr()
    assert [line.split()[0] for line in shown.out.splitlines()] == ["ID", "mine", "cloud", "later"]
    assert "not listed: broken: The model file is truncated" in shown.err


@pytest.mark.parametrize(
    ("arguments", "variable", "shown"),
    [
        ([], None, False),
        (["--backend", "fake"], None, True),
        ([], "LLM_DEFAULT_BACKEND", True),
        ([], "LLM_ENABLED_BACKENDS", True),
    ],
)
def test_models_of_the_stand_in_for_tests_are_listed_only_where_it_is_served(
    arguments: list[str],
    variable: str | None,
    shown: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("LLM_CATALOGUE")
    if variable is not None:
        monkeypatch.setenv(variable, "fake")

    assert main(["list", *arguments]) == 0
    assert ("fake-echo" in capsys.readouterr().out) is shown


def test_list_as_json_holds_cards_and_broken_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json", "--backend", "litellm"]) == 0

    shown = json.loads(capsys.readouterr().out)
    assert [card["id"] for card in shown["models"]] == ["cloud"]
    assert list(shown["broken"]) == ["broken"]


def test_show_tells_what_the_file_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "my", "--json"]) == 0

    shown = json.loads(capsys.readouterr().out)
    assert shown["id"] == "mine"
    assert (shown["file"]["architecture"], shown["file"]["context_length"]) == ("llama", 512)


def test_show_is_readable_without_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "mine"]) == 0

    assert "  architecture: llama" in capsys.readouterr().out


def test_pull_prints_where_the_model_lies(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", "mine"]) == 0

    shown = capsys.readouterr()
    assert shown.out.strip() == str(folder / "whole.gguf")
    assert "mine 100%" in shown.err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["show", "absent"], "does not exist"),
        (["show", "../whole"], "does not exist"),
        (["show", "broken"], "truncated"),
        (["pull", "broken"], "truncated"),
        (["pull", "cloud"], "served elsewhere"),
        (["pull", "mine", "--backend", "vllm"], "no source for the backend 'vllm'"),
        (["verify", "absent"], "does not exist"),
    ],
)
def test_a_model_that_cannot_be_had_is_one_sentence_and_code_1(
    command: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 1

    shown = capsys.readouterr()
    assert words in shown.err.splitlines()[-1]
    assert "Traceback" not in shown.err


def test_verify_judges_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--json"]) == 1

    verdicts = {result["id"]: result["ok"] for result in json.loads(capsys.readouterr().out)["models"]}
    assert verdicts == {"mine": True, "cloud": None, "later": None, "broken": False}


def test_verify_of_sound_models_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "mine", "cloud"]) == 0

    assert "ok      mine: checksum matches" in capsys.readouterr().out


def test_verify_notices_a_file_that_changed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = bytearray((folder / "whole.gguf").read_bytes())
    content[-1] ^= 1
    (folder / "whole.gguf").write_bytes(content)

    assert main(["verify", "mine"]) == 1
    assert "FAILED  mine: The model's file has the SHA-256" in capsys.readouterr().out


def test_wrong_settings_are_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LLM_MODEL_DIRS", "/no/such/folder")

    assert main(["list"]) == 2
    assert "LLM_MODEL_DIRS names '/no/such/folder'" in capsys.readouterr().err


def test_a_wrong_catalogue_is_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "catalogue.yaml").write_text("models: 3")

    assert main(["list"]) == 2
    assert "catalogue.yaml cannot be used" in capsys.readouterr().err


def test_the_schema_needs_no_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LLM_MODEL_DIRS", "/no/such/folder")

    assert main(["schema"]) == 0
    assert capsys.readouterr().out == schema_text()


def test_an_interrupted_command_is_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_args: object, **_kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("models.__main__.materialise", interrupted)

    assert main(["pull", "mine"]) == 130


def test_the_module_runs_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "models", "list"], capture_output=True, text=True, check=False, timeout=50
    )

    assert done.returncode == 0
    assert "mine" in done.stdout


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_bar_stays_on_one_line() -> None:
    out = Terminal()
    bar = ProgressBar("m", out)

    bar(1 << 20, 2 << 20)
    bar(2 << 20, 2 << 20)
    bar.close()

    assert out.getvalue().count("\n") == 1
    assert "[" + "#" * 30 + "] 100% 2.0 MiB of 2.0 MiB" in out.getvalue()


def test_elsewhere_the_bar_is_at_most_eleven_lines() -> None:
    out = io.StringIO()
    bar = ProgressBar("m", out)

    for done in range(1_001):
        bar(done, 1_000)

    assert len(out.getvalue().splitlines()) == 11


def test_an_unknown_total_shows_only_what_arrived() -> None:
    out = io.StringIO()

    ProgressBar("m", out)(512, 0)

    assert out.getvalue() == "m 0% 512 B\n"


def test_convert_makes_the_gguf_of_a_folder_and_tells_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gguf", reason="the converter's package is not installed")
    monkeypatch.setattr("models.convert._default_cache", lambda: tmp_path / "cache")
    source = bert_folder(tmp_path / "bert")

    assert main(["convert", str(source), "--output", str(tmp_path / "bert.gguf"), "--json"]) == 0

    shown = json.loads(capsys.readouterr().out)
    assert shown == {"name": str(source), "path": str(tmp_path / "bert.gguf")}
    assert read_header(tmp_path / "bert.gguf").has_pooling


def test_convert_gives_the_file_of_a_model_that_needs_no_conversion(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", "mine"]) == 0

    assert capsys.readouterr().out.strip() == str(folder / "whole.gguf")


def test_convert_fails_in_one_line_where_it_may_not_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", "mine", "--output", str(tmp_path / "no" / "such" / "folder")]) == 1

    assert "cannot be written" in capsys.readouterr().err.splitlines()[-1]
