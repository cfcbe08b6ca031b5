"""Grammars tried in a process of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("llguidance", reason="the engine is not installed")

from backends.errors import BackendFailed, BackendTimeout
from backends.llamacpp import constraint_trial
from backends.llamacpp.constraint_trial import TOO_LONG, ConstraintTrial

pytestmark = pytest.mark.engine

LIMITS = {"max_grammar_size": 10_000}


def lark(text: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": text}]})


ENDLESS = lark("start: X\nX: " + " & ".join(f"/[ab]*a[ab]{{{i}}}.*/" for i in range(60)))
OVERFLOWING = lark("start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(5000)) + '\nr5000: "c"')


@pytest.fixture
def trial() -> Iterator[ConstraintTrial]:
    trial = ConstraintTrial()
    yield trial
    trial.close()


def test_a_grammar_that_compiles_has_no_problem(trial: ConstraintTrial):
    assert trial.problem(lark('start: "a"'), LIMITS) is None


def test_a_grammar_that_does_not_is_told_why(trial: ConstraintTrial):
    assert "nothing" in (trial.problem(lark("start: nothing"), LIMITS) or "")


def test_the_limits_are_those_of_the_caller(trial: ConstraintTrial):
    grammar = lark('start: "a" "b" "c"? "d"? "e"?')

    assert "too big" in (trial.problem(grammar, {"max_grammar_size": 2}) or "")
    assert trial.problem(grammar, LIMITS) is None


def test_the_end_of_the_process_is_a_problem_and_the_next_grammar_gets_a_new_one(trial: ConstraintTrial):
    assert trial.problem(OVERFLOWING, LIMITS) == TOO_LONG
    assert trial.problem(lark('start: "a"'), LIMITS) is None


def test_a_grammar_that_takes_too_long_is_given_up(trial: ConstraintTrial):
    assert trial.problem(ENDLESS, LIMITS) == TOO_LONG


def test_a_machine_without_time_for_it_is_not_the_grammars_fault():
    trial = ConstraintTrial(timeout_s=0.01)

    with pytest.raises(BackendTimeout):
        trial.problem(lark('start: "a"'), LIMITS)


def test_a_process_that_went_when_nothing_came_is_no_problem(trial: ConstraintTrial):
    trial.problem(lark('start: "a"'), LIMITS)
    child = trial._child
    assert child is not None
    assert child.stdin is not None
    child.stdin.close()
    child.wait()

    assert trial.problem(lark('start: "b"'), LIMITS) is None


def test_one_process_tries_many_grammars(trial: ConstraintTrial):
    trial.problem(lark('start: "a"'), LIMITS)
    first = trial._child
    trial.problem(lark('start: "b"'), LIMITS)

    assert trial._child is first


def test_the_process_knows_no_key(trial: ConstraintTrial, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    child = tmp_path / "child.py"
    child.write_text("import json, os\ninput()\nprint(json.dumps(' '.join(os.environ)), flush=True)\n")
    monkeypatch.setattr(constraint_trial, "_CHILD", child)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")

    names = (trial.problem(lark('start: "a"'), LIMITS) or "").split()

    assert "LD_LIBRARY_PATH" in names
    assert "OPENAI_API_KEY" not in names


def test_a_process_that_cannot_work_is_no_grammars_fault(
    trial: ConstraintTrial,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
):
    child = tmp_path / "child.py"
    child.write_text("import nothing_of_this_name\n")
    monkeypatch.setattr(constraint_trial, "_CHILD", child)

    with pytest.raises(BackendFailed, match="cannot be compiled at the moment"):
        trial.problem(lark('start: "a"'), LIMITS)

    assert str(child) in caplog.text
