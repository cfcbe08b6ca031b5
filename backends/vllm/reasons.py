"""Why an engine did not start, or died, as the error and the one sentence that its caller gets.

vLLM says it in its log only. An engine that cannot be made dies with a traceback in its own process, and the server's
process then with one that says no more than that; so the last exception that is not of that kind counts.
"""

from __future__ import annotations

import logging
import re
import signal
from collections.abc import Iterable, Sequence
from typing import Final

from backends.errors import BackendFailed, InsufficientMemory, ServiceError
from models.errors import ModelError, UnusableModel

log = logging.getLogger("llm.vllm")

MAX_REASON_CHARS: Final = 300

_EXCEPTION: Final = re.compile(
    r"(?:[\w.]+\.)?(?P<name>[A-Z]\w*(?:Error|Exception|Interrupt|Exit)): (?P<text>.+)"
)
_USAGE: Final = re.compile(r"(?:[\w.-]+\.py|\S+): error: (?P<text>.+)")
_ECHOES: Final = re.compile(
    r"Engine core initialization failed|See root cause above|EngineCore encountered an issue|EngineDeadError"
    r"|died unexpectedly|WorkerProc initialization failed|cancelled|terminated$"
)
"""What only says that another process failed."""
_VALIDATION: Final = re.compile(r"\d+ validation errors? for ")

_MEMORY: Final = re.compile(
    r"out of memory|OutOfMemory|MemoryError|cannot allocate memory|memory utilization|gpu_memory_utilization"
    r"|gpu-memory-utilization|KV cache (?:memory|is needed)|memory for (?:the )?(?:cache|kv)|bad_alloc",
    re.IGNORECASE,
)
_WEIGHTS: Final = re.compile(
    r"architectures? .*not supported|does not recognize this architecture|model type .* not"
    r"|model weights|No such file or directory|does not appear to have a file|config\.json|safetensors|tokenizer"
    r"|Unrecognized model|[Cc]ould ?n[o']t (?:load|find|instantiate)|quantiz|checkpoint|max_model_len|max model len"
    r"|no attribute|KeyError|size mismatch|shape",
    re.IGNORECASE,
)


def exception_in(complaints: Iterable[Sequence[str]]) -> str | None:
    """The text of the exception that caused the others, or the complaint about a flag; None if there is neither."""
    found: str | None = None
    for lines in complaints:
        for number, line in enumerate(lines):
            text = line.strip()
            if (usage := _USAGE.fullmatch(text)) is not None:
                return usage["text"]
            match = _EXCEPTION.fullmatch(text)
            if match is None or _ECHOES.search(text):
                continue
            said = match["text"]
            if _VALIDATION.match(said):
                said = _validation_text(lines[number + 1 :]) or said
            elif match["name"] in ("KeyError", "AssertionError", "ModuleNotFoundError", "AttributeError"):
                said = f"{match['name']}: {said}"
            found = said
    return found


def _validation_text(lines: Sequence[str]) -> str | None:
    """pydantic's first problem, without its notes."""
    for line in lines:
        text = line.strip()
        if text.startswith("Value error, "):
            return re.sub(r" \[type=.*", "", text.removeprefix("Value error, "))
    return None


def sentence(text: str, hidden: dict[str, str]) -> str:
    """The first sentence of `text`, without a path. `hidden`: texts (the model's folder) and what stands for each."""
    for secret, shown in sorted(hidden.items(), key=lambda item: -len(item[0])):
        text = text.replace(secret, shown)
    text = re.sub(r"(?<![\w.])~?/[\w.@+-]+(?:/[\w.@+-]+)+", lambda match: match[0].rpartition("/")[2], text)
    text = " ".join(text.split())
    first = re.split(r"(?<=[.!?])\s+(?=[A-Z`'\"(])", text, maxsplit=1)[0].rstrip(" .:;")
    if len(first) > MAX_REASON_CHARS:
        first = f"{first[:MAX_REASON_CHARS].rstrip()}…"
    return first


def why_not_started(
    card_id: str, complaints: Sequence[Sequence[str]], returncode: int | None, hidden: dict[str, str]
) -> ServiceError | ModelError:
    """The error of a load whose engine ended with `returncode` (None: it still runs but does not get ready)."""
    said = exception_in(complaints)
    if said is None:
        if returncode == -signal.SIGKILL:
            return InsufficientMemory(
                f"The engine of {card_id!r} was killed while it started, as happens when memory runs out",
                param="model",
            )
        ending = "did not become ready in time" if returncode is None else ending_of(returncode)
        return BackendFailed(f"The engine of {card_id!r} {ending}")
    message = f"vLLM cannot serve {card_id!r}: {sentence(said, hidden)}"
    if _MEMORY.search(said):
        return InsufficientMemory(message, param="model")
    # A parser that does not exist is the card's mistake, not the weights'.
    if _WEIGHTS.search(said) and " parser" not in said:
        return UnusableModel(message)
    return BackendFailed(message)


def why_it_died(
    card_id: str, complaints: Sequence[Sequence[str]], ending: str, hidden: dict[str, str]
) -> str:
    """Why an engine that was serving serves no more. `ending`: what is known without its words."""
    said = exception_in(complaints)
    if said is None:
        return f"The engine of {card_id!r} {ending}"
    return f"The engine of {card_id!r} failed: {sentence(said, hidden)}"


def ending_of(returncode: int) -> str:
    """What a process's exit status says, as the rest of a sentence."""
    if returncode >= 0:
        return f"ended with status {returncode}"
    try:
        return f"was ended by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was ended by signal {-returncode}"
