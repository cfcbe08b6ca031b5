"""What a failed check saw, in one line.

An assertion without a message says nothing by itself: its source and what its parts came to are looked up where it
failed. (In the tests pytest has done so already.)
"""

from __future__ import annotations

import ast
import linecache
import traceback
from collections.abc import Iterator
from types import FrameType

from openai_compat.conformance.check import LABEL_CHARS

VALUE_CHARS = 70


def seen_in(error: BaseException) -> str:
    """Of the exception that ended a check."""
    message = str(error)
    if isinstance(error, AssertionError):
        said = message or _assertion(error)
    else:
        said = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return " ".join(said.split())


def _assertion(error: BaseException) -> str:
    frame, line = list(traceback.walk_tb(error.__traceback__))[-1]
    statement = _statement_at(frame.f_code.co_filename, line)
    if statement is None:
        return "an assertion failed"
    test = statement.test
    values = [f"{text} is {value}" for text, value in _values(test, frame)]
    return "; ".join([ast.unparse(test), *values])


def _statement_at(file: str, line: int) -> ast.Assert | None:
    """The innermost `assert` that spans the line."""
    source = "".join(linecache.getlines(file))
    spanning = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assert) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return spanning[-1] if spanning else None


def _values(test: ast.expr, frame: FrameType) -> Iterator[tuple[str, str]]:
    """Of both sides of a comparison, or of the whole. A part that calls something is left out: it would ask the server
    again."""
    for part in [test.left, *test.comparators] if isinstance(test, ast.Compare) else [test]:
        if isinstance(part, ast.Constant) or any(_does_something(node) for node in ast.walk(part)):
            continue
        code = compile(ast.Expression(part), "<assertion>", "eval")
        try:
            value = repr(eval(code, frame.f_globals, frame.f_locals))  # noqa: S307  a part of our own source
        except Exception as broken:
            value = f"{type(broken).__name__}: {broken}"
        yield ast.unparse(part)[:LABEL_CHARS], value[:VALUE_CHARS]


def _does_something(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return not (isinstance(node.func, ast.Name) and node.func.id == "len")
    comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    return isinstance(node, ast.Await | ast.NamedExpr | comprehension)
