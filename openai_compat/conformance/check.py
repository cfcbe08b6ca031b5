"""A behaviour and the checks that try it.

A check is a function that asks a server something and asserts what came back. It declares itself with `@openai_api` or
`@extension`; its name is `behaviour__what_it_says`, its parameters are what it needs (`Subject`) and what `@given`
gives it. Nothing here knows pytest, so the checks run wherever the service is installed; `tests/conformance` runs them
against the service that it starts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from types import ModuleType
from typing import Any, Final, Generic, Literal, NoReturn, TypeVar

Level = Literal["openai", "extension"]
Function = Callable[..., Any]
F = TypeVar("F", bound=Function)
E = TypeVar("E", bound=BaseException)

TIME_LIMIT_S: Final = 180
"""Of one check. Each of its answers may be computed by a model on a machine that is doing other things."""
LABEL_CHARS: Final = 80
_DECLARED: Final = "_conformance_check"
_GIVEN: Final = "_conformance_given"
_WITHIN: Final = "_conformance_within"


class NotOffered(Exception):
    """The server refuses, in a way that a client can read, what OpenAI's API lets a server leave out."""


class NotApplicable(Exception):
    """The check cannot be tried here; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One set of a check's inputs."""

    label: str
    inputs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Check:
    """One function, with everything that a runner has to know of it."""

    function: Function
    level: Level
    group: str
    """The module that it stands in."""
    needs: tuple[str, ...]
    """What of `Subject` it takes, by name."""
    variants: tuple[Variant, ...]
    time_limit_s: float

    @property
    def behaviour(self) -> str:
        """Several checks may try one behaviour."""
        return self.function.__name__.partition("__")[0]

    @property
    def says(self) -> str:
        name = self.function.__name__
        return (name.partition("__")[2] or name).replace("_", " ")


@dataclass(frozen=True, slots=True)
class _Given:
    names: tuple[str, ...]
    values: tuple[Any, ...]
    labels: tuple[str, ...]


def openai_api(function: F) -> F:
    """What any server of OpenAI's API should do. The outermost decorator."""
    return _declare(function, "openai")


def extension(function: F) -> F:
    """What only this service promises. The outermost decorator."""
    return _declare(function, "extension")


def given(
    names: str | Sequence[str], values: Sequence[Any], ids: Callable[[Any], str] | Sequence[str] = repr
) -> Callable[[F], F]:
    """The check is tried once with each value; two of these, with each combination. Several `names` take each value
    apart."""
    wanted = (names,) if isinstance(names, str) else tuple(names)
    rows = tuple((value,) if isinstance(names, str) else tuple(value) for value in values)
    assert all(len(row) == len(wanted) for row in rows), wanted
    if callable(ids):
        labels = tuple("-".join(ids(value) for value in row) for row in rows)
    else:
        labels = tuple(ids)
        assert len(labels) == len(rows), wanted

    def decorate(function: F) -> F:
        above: tuple[_Given, ...] = getattr(function, _GIVEN, ())
        setattr(function, _GIVEN, (_Given(wanted, rows, labels), *above))
        return function

    return decorate


def within(seconds: float) -> Callable[[F], F]:
    """A time limit other than `TIME_LIMIT_S`."""

    def decorate(function: F) -> F:
        setattr(function, _WITHIN, seconds)
        return function

    return decorate


def checks_in(module: ModuleType) -> list[Check]:
    """In the order in which they are written."""
    return [
        declared
        for value in vars(module).values()
        if isinstance(declared := getattr(value, _DECLARED, None), Check)
        and declared.group == _group(module.__name__)
    ]


@dataclass(slots=True)
class Raised(Generic[E]):
    """What a `raises` block saw; `value` is there once the block is over."""

    seen: list[E] = field(default_factory=list)

    @property
    def value(self) -> E:
        return self.seen[0]


@contextmanager
def raises(*kinds: type[E]) -> Iterator[Raised[E]]:
    """Asserts that the block raises one of these. Another exception passes through."""
    raised = Raised[E]()
    try:
        yield raised
    except kinds as error:
        raised.seen.append(error)
    else:
        names = " or ".join(kind.__name__ for kind in kinds)
        raise AssertionError(f"nothing was raised, and {names} was expected")


def fail(message: str) -> NoReturn:
    raise AssertionError(message)


def _declare(function: F, level: Level) -> F:
    givens: tuple[_Given, ...] = getattr(function, _GIVEN, ())
    taken = {name for one in givens for name in one.names}
    parameters = tuple(inspect.signature(function).parameters)
    assert taken <= set(parameters), (function.__name__, taken)
    check = Check(
        function=function,
        level=level,
        group=_group(function.__module__),
        needs=tuple(name for name in parameters if name not in taken),
        variants=_variants(givens),
        time_limit_s=getattr(function, _WITHIN, TIME_LIMIT_S),
    )
    setattr(function, _DECLARED, check)
    return function


def _variants(givens: Sequence[_Given]) -> tuple[Variant, ...]:
    rows = [list(zip(one.labels, one.values, strict=True)) for one in givens]
    variants = []
    for combination in product(*rows):
        inputs: dict[str, Any] = {}
        for one, (_, values) in zip(givens, combination, strict=True):
            inputs |= zip(one.names, values, strict=True)
        label = "-".join(label[:LABEL_CHARS] for label, _ in combination)
        variants.append(Variant(label, inputs))
    return tuple(variants)


def _group(module: str) -> str:
    return module.rpartition(".")[2]
