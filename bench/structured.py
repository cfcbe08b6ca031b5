"""`structured`: what a JSON schema costs between tokens, on one service that answers with and without one in turns.

A turn sends as many requests at once as there are streams; all of them write the same number of tokens. The schema is a
list that is longer than any answer, with strings, numbers and enums in it. ITL is the time between two pieces of text.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp

from bench.client import Answer, ask, chat, open_session
from bench.compare import first_answer
from bench.measurement import Findings, Measurement, Setup
from bench.ours import llamacpp_settings, our_service
from bench.processes import Server
from bench.result import markdown, shown, verdict
from bench.stats import median, percentile, ratio, spread
from bench.workload import Prompts

FREE, HELD = "without", "with a schema"
SCHEMA: dict[str, Any] = {
    "type": "array",
    "minItems": 100,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 24},
            "kind": {"enum": ["animal", "plant", "stone"]},
            "weight": {"type": "number", "minimum": 0, "maximum": 1000},
            "known": {"type": "boolean"},
        },
        "required": ["name", "kind", "weight", "known"],
    },
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--turns", type=int, default=6, help="of each kind")
    parser.add_argument("--output-tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=2)


async def measure(options: argparse.Namespace, setup: Setup) -> Findings:
    size = {"slots": options.streams, "ctx_per_slot": 512, "threads": options.threads}
    prompts = Prompts(setup.seed)
    turns: dict[str, list[dict[str, float | None]]] = {FREE: [], HELD: []}
    errors: list[str] = []
    settings = llamacpp_settings(**size)
    async with (
        open_session() as session,
        our_service(settings=settings, out=setup.out, priority=setup.priority) as server,
    ):
        await first_answer(session, server)
        for held in (False, True):  # compiles the schema, and shows every slot a prompt
            await _turn(session, server, prompts, options, held=held)
        for turn in range(options.turns):
            for side in (FREE, HELD):
                made, failed = await _turn(session, server, prompts, options, held=side == HELD)
                turns[side].append(made)
                errors += failed
            told = ", ".join(f"{side} {turns[side][-1]['itl_p50_ms'] or 0:.1f}" for side in turns)
            setup.say(f"turn {turn + 1}: ITL p50 in ms: {told}; errors {len(errors)}")
    return Findings(
        parameters={
            **size,
            "output tokens": options.output_tokens,
            "temperature": options.temperature,
            "seed": setup.seed,
        },
        n=f"{options.turns} turns of {options.streams} streams each, with and without in turns",
        data=turns,
        errors=errors,
    )


async def _turn(
    session: aiohttp.ClientSession,
    server: Server,
    prompts: Prompts,
    options: argparse.Namespace,
    *,
    held: bool,
) -> tuple[dict[str, float | None], list[str]]:
    answers = [Answer() for _ in range(options.streams)]
    form = {"type": "json_schema", "json_schema": {"name": "list", "schema": SCHEMA}}
    more: dict[str, Any] = {"temperature": options.temperature, "seed": 1}
    if held:
        more["response_format"] = form
    await asyncio.gather(
        *(
            ask(session, server.url, {**chat(prompts.draw(), options.output_tokens), **more}, answer)
            for answer in answers
        )
    )
    gaps = [
        (later[0] - earlier[0]) * 1000
        for answer in answers
        for earlier, later in zip(answer.pieces, answer.pieces[1:], strict=False)
    ]
    return {
        "itl_p50_ms": median(gaps),
        "itl_p99_ms": percentile(gaps, 0.99),
        "ttft_p50_ms": median(answer.ttft * 1000 for answer in answers if answer.ttft is not None),
    }, [answer.error for answer in answers if answer.error is not None]


def table(data: Mapping[str, Any]) -> str:
    rows = []
    for name, words in {
        "itl_p50_ms": "ITL p50, ms",
        "itl_p99_ms": "ITL p99, ms",
        "ttft_p50_ms": "TTFT p50, ms",
    }.items():
        held, free = ([turn[name] for turn in data[side]] for side in (HELD, FREE))
        rate = ratio(held, free)
        goal = verdict(rate.median if rate else None, at_most=1.15) if name == "itl_p50_ms" else ""
        rows.append([words, shown(spread(held)), shown(spread(free)), shown(rate, 2), goal])
    return markdown(["", HELD, FREE, "with ÷ without", "goal"], rows)


STRUCTURED = Measurement(
    name="structured",
    title="what a JSON schema costs between tokens",
    add_arguments=add_arguments,
    measure=measure,
    table=table,
    quick=["--streams", "2", "--turns", "1", "--output-tokens", "8"],
)
