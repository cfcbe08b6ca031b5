"""The server under test, in each form that a check may need."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cached_property
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
        self.service = Api(base_url, model, api_key)
        self._open.enter_context(self.service.http)

    def close(self) -> None:
        self._open.close()

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

    @cached_property
    def sdk(self) -> openai.OpenAI:
        """The unmodified SDK, which tries nothing twice."""
        import openai

        client = openai.OpenAI(
            base_url=f"{self.service.base_url}/v1",
            api_key=self._api_key or "not-needed",
            max_retries=0,
            timeout=SDK_TIMEOUT_S,
        )
        return self._open.enter_context(client)
