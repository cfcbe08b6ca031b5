"""vLLM's own words become the error of a load: one sentence, of the right kind, without a path."""

from __future__ import annotations

import pytest

from backends.errors import BackendFailed, InsufficientMemory
from backends.vllm.reasons import MAX_REASON_CHARS, exception_in, why_it_died, why_not_started
from models.errors import UnusableModel

ECHO = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
MODEL = {"/models/tiny": "'tiny'"}

SAID = [
    (
        "ValueError: Free memory on device cuda:0 (10.1/79.2 GiB) on startup is less than desired GPU memory "
        "utilization (0.9, 71.28 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
        InsufficientMemory,
        "Free memory on device cuda:0 (10.1/79.2 GiB) on startup is less than desired GPU memory utilization "
        "(0.9, 71.28 GiB)",
    ),
    (
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
        "initializing the engine.",
        InsufficientMemory,
        "No available memory for the cache blocks",
    ),
    (
        "ValueError: To serve at least one request with the models's max seq len (8192), (0.19 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (0.01 GiB). Based on the available memory, …",
        InsufficientMemory,
        "To serve at least one request with the models's max seq len (8192), (0.19 GiB KV cache is needed, which is "
        "larger than the available KV cache memory (0.01 GiB)",
    ),
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of …",
        InsufficientMemory,
        "CUDA out of memory",
    ),
    (
        "ValueError: Model architectures ['Nope'] are not supported for now. Supported architectures: …",
        UnusableModel,
        "Model architectures ['Nope'] are not supported for now",
    ),
    (
        "RuntimeError: Cannot find any model weights with `/models/tiny`",
        UnusableModel,
        "Cannot find any model weights with `'tiny'`",
    ),
    (
        "OSError: Can't load the tokenizer of /srv/x/y. Make sure it is there.",
        UnusableModel,
        "Can't load the tokenizer of y",
    ),
    (
        "KeyError: 'invalid tool call parser: x (chose from { a })'",
        BackendFailed,
        "KeyError: 'invalid tool call",
    ),
    ("RuntimeError: Something else went wrong", BackendFailed, "Something else went wrong"),
]


@pytest.mark.parametrize(("line", "kind", "words"), SAID)
def test_the_cause_becomes_an_error_of_its_kind_in_one_sentence(line: str, kind: type[Exception], words: str):
    log = [["Traceback (most recent call last):", '  File "/x.py"', line], ["Traceback", ECHO]]

    error = why_not_started("tiny", log, 1, MODEL)

    assert type(error) is kind
    assert error.message.startswith(f"vLLM cannot serve 'tiny': {words}")
    assert "/models" not in error.message


def test_pydantics_first_problem_is_taken_without_its_notes():
    log = [
        [
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
            "  Value error, The checkpoint has model type `nope` but Transformers does not recognize this "
            "architecture. This could be because of … [type=value_error, input_value=…]",
            "    For further information visit https://errors.pydantic.dev/2.14/v/value_error",
        ]
    ]

    error = why_not_started("tiny", log, 1, {})

    assert isinstance(error, UnusableModel)
    assert error.message == (
        "vLLM cannot serve 'tiny': The checkpoint has model type `nope` but Transformers does not recognize this "
        "architecture"
    )


def test_a_refused_argument_is_named():
    log = [["guard.py: error: unrecognized arguments: --max-seqs=3"]]

    error = why_not_started("tiny", log, 2, {})

    assert isinstance(error, BackendFailed)
    assert error.message == "vLLM cannot serve 'tiny': unrecognized arguments: --max-seqs=3"


@pytest.mark.parametrize(
    ("returncode", "kind", "words"),
    [
        (-9, InsufficientMemory, "was killed while it started"),
        (-11, BackendFailed, "was ended by SIGSEGV"),
        (3, BackendFailed, "ended with status 3"),
        (None, BackendFailed, "did not become ready in time"),
    ],
)
def test_without_words_the_ending_is_told(returncode: int | None, kind: type[Exception], words: str):
    error = why_not_started("tiny", [["Found ulimit of 20000"], ["Traceback", ECHO]], returncode, {})

    assert type(error) is kind
    assert words in error.message


def test_a_long_reason_is_cut():
    error = why_not_started("tiny", [["ValueError: " + "x" * 5000]], 1, {})

    assert len(error.message) < MAX_REASON_CHARS + 60


def test_what_only_tells_of_another_failure_is_no_cause():
    dead = [
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above)."
    ]

    assert exception_in([dead]) is None
    assert why_it_died("tiny", [dead], "lost one of its processes", {}) == (
        "The engine of 'tiny' lost one of its processes"
    )
    assert why_it_died(
        "tiny", [["RuntimeError: CUDA error: an illegal access. More."], dead], "died", {}
    ) == ("The engine of 'tiny' failed: CUDA error: an illegal access")
