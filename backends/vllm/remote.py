"""Servers that run elsewhere, as one backend inside the gateway's own process: there is no engine here that a runner
process would have to keep apart.

What they serve is found out in the background and offered to the catalogue, so that whatever a server lists can be
asked for. Which of several gets a request is `backends.vllm.balancer`'s decision; one that has produced nothing for a
request gives it back, and another one is tried.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from typing_extensions import override

from backends.base import Backend
from backends.embedding import EmbeddingRequest, Embeddings, Ranking, RerankRequest
from backends.errors import BackendTimeout, BackendUnavailable, NotSupported, ServiceError
from backends.tokenizing import DetokenizeRequest, TokenizeRequest, Tokens
from backends.types import (
    BackendHealth,
    ChatPrompt,
    EventBatch,
    Finished,
    GenerationRequest,
    LoadProgress,
    ModelStatus,
    Prompt,
    TextPrompt,
)
from backends.vllm import transport
from backends.vllm.attempt import Attempt
from backends.vllm.balancer import Balancer
from backends.vllm.listing import ServedModel
from backends.vllm.transport import SILENT, Unreached
from backends.vllm.upstream import Upstream
from models.card import HubSource, ModelCard, RemoteSource
from models.errors import ModelError

if TYPE_CHECKING:
    from models.catalogue import Catalogue

log = logging.getLogger("llm.vllm")

T = TypeVar("T")

POLL_S: Final = 10.0
"""Between two looks at a server that is well."""
RETRY_S: Final = 1.0
"""Between two looks at one that is not."""
LOOK_TIMEOUT_S: Final = 5.0
"""A server under load answers late; it is not to be taken for dead."""
GIVE_UP_S: Final = 30.0
"""A server that answered no look for so long gets back nothing of what it was asked, if another one is well."""
KEY_CHARS: Final = 2048
"""Of each text, what tells conversations apart."""
KEY_MESSAGES: Final = 8


@dataclass(slots=True)
class _Server:
    upstream: Upstream
    ailment: str | None = "No answer yet"
    """Why it can serve nothing, None when it can."""
    silent_since: float | None = None
    """When the first of the looks began that it has not answered since; None while it answers, be it with an error."""
    served: dict[str, ServedModel] = field(default_factory=dict)
    alarm: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by a request that met a failure: look at once."""


class RemoteBackend(Backend):
    """One or several OpenAI-compatible servers with the same models. Owns the upstreams.

    `now` and `chance`: see `Balancer`. `poll_s`: between two looks at a server; `look_timeout_s` and `give_up_s`: see
    `LOOK_TIMEOUT_S` and `GIVE_UP_S`.
    """

    kind = "vllm"

    def __init__(
        self,
        upstreams: Sequence[Upstream],
        catalogue: Catalogue,
        *,
        now: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
        poll_s: float = POLL_S,
        look_timeout_s: float = LOOK_TIMEOUT_S,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        self._servers = [_Server(upstream) for upstream in upstreams]
        self._catalogue = catalogue
        self._balancer = Balancer(len(upstreams), now=now, chance=chance)
        self._now = now
        self._poll_s = poll_s
        self._look_timeout_s = look_timeout_s
        self._give_up_s = give_up_s
        self._running: Counter[str] = Counter()
        self._watchers: list[asyncio.Task[None]] = []
        self._offered: tuple[ModelCard, ...] = ()

    @override
    async def start(self) -> None:
        self._watchers = [asyncio.create_task(self._watch(i)) for i in range(len(self._servers))]

    @override
    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EventBatch, None]:
        card = self._catalogue.resolve(request.model)
        name = self._served_name(card)
        key = conversation_key(request) if len(self._servers) > 1 else None
        left = set(self._serving(name))
        error: ServiceError | ModelError | None = None
        retries = -1
        self._running[card.id] += 1
        try:
            while (index := self._balancer.pick(key, self._loads(), self._well(left))) is not None:
                left.discard(index)
                retries += 1
                with self._attempt_at(index, error) as attempt:
                    upstream = self._servers[index].upstream
                    async with aclosing(upstream.attempt(request, served_name=name)) as batches:
                        async for batch in batches:
                            attempt.answered()
                            last = batch[-1]
                            if retries and type(last) is Finished and last.provenance is not None:
                                told = msgspec.structs.replace(last.provenance, retries=retries)
                                batch[-1] = msgspec.structs.replace(last, provenance=told)
                            yield batch
                    return
                error = attempt.error
            raise error or BackendUnavailable("No server is configured")
        finally:
            self._running[card.id] -= 1

    @override
    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        async def ask(upstream: Upstream, name: str) -> Embeddings:
            return await upstream.embed(request, served_name=name)

        return await self._asked(request.model, ask)

    @override
    async def rerank(self, request: RerankRequest) -> Ranking:
        async def ask(upstream: Upstream, name: str) -> Ranking:
            return await upstream.rerank(request, served_name=name)

        return await self._asked(request.model, ask)

    async def _asked(self, model: str, ask: Callable[[Upstream, str], Awaitable[T]]) -> T:
        """The answer of the least busy server, or of another one where that one cannot be reached."""
        card = self._catalogue.resolve(model)
        name = self._served_name(card)
        left = set(self._serving(name))
        error: ServiceError | ModelError | None = None
        self._running[card.id] += 1
        try:
            while (index := self._balancer.pick(None, self._loads(), self._well(left))) is not None:
                left.discard(index)
                with self._attempt_at(index, error) as attempt:
                    try:
                        answer = await ask(self._servers[index].upstream, name)
                    except BackendUnavailable as unavailable:
                        raise Unreached(unavailable) from None
                    attempt.answered()
                    return answer
                error = attempt.error
            raise error or BackendUnavailable("No server is configured")
        finally:
            self._running[card.id] -= 1

    def _attempt_at(self, index: int, error: ServiceError | ModelError | None) -> Attempt:
        return Attempt(self._balancer, index, self._servers[index].alarm, error)

    @override
    async def abort(self, request_id: str) -> None:
        for server in self._servers:
            await server.upstream.abort(request_id)

    @override
    async def count_tokens(self, model: str, prompt: Prompt) -> int:
        """Raises: NotSupported where the servers cannot count."""
        return await self._ask_one(model, lambda upstream, name: upstream.count_tokens(name, prompt))

    @override
    async def tokenize(self, request: TokenizeRequest) -> Tokens:
        """Raises: NotSupported where the servers tell no tokens."""
        return await self._ask_one(request.model, lambda upstream, name: upstream.tokenize(name, request))

    @override
    async def detokenize(self, request: DetokenizeRequest) -> str:
        """Raises: NotSupported where the servers tell no texts."""
        return await self._ask_one(request.model, lambda upstream, name: upstream.detokenize(name, request))

    async def _ask_one(self, model: str, ask: Callable[[Upstream, str], Awaitable[T]]) -> T:
        """The answer of the first server that can be reached, the healthy ones and those with little to do first."""
        name = self._served_name(self._catalogue.resolve(model))
        loads = self._loads()
        error: ServiceError = BackendUnavailable("No server is configured")
        for index in sorted(
            self._serving(name), key=lambda i: (self._servers[i].ailment is not None, loads[i])
        ):
            try:
                return await ask(self._servers[index].upstream, name)
            except (BackendUnavailable, BackendTimeout) as unavailable:
                error = unavailable
        raise error

    @override
    async def load(self, model: str) -> AsyncGenerator[LoadProgress, None]:
        if error := self._no_loading(model):
            raise error
        yield LoadProgress("ready")  # a generator, as the contract asks

    @override
    async def unload(self, model: str) -> None:
        raise self._no_loading(model)

    @override
    async def health(self) -> BackendHealth:
        """From what the watchers last saw; asks nobody."""
        ailments = [server.ailment for server in self._servers if server.ailment is not None]
        message = None
        if ailments:
            count = len(self._servers)
            message = ailments[0] if count == 1 else f"{len(ailments)} of {count} servers: {ailments[0]}"
        return BackendHealth(
            healthy=len(ailments) < len(self._servers),
            message=message,
            models=tuple(self._status(card) for card in self._catalogue.cards(self.kind)),
        )

    @override
    async def aclose(self) -> None:
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        for server in self._servers:
            await server.upstream.aclose()

    # Models.

    def _served_name(self, card: ModelCard) -> str:
        """What the servers call a card's model."""
        source = card.sources.get("vllm")
        if isinstance(source, RemoteSource):
            return source.name
        if isinstance(source, HubSource) and any(source.repo in server.served for server in self._servers):
            return source.repo
        return card.id

    def _serving(self, name: str) -> list[int]:
        """The servers that list the model; all, where none does: a list need not be complete, and one that was not read
        yet says nothing."""
        listing = [i for i, server in enumerate(self._servers) if name in server.served]
        return listing or list(range(len(self._servers)))

    def _well(self, left: Collection[int]) -> Collection[int]:
        """Those that were well when they were last looked at: one that hangs takes connections all the same, and every
        request would have to find out for itself. All, where none was."""
        return [i for i in left if self._servers[i].ailment is None] or left

    def _loads(self) -> list[int]:
        return [server.upstream.running for server in self._servers]

    def _status(self, card: ModelCard) -> ModelStatus:
        name = self._served_name(card)
        listings = [server.served[name] for server in self._servers if name in server.served]
        is_listed = bool(listings) or not any(server.served for server in self._servers)
        return ModelStatus(
            id=card.id,
            state="loaded" if is_listed else "failed",
            context_length=_smallest_context(listings),
            message=None if is_listed else "No server lists it",
            running=self._running[card.id],
        )

    def _no_loading(self, model: str) -> ServiceError:
        self._catalogue.resolve(model)
        return NotSupported("The models of a remote server are loaded and unloaded there")

    # Watching.

    async def _watch(self, index: int) -> None:
        server = self._servers[index]
        while True:
            server.alarm.clear()
            try:
                await self._look(index)
            except Exception:
                log.exception("looking at server %d failed", index + 1)
            pause_s = self._poll_s if server.ailment is None else min(RETRY_S, self._poll_s)
            try:
                async with asyncio.timeout(pause_s):
                    await server.alarm.wait()
                    # A burst of failures is one reason to look, not many.
                    await asyncio.sleep(min(0.1, pause_s))
            except TimeoutError:
                pass

    async def _look(self, index: int) -> None:
        server = self._servers[index]
        begun = self._now()
        ailment = await server.upstream.ailment(timeout_s=self._look_timeout_s)
        if ailment != SILENT:
            server.silent_since = None
        elif server.silent_since is None:
            server.silent_since = begun
        if ailment is None:
            try:
                server.served = {model.id: model for model in await server.upstream.models()}
            except NotSupported:
                server.served = {}
            except (ServiceError, ModelError) as error:
                ailment = error.message
            else:
                self._offer()
        if ailment is None and server.ailment is not None:
            # Not at every good look: a server can be well by its own word and fail every request.
            self._balancer.invite(index)
        if ailment != server.ailment:
            what = "is well" if ailment is None else ailment
            log.log(logging.INFO if ailment is None else logging.WARNING, "server %d: %s", index + 1, what)
        server.ailment = ailment
        if server.silent_since is not None and self._now() - server.silent_since >= self._give_up_s:
            self._take_back(index)

    def _take_back(self, index: int) -> None:
        """Requests that wait for the first byte of a server that hangs are tried on another one, if one is well."""
        if any(server.ailment is None for server in self._servers):
            self._servers[index].upstream.take_back(Unreached(transport.unavailable(SILENT)))

    def _offer(self) -> None:
        """Tell the catalogue what the servers list, if that has changed."""
        names = sorted({name for server in self._servers for name in server.served})
        offered = tuple({card.id: card for card in map(self._card, names)}.values())
        if offered != self._offered:
            self._offered = offered
            self._catalogue.offer("vllm", offered)

    def _card(self, name: str) -> ModelCard:
        listings = [server.served[name] for server in self._servers if name in server.served]
        capabilities = next((model.capabilities for model in listings if model.capabilities), None)
        return ModelCard(
            # llama-server calls a model by its file unless told otherwise; where it lies is nobody's business here.
            id=name.rpartition("/")[2] if name.startswith("/") else name,
            backend="vllm",
            sources={"vllm": RemoteSource(name=name)},
            context_length=_smallest_context(listings),
            **({} if capabilities is None else {"capabilities": capabilities}),
        )


def _smallest_context(listings: Sequence[ServedModel]) -> int | None:
    return min((model.context_length for model in listings if model.context_length is not None), default=None)


def conversation_key(request: GenerationRequest) -> bytes:
    """The same for all requests of one conversation: its messages up to the first of the user, or the beginning of a
    text. Eight bytes; nothing of the text can be read from them."""
    digest = blake2b(request.model.encode("utf-8", "replace"), digest_size=8)
    prompt = request.prompts[0]
    if isinstance(prompt, ChatPrompt):
        for message in prompt.messages[:KEY_MESSAGES]:
            role, content = str(message.get("role", "")), message.get("content")
            text = content if isinstance(content, str) else "\0".join(map(_key_of_part, content or ()))
            digest.update(f"\0{role}\0{text[:KEY_CHARS]}".encode("utf-8", "replace"))
            if role == "user":
                break
    elif isinstance(prompt, TextPrompt):
        digest.update(prompt.text[:KEY_CHARS].encode("utf-8", "replace"))
    else:
        digest.update(repr(prompt.token_ids[: KEY_CHARS // 4]).encode())
    return digest.digest()


def _key_of_part(part: Mapping[str, Any]) -> str:
    """Of a picture its last bytes: the first are much the same in all that one program wrote."""
    if part.get("type") != "image_url":
        return str(part.get("text", ""))[:KEY_CHARS]
    url = str(part["image_url"]["url"])
    return f"{len(url)} {url[-KEY_CHARS // KEY_MESSAGES :]}"
