"""What vLLM prints becomes events: one each, its level kept, without bars, blanks and routes."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.vllm.engine_log import MAX_EVENT_CHARS, EngineLog

CORE = "(EngineCore pid=12) ERROR 11-30 21:40:01 [core.py:1130]"
API = "(APIServer pid=7) INFO 11-30 21:40:01 [entry.py:136]"

SAMPLE = (
    f"{API} Supported tasks: ['generate']\n"
    f"{CORE} EngineCore failed to start.\r\n{CORE} Traceback (most recent call last):\r\n"
    f'{CORE}   File "/x/core.py", line 1104, in run\r\n{CORE} ValueError: no room\n'
    "[W1130 21:48:47.864 utils.cpp:68] Warning: NUMA binding\n"
    "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<00:00,  1.56it/s]\n"
    "\n"
    "INFO:     Started server process [7]\n"
    "Traceback (most recent call last):\n"
    '  File "/x/api.py", line 3, in <module>\n'
    "    main()\n"
    "pydantic.ValidationError: 1 validation error for ModelConfig\n"
    "  Value error, no such dtype [type=value_error]\n"
    "nanobind: leaked 2 types!\n - leaked a\n"
)
EVENTS = [
    (logging.INFO, "Supported tasks: ['generate']"),
    (
        logging.ERROR,
        "EngineCore failed to start. | Traceback (most recent call last): | "
        'File "/x/core.py", line 1104, in run | ValueError: no room',
    ),
    (logging.WARNING, "Warning: NUMA binding"),
    (logging.INFO, "Started server process [7]"),
    (
        logging.ERROR,
        'Traceback (most recent call last): | File "/x/api.py", line 3, in <module> | main() | '
        "pydantic.ValidationError: 1 validation error for ModelConfig | "
        "Value error, no such dtype [type=value_error]",
    ),
    (logging.INFO, "nanobind: leaked 2 types! | - leaked a"),
]


def events_of(*pieces: bytes) -> list[tuple[int, str]]:
    said: list[tuple[int, str]] = []
    log = EngineLog(lambda level, text: said.append((level, text)))
    for piece in pieces:
        log.feed(piece)
    log.close()
    return said


def test_a_record_of_several_lines_is_one_event_and_every_level_is_kept():
    assert events_of(SAMPLE.encode()) == EVENTS


@given(st.lists(st.integers(0, len(SAMPLE)), max_size=12))
def test_events_do_not_depend_on_how_the_bytes_arrive(cuts: list[int]):
    data = SAMPLE.encode()
    ends = [0, *sorted(cuts), len(data)]

    assert events_of(*(data[a:b] for a, b in pairwise(ends))) == EVENTS


@given(st.lists(st.binary(max_size=60), max_size=20))
def test_whatever_comes_no_event_is_blank_or_more_than_a_line(pieces: list[bytes]):
    assert all(text.strip() and "\n" not in text for _, text in events_of(*pieces))


def test_two_records_with_the_same_head_are_two_events():
    assert events_of(f"{API} one\n{API} two\n".encode()) == [(logging.INFO, "one"), (logging.INFO, "two")]


def test_an_event_is_handed_over_as_soon_as_it_cannot_go_on():
    said: list[str] = []
    log = EngineLog(lambda _level, text: said.append(text))
    log.feed(f"{API} one\n".encode())

    assert said == ["one"]
    assert not log.is_waiting


def test_a_flush_hands_over_what_might_go_on():
    said: list[str] = []
    log = EngineLog(lambda _level, text: said.append(text))
    log.feed(b"Traceback (most recent call last):\n  x\n")
    assert (said, log.is_waiting) == ([], True)
    log.flush()

    assert said == ["Traceback (most recent call last): | x"]


@pytest.mark.parametrize(
    "line",
    [
        "  0%|          | 0/272 [00:00<?, ?it/s]",
        "Capturing CUDA graphs: 100%|####| 67/67 [00:02<00:00, 26.1it/s]",
        "10%\r20%\r30%",
        f"{API} Route: /v1/models, Methods: GET",
        f"{API} Available routes are:",
        "   ",
        "\x1b[0m",
    ],
)
def test_bars_blanks_and_routes_are_dropped(line: str):
    assert events_of(line.encode() + b"\n") == []


def test_colours_are_dropped():
    assert events_of(b"\x1b[31mERROR:\x1b[0m    no\n") == [(logging.ERROR, "no")]


def test_a_line_without_end_does_not_grow_without_bound():
    ((_, text),) = events_of(*[b"x" * 100_000] * 20)

    assert len(text) <= MAX_EVENT_CHARS


def test_complaints_are_kept_and_bounded():
    log = EngineLog(lambda _level, _text: None)
    log.feed("".join(f"WARNING:  {number}\nINFO:  {number}\n" for number in range(100)).encode())
    log.close()

    assert [lines[0] for lines in log.complaints] == [str(number) for number in range(50, 100)]
