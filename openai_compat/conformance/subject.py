"""The server under test, in each form that a check may need."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from openai_compat.conformance.api import Api
from openai_compat.conformance.check import NotApplicable

if TYPE_CHECKING:
    import openai

SDK_TIMEOUT_S = 120


class Subject:
    """A running server. Each property is what a check may name as a parameter."""

    def __init__(self, base_url: str, model: str, api_key: str | None) -> None:
        self._api_key = api_key
        self._open = ExitStack()
        self._sdk: openai.OpenAI | None = None
        self.service = self._new(base_url, model)

    def close(self) -> None:
        self._open.close()

    def renew(self) -> None:
        """Closes every connection, whoever waits on it, and begins anew: an answer without end is left, so that the
        server stops making it."""
        self.close()
        self._sdk = None
        self.service = self._new(self.service.base_url, self.service.model)

    def _new(self, base_url: str, model: str) -> Api:
        api = Api(base_url, model, self._api_key)
        self._open.enter_context(api.http)
        return api

    def of(self, name: str) -> Any:
        """Raises: NotApplicable."""
        return getattr(self, name)

    @property
    def guarded(self) -> Api:
        """A server that wants a key."""
        if self._api_key is None:
            raise NotApplicable("needs --api-key")
        return self.service

    @property
    def limited(self) -> Api:
        """A server with this service's default limits."""
        raise NotApplicable(
            "needs a server with the default limits of this service and a key that nobody else spends"
        )

    @property
    def small(self) -> Api:
        """A server whose context a test can fill."""
        return self.service

    @property
    def sdk(self) -> openai.OpenAI:
        """The unmodified SDK, which tries nothing twice."""
        if self._sdk is None:
            import openai

            client = openai.OpenAI(
                base_url=f"{self.service.base_url}/v1",
                api_key=self._api_key or "not-needed",
                max_retries=0,
                timeout=SDK_TIMEOUT_S,
            )
            self._sdk = self._open.enter_context(client)
        return self._sdk
