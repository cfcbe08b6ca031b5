"""LiteLLM's providers as a Backend. Nothing is loaded here, so there is nothing to load, unload or place."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from typing_extensions import override

from backends.base import Backend
from backends.clock import Clock, MonotonicClock
from backends.embedding import EmbeddingRequest, Embeddings, Ranking, RerankRequest
from backends.errors import (
    BackendFailed,
    BackendUnavailable,
    Draining,
    NotSupported,
    UnsupportedParameter,
    UpstreamAuthFailed,
)
from backends.litellm import embedding, providers, sdk, transport, usage
from backends.litellm.call import Call, Road
from backends.litellm.chat import Chat
from backends.litellm.deployment import Deployment, Deployments
from backends.litellm.errors import Translator
from backends.litellm.offers import offered_models
from backends.litellm.parameters import plan
from backends.litellm.patience import Cooldowns, Patience
from backends.litellm.provenance import provenance_of
from backends.litellm.run import Run
from backends.litellm.upgrades import tell
from backends.tokenizing import TokenizeRequest, Tokens
from backends.types import (
    BackendHealth,
    EventBatch,
    Feature,
    GenerationRequest,
    LoadProgress,
    ModelStatus,
    Offers,
    Prompt,
)
from models.catalogue import Catalogue
from models.errors import UnknownModel

_log = logging.getLogger(__name__)

MAX_THREADS: Final = 64
"""LiteLLM prepares most calls in a thread, where some providers ask a cloud for a token. asyncio has six threads on two
cores: as many calls to a cloud that does not answer would hold up those to all others."""

T = TypeVar("T")
Asked = TypeVar("Asked", EmbeddingRequest, RerankRequest)


class LiteLLMBackend(Backend):
    """Requests to whatever provider a model's name says, with the keys of this process's environment.

    Made with LiteLLM imported, which takes seconds; from then on nothing of it is slow. Its memory of failing
    deployments is this process's own.
    """

    kind = "litellm"
    features: frozenset[Feature] = frozenset({"tools", "structured_outputs", "reasoning_effort", "vision"})

    def __init__(
        self,
        catalogue: Catalogue,
        environ: MutableMapping[str, str],
        patience: Patience | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        """`environ`: the process's own, where LiteLLM finds keys and addresses.

        Raises: ModuleNotFoundError where LiteLLM is not installed.
        """
        self._environ = environ
        self._sdk = sdk.load(environ)
        self._patience = patience or Patience()
        self._catalogue = catalogue
        self._deployments = Deployments(self._sdk, catalogue)
        self._cooldowns = Cooldowns(self._patience, clock or MonotonicClock())
        self._pool: transport.Pool | None = None
        self._road: Road | None = None
        self._offers = Offers()
        self._runs: set[Run] = set()
        self._calls: set[asyncio.Task[Any]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = self._draining = False

    @override
    async def start(self) -> None:
        if self._pool is not None:
            await self._pool.aclose()
        else:
            threads = ThreadPoolExecutor(MAX_THREADS, "litellm")
            asyncio.get_running_loop().set_default_executor(threads)
        self._pool = transport.Pool(self._sdk)
        self._road = Road(
            sdk=self._sdk,
            chat=Chat(self._sdk, self._environ),
            internal=sdk.internal_calls(),
            translator=Translator(providers.secrets_in(self._environ)),
            cooldowns=self._cooldowns,
            patience=self._patience,
        )
        for name, right in providers.unread(self._providers(), self._environ).items():
            _log.warning("%s is set, but LiteLLM reads the address from %s", name, right)
        await self._warm_up()

    async def _warm_up(self) -> None:
        """LiteLLM imports the rest of itself (0.4 s) when a call first needs it; better now than under a request. No
        provider hears of it."""
        sdk.internal_calls().set(True)
        try:
            for stream in (False, True):
                answer = await self._sdk.acompletion(
                    model="gpt-4o",
                    messages=[{"role": "user", "content": "-"}],
                    api_key="-",
                    mock_response="-",
                    stream=stream,
                )
                if stream:
                    async for _ in answer:
                        pass
        except Exception as error:
            tell("it could not be warmed up, and the first request will be slow or fail", error)

    @override
    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EventBatch, None]:
        run = self._accepted(request)
        self._runs.add(run)
        self._idle.clear()
        try:
            async with contextlib.aclosing(run.batches()) as batches:
                async for batch in batches:
                    yield batch
        finally:
            self._runs.discard(run)
            self._rest()

    @override
    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        return await self._called(embedding.embed, request)

    @override
    async def rerank(self, request: RerankRequest) -> Ranking:
        return await self._called(embedding.rerank, request)

    async def _called(
        self, work: Callable[[Road, Deployment, Asked, float], Coroutine[Any, Any, T]], asked: Asked
    ) -> T:
        """A call that is answered whole, in a task of its own: what LiteLLM and its transport keep in context
        variables stays in there, and the end of this process ends it."""
        road, deployment = self._open(asked.model)
        task = asyncio.create_task(work(road, deployment, asked, self._deadline()))
        self._calls.add(task)
        self._idle.clear()
        try:
            return await task
        except asyncio.CancelledError:
            if self._closed and not _is_cancelled():
                raise BackendFailed("The service is shutting down") from None
            raise
        finally:
            task.cancel()
            self._calls.discard(task)
            self._rest()

    def _open(self, model: str) -> tuple[Road, Deployment]:
        """The way to a model. Raises: BackendUnavailable, Draining, UnknownModel, UpstreamAuthFailed."""
        if self._closed or self._road is None:
            raise BackendUnavailable("This process is shutting down")
        if self._draining:
            raise Draining("The service is shutting down")
        deployment = self._deployments.resolve(model)
        self._require_key(deployment)
        return self._road, deployment

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._patience.request_timeout_s

    def _rest(self) -> None:
        if not self._runs and not self._calls:
            self._idle.set()

    def _accepted(self, request: GenerationRequest) -> Run:
        """Everything that can be judged before a provider hears of the request."""
        road, deployment = self._open(request.model)
        planned = plan(request, deployment)
        deadline = self._deadline()
        run = Run(
            request.request_id,
            request.model,
            num_prompts=len(request.prompts),
            hold=not request.stream,
            testify=partial(provenance_of, deployment, request.sampling)
            if request.wants_provenance
            else None,
        )
        for part in planned.parts:
            call = Call(
                road,
                deployment,
                planned,
                part,
                prompt=request.prompts[part.prompt],
                model=request.model,
                put=run.put,
                deadline=deadline,
            )
            run.add(part.prompt, call)
        return run

    def _require_key(self, deployment: Deployment) -> None:
        """LiteLLM would send the request with an empty key, or ask a cloud's metadata service for one."""
        if not self._has_key(deployment):
            raise UpstreamAuthFailed(f"This server has no key for the provider {deployment.provider!r}")

    def _has_key(self, deployment: Deployment) -> bool:
        provider = deployment.provider
        return providers.has_key(provider, self._environ) or providers.has_address(provider, self._environ)

    @override
    async def abort(self, request_id: str) -> None:
        for run in [run for run in self._runs if run.request_id == request_id]:
            run.end(BackendFailed("The request was aborted"))

    @override
    async def count_tokens(self, model: str, prompt: Prompt) -> int:
        deployment = self._deployments.resolve(model)
        return await asyncio.to_thread(usage.count_prompt, self._sdk, deployment, prompt)

    @override
    async def tokenize(self, request: TokenizeRequest) -> Tokens:
        """How many tokens there are, by LiteLLM's tokenizer for the model or the nearest it has. Which ones, the
        provider does not say."""
        if request.with_strings:
            raise UnsupportedParameter(
                "return_token_strs: the provider does not tell its tokens", param="return_token_strs"
            )
        return Tokens(await self.count_tokens(request.model, request.prompt), is_estimated=True)

    @override
    async def load(self, model: str) -> AsyncGenerator[LoadProgress, None]:
        self._refuse_to_load(model)
        yield LoadProgress("ready")

    @override
    async def unload(self, model: str) -> None:
        self._refuse_to_load(model)

    def _refuse_to_load(self, model: str) -> None:
        self._deployments.resolve(model)
        raise NotSupported("Backend 'litellm' does not load models: they are loaded by their provider")

    @override
    async def health(self) -> BackendHealth:
        if self._closed:
            return BackendHealth(healthy=False, message="This process is shutting down")
        if not self._configured():
            names = ", ".join(providers.USUAL_KEYS)
            return BackendHealth(healthy=False, message=f"No provider has a key; set one of {names}")
        return BackendHealth(healthy=True, models=self._statuses())

    def _statuses(self) -> tuple[ModelStatus, ...]:
        """One per card: other names come from clients, and what is shown here becomes a label of a metric."""
        running = Counter(run.model for run in self._runs)
        return tuple(self._status(card.id, running[card.id]) for card in self._catalogue.cards("litellm"))

    def _status(self, card_id: str, running: int) -> ModelStatus:
        try:
            deployment = self._deployments.resolve(card_id)
        except UnknownModel:
            return ModelStatus(id=card_id, state="failed", message="LiteLLM knows no provider of this name")
        if not self._has_key(deployment):
            message = f"There is no key for the provider {deployment.provider!r}"
            return ModelStatus(id=card_id, state="failed", message=message)
        return ModelStatus(
            id=card_id, state="loaded", context_length=deployment.context_length, running=running
        )

    @override
    async def offers(self) -> Offers:
        found = self._configured()
        if found != self._offers.prefixes:
            self._offers = Offers(models=tuple(offered_models(self._sdk, found)), prefixes=found)
        return self._offers

    def _configured(self) -> tuple[str, ...]:
        return providers.configured(self._providers(), self._environ)

    def _providers(self) -> list[str]:
        return [str(one.value) for one in self._sdk.provider_list]

    @override
    async def drain(self, timeout_s: float) -> bool:
        self._draining = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    @override
    async def aclose(self) -> None:
        self._closed = True
        for run in list(self._runs):
            run.end(BackendFailed("The service is shutting down"))
        for task in list(self._calls):
            task.cancel()
        if self._pool is not None:
            await self._pool.aclose()


def _is_cancelled() -> bool:
    """Whether whoever waits was cancelled itself, rather than what it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
