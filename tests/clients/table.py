"""The README's table of clients, made of the tests: `python -m tests.clients.table` writes it.

A row is a module: `CLIENT` names it, and `PACKAGE` finds its version in a lock. A column is the part of a test's name
before `__`, a cell the fixtures of its tests: the engines that it was tried with.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
README = ROOT / "README.md"
BEGIN, END = "<!-- clients: made by python -m tests.clients.table -->\n", "<!-- /clients -->\n"
COLUMNS = {
    "chat": "Chat",
    "stream": "Stream",
    "structured_result": "Structured result",
    "tools": "Tools",
    "embeddings": "Embeddings",
}
ENGINES = {"llamacpp": "llama.cpp", "embedder": "llama.cpp", "fake": "fake"}


def version_of(package: str) -> str:
    """What the locks say. Raises: LookupError."""
    name = package.removeprefix("npm:")
    if name != package:
        lock = json.loads((HERE / "node" / "package-lock.json").read_text())
        return str(lock["packages"][f"node_modules/{name}"]["version"])
    lock_text = (ROOT / "requirements" / "clients.txt").read_text()
    found = re.search(rf"^{re.escape(name)}==(\S+)", lock_text, re.M)
    if found is None:
        raise LookupError(f"requirements/clients.txt has no {name}")
    return found.group(1)


def row_of(module: Path) -> str:
    tree = ast.parse(module.read_text())
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    cells: dict[str, set[str]] = {column: set() for column in COLUMNS}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            column = node.name.removeprefix("test_").split("__")[0]
            cells[column] |= {ENGINES[arg.arg] for arg in node.args.args if arg.arg in ENGINES}
    shown = [", ".join(sorted(engines, reverse=True)) for engines in cells.values()]
    return "| " + " | ".join([constants["CLIENT"], version_of(constants["PACKAGE"]), *shown]) + " |\n"


def table() -> str:
    head = ["Client", "Version", *COLUMNS.values()]
    rows = sorted((row_of(module) for module in HERE.glob("test_*.py")), key=str.lower)
    return "".join(["| " + " | ".join(head) + " |\n", "|---" * len(head) + "|\n", *rows])


def readme_with_table() -> str:
    """The README as it has to be."""
    before, _, rest = README.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table() + END + after


if __name__ == "__main__":
    README.write_text(readme_with_table())
    sys.stdout.write(table())
