"""A request inside the engine, and the choices it is computed as. No scheduling in here, and no forward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from backends.errors import ServiceError
from backends.llamacpp.constraint import Constraint
from backends.llamacpp.model import GgufModel
from backends.llamacpp.output import ChoiceOutput
from backends.llamacpp.sampler import Sampler
from backends.llamacpp.slots import Slot
from backends.types import Event, SamplingParams


@dataclass(eq=False)
class Job:
    """One request inside the engine. Built by the caller's thread, afterwards touched by the engine's thread only.

    `must_repeat`: the same request must give the same text whether or not its prefix was cached (fixed seed, greedy).
    """

    params: SamplingParams
    prompts: list[list[int]]
    echoes: list[str]
    """Text before each prompt's choices, "" without echo."""
    n: int
    seed: int
    is_streaming: bool
    must_repeat: bool
    accepted_at: float
    receive: Callable[[list[Event], ServiceError | None], None]
    """Where its events go; called by whoever `deliver` hands the delivery to."""
    shown: Mapping[int, bytes] = field(default_factory=dict)
    """Control tokens that are text here, and what they say: the marks of tool calls, for example."""
    constraint: Constraint | None = None
    """What each of its answers has to look like."""
    started_at: float = 0.0
    first_token_at: float = 0.0
    cached_tokens: int = 0
    completion_tokens: int = 0
    num_unfinished: int = 0
    is_over: bool = False
    events: list[Event] = field(default_factory=list)
    """What this step brought; handed over at its end."""

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    def sequences(self) -> list[Sequence]:
        """One for each choice of each prompt, in the order of their indexes."""
        return [
            Sequence(self, prompt_index, i)
            for prompt_index in range(len(self.prompts))
            for i in range(self.n)
        ]


Delivery = tuple[Job, list[Event], ServiceError | None]
"""Events of one job, in order; an error is its end."""


class Sequence:
    """One choice while it is computed."""

    __slots__ = (
        "counts_cache",
        "index",
        "job",
        "max_tokens",
        "num_prompt",
        "output",
        "sampler",
        "slot",
        "tokens",
    )

    def __init__(self, job: Job, prompt_index: int, i: int) -> None:
        prompt = job.prompts[prompt_index]
        self.job = job
        self.index = prompt_index * job.n + i
        self.tokens = list(prompt)
        self.num_prompt = len(prompt)
        self.max_tokens = job.params.max_tokens
        self.slot: Slot | None = None
        self.counts_cache = i == 0
        self.output = ChoiceOutput(
            self.index, job.params.stop, echo=job.echoes[prompt_index], min_tokens=job.params.min_tokens
        )
        self.sampler: Sampler | None = None
        """Made when it starts: a thousand waiting choices would be a thousand parsed grammars and arrays of the
        vocabulary's size, all made in one go before the next step."""

    def make_sampler(self, model: GgufModel) -> None:
        if self.sampler is None:
            job = self.job
            seed = job.seed + self.index % job.n
            matcher = job.constraint.matcher() if job.constraint is not None else None
            prompt = self.tokens[: self.num_prompt]
            self.sampler = Sampler(job.params, model, seed=seed, prompt=prompt, matcher=matcher)

    def close(self) -> None:
        """Free its sampler. Idempotent."""
        if self.sampler is not None:
            self.sampler.close()

    @property
    def num_pending(self) -> int:
        """Tokens that are not computed yet; 1 while it decodes."""
        assert self.slot is not None
        return len(self.tokens) - len(self.slot.tokens)

    @property
    def slot_id(self) -> int:
        """Of the slot it runs in; only a running sequence has one."""
        assert self.slot is not None
        return self.slot.id
