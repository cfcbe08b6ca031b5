"""Every error of both trees crosses the wire as itself; anything else crosses as a failure that tells
nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends import codec
from backends.codec import ERROR, EVENTS, FrameSplitter, copy_error, decode_error, encode_error, encode_frame
from backends.errors import BackendFailed, ContextLengthExceeded, ServiceError
from backends.types import (
    ChoiceFinished,
    Event,
    Finished,
    Started,
    TextDelta,
    TokenLogprob,
    TokenLogprobs,
    Usage,
)
from models.errors import ModelError, UnknownModel


def tree(root: type[Exception]) -> Iterator[type[Exception]]:
    if root.__module__ in (ServiceError.__module__, ModelError.__module__):
        yield root
    for child in root.__subclasses__():
        yield from tree(child)


def an_instance(cls: type[Exception]) -> Exception:
    if cls is ContextLengthExceeded:
        return ContextLengthExceeded(prompt_tokens=5000, context_length=4096, param="prompt")
    if cls is UnknownModel:
        return UnknownModel("smol", near=["smollm2", "smollm3"])
    if issubclass(cls, ServiceError):
        return cls("Something about 7 of 3", param="messages.0.content", retry_after_s=2.5)
    return cls("Something about 7 of 3")


CLASSES = sorted({*tree(ServiceError), *tree(ModelError)}, key=lambda cls: cls.__name__)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_comes_back_as_its_class_with_its_fields(cls: type[Exception]):
    error = an_instance(cls)
    ((kind, payload),) = FrameSplitter().feed(encode_error(error))
    rebuilt = decode_error(payload)

    assert kind == ERROR
    assert type(rebuilt) is cls
    assert str(rebuilt) == str(error)
    assert vars(rebuilt) == vars(error)


def test_both_trees_were_found():
    assert {"ContextLengthExceeded", "UpstreamAuthFailed", "UnknownModel", "UnusableModel"} <= {
        cls.__name__ for cls in CLASSES
    }


def test_a_class_that_only_an_adapter_has_arrives_as_the_class_it_derives_from():
    class CacheExhausted(BackendFailed):
        pass

    assert type(copy_error(CacheExhausted("No cells"))) is BackendFailed


def test_a_class_that_this_side_does_not_know_is_a_failed_backend():
    payload = codec.encode_body(codec.WireError(("FromTheFuture",), "Something new"))

    error = decode_error(payload)
    assert type(error) is BackendFailed
    assert error.message == "Something new"


def test_a_bug_crosses_without_its_text():
    ((_, payload),) = FrameSplitter().feed(encode_error(RuntimeError("/secret/path")))

    error = decode_error(payload)
    assert type(error) is BackendFailed
    assert "secret" not in str(error)


EVENT_LIST: list[Event] = [
    Started(1.5, 12),
    TextDelta(0, "a – 🙂", 2, (TokenLogprobs(TokenLogprob(b"\xf0\x9f", -0.5), (TokenLogprob(b"x", -1.0),)),)),
    ChoiceFinished(0, "stop", "###"),
    ChoiceFinished(1, "stop", 7),
    ChoiceFinished(2, "length"),
    Finished(Usage(12, 3, 4), 1.0, 2.0, 3.0),
]


@given(st.lists(st.integers(1, 40), max_size=40))
def test_frames_come_out_whole_and_in_order_on_any_chunking(cuts: list[int]):
    stream = b"".join(encode_frame(EVENTS, [event]) for event in EVENT_LIST)
    splitter, seen = FrameSplitter(), []
    pieces, at = [], 0
    for cut in cuts:
        pieces.append(stream[at : at + cut])
        at += cut
    for piece in [*pieces, stream[at:]]:
        seen += [codec.decode_events(payload) for _, payload in splitter.feed(piece)]

    assert seen == [[event] for event in EVENT_LIST]
    assert not splitter.pending


def test_a_partial_frame_does_not_come_out():
    frame = encode_frame(EVENTS, EVENT_LIST)
    splitter = FrameSplitter()

    assert list(splitter.feed(frame[:-1])) == []
    assert splitter.pending


@pytest.mark.parametrize("nonsense", [b"HTTP/1.1 200 OK", b"E\xff\xff\xff\xff...", b"<html></html>"])
def test_bytes_of_another_protocol_are_a_failed_backend(nonsense: bytes):
    with pytest.raises(BackendFailed):
        list(FrameSplitter().feed(nonsense))
