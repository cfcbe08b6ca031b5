"""Records on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.record import Record, from_line, read_records, to_line, to_lines

TIMES = st.integers(0, 10**9).map(lambda microseconds: microseconds / 1e6)
RECORDS = st.builds(
    Record,
    user=st.sampled_from(["chat", "models"]),
    start=TIMES,
    outcome=st.sampled_from(["ok", "refused", "failed", "abandoned"]),
    status=st.none() | st.integers(100, 599),
    error=st.none() | st.text(max_size=9),
    detail=st.none() | st.text(max_size=9),
    ttft=st.none() | TIMES,
    gaps=st.lists(TIMES, max_size=4),
    e2e=st.none() | TIMES,
    prompt_tokens=st.none() | st.integers(0, 99),
    late=TIMES,
    turn=st.integers(1, 9),
)


@given(RECORDS)
def test_record_survives_being_written_and_read(record: Record) -> None:
    line = to_line(record)

    assert "\n" not in line
    assert from_line(line) == record


def test_records_come_back_by_start(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text(to_lines(Record(user="chat", start=start) for start in (3.0, 1.0, 2.0)))

    assert [record.start for record in read_records(file)] == [1.0, 2.0, 3.0]


def test_line_that_was_cut_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text(to_line(Record(user="chat", start=1.0)) + '\n{"user":"ch')

    assert len(read_records(file)) == 1


@pytest.mark.parametrize(
    "line", ["", "[]", "{}", '{"user":"a","start":1,"x":2}', '{"user":"a","start":1,"outcome":"?"}']
)
def test_line_that_is_no_record_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text(line + "\n")

    with pytest.raises(ValueError, match=r"records\.jsonl:1: "):
        read_records(file)
