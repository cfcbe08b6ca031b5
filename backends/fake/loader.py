"""Where fake models come from: a table of scripts, with `fake-echo` always in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from typing_extensions import override

from backends.clock import Clock, MonotonicClock
from backends.fake.embedding import FakeEmbeddingModel
from backends.fake.model import FakeModel, FakeScript
from backends.loader import LoadedModel, ModelLoader
from backends.types import LoadProgress
from models.errors import UnknownModel, UnusableModel

if TYPE_CHECKING:
    from models.card import ModelCard

ECHO = "fake-echo"
LOAD_STEPS = 10


class FakeLoader(ModelLoader):
    """Serves `fake-echo` without any file or catalogue.

    `scripts`: model id -> behaviour; ids beside `fake-echo` exist by being in it. `resolve`: the
    catalogue's, for cards that it describes (aliases, `autoload`, a time-to-live); a card whose id has no
    script behaves as the echo.
    """

    kind = "fake"

    def __init__(
        self,
        scripts: Mapping[str, FakeScript] | None = None,
        *,
        resolve: Callable[[str], ModelCard] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._scripts = {ECHO: FakeScript(), **(scripts or {})}
        self._resolve = resolve
        self._clock = clock or MonotonicClock()
        self._cards: dict[str, ModelCard] = {}

    @override
    def resolve(self, name: str) -> ModelCard:
        if self._resolve is not None:
            try:
                card = self._resolve(name)
            except UnknownModel:
                if name not in self._scripts:
                    raise
            else:
                if "fake" in card.sources:
                    return card
        if name not in self._scripts:
            raise UnknownModel(name)
        return self._cards.setdefault(name, _card(name, self._script(name)))

    @override
    def estimate_bytes(self, card: ModelCard) -> int:
        return self._script(card.id).memory_bytes

    @override
    async def load(self, card: ModelCard, on_progress: Callable[[LoadProgress], None]) -> LoadedModel:
        script = self._script(card.id)
        size = script.memory_bytes or LOAD_STEPS
        for step in range(LOAD_STEPS if script.load_s else 1):
            on_progress(LoadProgress("loading", size * step // LOAD_STEPS, size))
            if script.load_s:
                await self._clock.sleep(script.load_s / LOAD_STEPS)
        if script.load_error is not None:
            raise UnusableModel(script.load_error)
        if "embeddings" in card.capabilities:
            return FakeEmbeddingModel(
                card.id,
                context_length=card.context_length or script.context_length,
                memory_bytes=script.memory_bytes,
            )
        return FakeModel(card.id, script, self._clock)

    def _script(self, model_id: str) -> FakeScript:
        return self._scripts.get(model_id) or self._scripts[ECHO]


def _card(name: str, script: FakeScript) -> ModelCard:
    from models.card import ModelCard, RemoteSource

    return ModelCard(
        id=name,
        backend="fake",
        sources={"fake": RemoteSource(name=name)},
        context_length=script.context_length,
        capabilities=("chat", "completion"),
    )
