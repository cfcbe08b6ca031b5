"""Who a caller is to the service, and what he may do.

A principal is a named caller of the principals file, else a bare token or, where nobody needs one, a client address.
The file (`LLM_PRINCIPALS_FILE`, YAML or JSON) says per name which tokens are its own, as SHA-256 digests, so that
reading the file lets nobody in:

    principals:
      - name: reports
        token_sha256: 5e88…                 # or a list of them, while a token is being replaced
        limits: {rps: 2, burst: 5, max_concurrent: 3}
        budget_usd_per_day: 5
        privacy: local
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

Privacy = Literal["local", "any"]
"""Where a prompt may go: `local` keeps it from every cloud."""

MAX_FILE_BYTES: Final = 4 * 1024 * 1024
_MAX_PROBLEMS: Final = 5
_CLASS: Final = re.compile(r" or instance of \S+")
"""In a message of pydantic, what means nothing to an operator."""


class Principal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One caller. `name` is what logs, metrics and limits know him by; None elsewhere takes the service's own."""

    name: str
    is_named: bool = False
    """Of the principals file: its name may be a label of a metric."""
    rate_limit_rps: float | None = None
    rate_limit_burst: int | None = None
    max_concurrent: int | None = None
    """Completions of this principal that run or wait at once."""
    budget_usd_per_day: float | None = None
    privacy: Privacy = "any"


def digest_of(token: bytes) -> bytes:
    """What is kept of a token."""
    return hashlib.sha256(token).digest()


def unnamed(digest: bytes) -> Principal:
    """The principal of a token without a name: the same in every worker and after a restart."""
    return Principal(name="key:" + digest.hex()[:12])


def parse_principals(text: bytes) -> Mapping[bytes, Principal]:
    """Digest -> principal. Raises: ValueError that says what is wrong, and quotes nothing of the file but names."""
    if len(text) > MAX_FILE_BYTES:
        raise ValueError(f"it has {len(text)} bytes; the limit is {MAX_FILE_BYTES}")
    try:
        entries = _File.model_validate(_document(text)).principals
    except ValidationError as exc:
        raise ValueError(_sentence(exc)) from None
    found: dict[bytes, Principal] = {}
    names: set[str] = set()
    for entry in entries:
        if entry.name in names:
            raise ValueError(f"two principals are called {entry.name!r}")
        names.add(entry.name)
        principal = entry.principal()
        for text_digest in entry.token_sha256:
            digest = bytes.fromhex(text_digest)
            if digest in found:
                raise ValueError(f"{found[digest].name!r} and {entry.name!r} have the same token")
            found[digest] = principal
    return found


def _number(value: object) -> object:
    if isinstance(value, bool | str):
        raise ValueError("must be a number")  # noqa: TRY004 - pydantic turns only a ValueError into a problem
    return value


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


_Number = BeforeValidator(_number)


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)


class _Limits(_Entry):
    rps: Annotated[float, Field(ge=0), _Number] | None = None
    burst: Annotated[int, Field(ge=1), _Number] | None = None
    max_concurrent: Annotated[int, Field(ge=1, le=10_000), _Number] | None = None


class _Principal(_Entry):
    # No colon: what the service itself calls callers (`key:…`, `ip:…`) has one.
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]
    token_sha256: Annotated[
        tuple[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")], ...],
        Field(min_length=1, max_length=16),
        BeforeValidator(_listed),
    ]
    limits: _Limits = _Limits()
    budget_usd_per_day: Annotated[float, Field(ge=0, le=1e9), _Number] | None = None
    privacy: Privacy = "any"

    def principal(self) -> Principal:
        return Principal(
            name=self.name,
            is_named=True,
            rate_limit_rps=self.limits.rps,
            rate_limit_burst=self.limits.burst,
            max_concurrent=self.limits.max_concurrent,
            budget_usd_per_day=self.budget_usd_per_day,
            privacy=self.privacy,
        )


class _File(_Entry):
    principals: Annotated[tuple[_Principal, ...], Field(min_length=1)]


def _document(text: bytes) -> Any:
    try:
        words = text.decode("utf-8-sig")
        if words.lstrip().startswith("{"):
            # YAML reads most JSON, but no tabs before a key.
            return json.loads(words)
        return yaml.safe_load(words)
    except (ValueError, RecursionError):
        raise ValueError("it is neither YAML nor JSON") from None
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark is not None else ""
        raise ValueError(f"it is neither YAML nor JSON{where}") from None


def _sentence(error: ValidationError) -> str:
    problems = error.errors(include_input=False, include_url=False)
    said = [
        f"{'.'.join(map(str, problem['loc'])) or 'the whole'}: {_CLASS.sub('', problem['msg'])}"
        for problem in problems[:_MAX_PROBLEMS]
    ]
    if len(problems) > len(said):
        said.append(f"and {len(problems) - len(said)} more")
    return "; ".join(said)
