"""The process in which grammars are tried: a line of JSON in, a line of JSON out. Run as a file; of this project it
imports only the reader of GBNF, when it is needed."""

import contextlib
import json
import math
import resource
import select
import sys
import threading
import time
from pathlib import Path
from typing import Any

import llguidance

IDLE_S = 60.0
STACK_BYTES = 1536 << 10
"""Less than any thread of the service has, so that what passes here passes there."""
MEMORY_BYTES = 1 << 30
MAX_COMPILE_S = 1.0
MAX_CPU_S = 3
MAX_MASK_S = 0.03
"""Processor time. Everybody's next token waits for a mask."""
STEPS = 3


class Bytes:
    """A vocabulary of one token per byte, and one that ends a text."""

    eos_token_id = 256
    bos_token_id = None
    special_token_ids = (256,)
    tokens = (*(bytes((i,)) for i in range(256)), b"\xff<end>")

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def problem(grammar: str, limits: dict[str, Any], tokenizer: llguidance.LLTokenizer) -> str | None:
    """Why it cannot be used."""
    begun = time.process_time()
    matcher = llguidance.LLMatcher(
        tokenizer, grammar, log_level=0, limits=llguidance.LLParserLimits(**limits, verbose_errors=False)
    )
    if time.process_time() - begun > MAX_COMPILE_S:
        return "it takes too long to compile"
    for _ in range(STEPS):
        if matcher.is_error():
            return matcher.get_error() or "it cannot be compiled"
        begun = time.process_time()
        mask = matcher.compute_bitmask()
        if time.process_time() - begun > MAX_MASK_S:
            return "finding what may come next takes too long"
        allowed = [i for i in range(256) if mask[i >> 3] >> (i & 7) & 1]
        if matcher.is_stopped() or not allowed:
            break
        matcher.consume_token(allowed[len(allowed) // 2])
    return matcher.get_error() or None


def lark_of(gbnf: str) -> tuple[str, str | None]:
    """It as Lark, and why it cannot be used."""
    root = str(Path(__file__).resolve().parents[2])
    if root not in sys.path:
        sys.path.append(root)
    from backends.gbnf.lark import lark_of as convert
    from backends.gbnf.nodes import BadGrammar

    try:
        return convert(gbnf), None
    except BadGrammar as error:
        return "", str(error)


def serve() -> None:
    """Answer until nothing comes any more."""
    with contextlib.suppress(ValueError, OSError):  # macOS takes no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Bytes()))
    while select.select([sys.stdin], [], [], IDLE_S)[0]:
        line = sys.stdin.buffer.readline()
        if not line:
            return
        # Beyond it the system ends the process.
        limit = math.ceil(time.process_time()) + MAX_CPU_S
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
        asked = json.loads(line)
        found = (
            lark_of(asked["gbnf"])
            if "gbnf" in asked
            else problem(asked["grammar"], asked["limits"], tokenizer)
        )
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()
