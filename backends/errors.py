"""The error tree of the service. Knows no HTTP numbers: `openai_compat.errors` maps class to status.

    ServiceError
    ├── RequestError                    the caller's fault; repeating the request does not help
    │   ├── BackendNotAvailable         the named backend is unknown or not enabled here
    │   ├── ContextLengthExceeded       the prompt leaves no room in the model's context
    │   ├── UnsupportedParameter        a known field this backend or model cannot honour
    │   ├── InvalidParameter            a value that only the model can judge (a token id outside its vocabulary)
    │   ├── InvalidGrammar              a grammar or schema that cannot be enforced
    │   ├── TemplateRefused             the chat template raised an error about these messages
    │   ├── Conflict                    unload while a load of that model runs
    │   └── NotSupported                this backend has no such operation at all
    └── BackendError                    ours, or the engine's; the same request may succeed later
        ├── BackendFailed               the engine failed to complete an accepted request
        ├── BackendUnavailable          the runner is dead, restarting or cannot be reached
        ├── Draining                    the process is shutting down
        ├── Overloaded                  a limit on running or waiting requests was reached
        ├── ModelNotReady               still loading after the longest wait, or unloaded with autoload off
        ├── InsufficientMemory          the model does not fit beside what is busy
        ├── BackendTimeout              a deadline passed
        └── UpstreamError               a remote server answered nonsense or an error of its own
            ├── UpstreamAuthFailed      a remote server refused our key
            └── UpstreamRateLimited     a remote server takes no more requests for now
                └── UpstreamQuotaExceeded   our account there is spent

`models.errors` holds the errors of the catalogue; both trees travel over the runner's wire.
"""

from __future__ import annotations


class ServiceError(Exception):
    """Root of this tree.

    `message` is one sentence for the caller: it names the limit and the value, and never a path, class or key.
    `param` is the dotted path of the request field at fault. `retry_after_s` is a hint in seconds.
    """

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class RequestError(ServiceError):
    """The caller's fault; repeating the same request does not help."""


class BackendNotAvailable(RequestError):
    """The named backend is unknown, or not enabled on this service."""

    def __init__(
        self, message: str, *, param: str | None = "backend", retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, param=param, retry_after_s=retry_after_s)

    @classmethod
    def named(cls, name: str) -> BackendNotAvailable:
        """The seed's sentence for a backend called `name`."""
        return cls(f"Backend {name[:64]!r} is not available")


class ContextLengthExceeded(RequestError):
    """The prompt leaves no room for a single token: `prompt_tokens` >= `context_length`, both in tokens."""

    def __init__(self, *, prompt_tokens: int, context_length: int, param: str | None = "messages") -> None:
        what = "messages" if param == "messages" else "prompt"
        super().__init__(
            f"This model's maximum context length is {context_length} tokens. "
            f"However, your {what} resulted in {prompt_tokens} tokens.",
            param=param,
        )
        self.prompt_tokens = prompt_tokens
        self.context_length = context_length


class UnsupportedParameter(RequestError):
    """A known field that this backend or model cannot honour."""


class InvalidParameter(RequestError):
    """A value that only the loaded model can judge, such as a token id outside its vocabulary."""


class InvalidGrammar(RequestError):
    """A grammar or schema that does not parse or cannot be enforced."""

    def __init__(
        self, message: str, *, param: str | None = "grammar", retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, param=param, retry_after_s=retry_after_s)


class TemplateRefused(RequestError):
    """The model's chat template raised an error about these messages; the message is the template's text."""

    def __init__(
        self, message: str, *, param: str | None = "messages", retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, param=param, retry_after_s=retry_after_s)


class Conflict(RequestError):
    """An unload was asked for while a load of the same model runs."""


class NotSupported(RequestError):
    """This backend has no such operation at all."""


class BackendError(ServiceError):
    """Ours, or the engine's; the same request may succeed later."""


class BackendFailed(BackendError):
    """The engine failed to complete a request that it had accepted."""


class BackendUnavailable(BackendError):
    """The runner is dead, restarting or cannot be reached."""


class Draining(BackendError):
    """The process is shutting down and takes no new work."""


class Overloaded(BackendError):
    """A limit on running or waiting requests was reached."""


class ModelNotReady(BackendError):
    """The model is still loading after the longest allowed wait, or is unloaded and its card says autoload: false."""


class InsufficientMemory(BackendError):
    """The model does not fit into memory beside the models that are busy."""


class BackendTimeout(BackendError):
    """A deadline passed: the whole request, its first token or a gap in its stream."""


class UpstreamError(BackendError):
    """A remote server answered nonsense, broke off, or reported an error of its own."""


class UpstreamAuthFailed(UpstreamError):
    """A remote server refused our key. Never the caller's 401."""


class UpstreamRateLimited(UpstreamError):
    """A remote server takes no more requests for now; `retry_after_s` is its own hint."""


class UpstreamQuotaExceeded(UpstreamRateLimited):
    """Our account at a remote server is spent: no pause helps, only whoever pays for it."""
