"""The documentation's tables, and what the settings may import and others must not read."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from pydantic import BaseModel

from settings import Args, Settings
from settings.reference import reference

DOCS = Path(__file__).parents[2] / "docs" / "configuration.md"


def sections(text: str) -> dict[str, str]:
    return dict(re.findall(r"<!-- (\w+) -->\n(.*?)\n<!-- end -->", text, re.DOTALL))


def test_the_tables_of_the_documentation_are_those_of_the_code() -> None:
    assert sections(DOCS.read_text("utf-8")) == reference()


def test_every_variable_and_argument_stands_in_the_reference() -> None:
    def leaves(model: type[BaseModel], prefix: str) -> set[str]:
        names: set[str] = set()
        for name, field in model.model_fields.items():
            inner = field.annotation
            nested = isinstance(inner, type) and issubclass(inner, BaseModel)
            names |= leaves(inner, f"{prefix}{name}.") if nested else {prefix + name}  # type: ignore[arg-type]
        return names

    documented = set(re.findall(r"^\| `([\w.]+)`", "\n".join(reference().values()), re.MULTILINE))

    assert documented == {f"LLM_{name.upper()}" for name in Settings.model_fields} | leaves(Args, "")


def test_every_knob_says_what_is_allowed_and_what_it_does() -> None:
    rows = [row for table in reference().values() for row in table.splitlines()[2:]]

    assert all(len(row.split(" | ")) == 4 and "|  |" not in row for row in rows)


def test_nothing_else_in_the_service_reads_the_environment() -> None:
    root = Path(__file__).parents[2]
    readers = [
        str(path.relative_to(root))
        for folder in ("models", "backends", "openai_compat")
        for path in (root / folder).rglob("*.py")
        if re.search(r"os\.environ|getenv", path.read_text("utf-8"))
    ]

    # Hands its child what the dynamic loader needs; no setting comes from there.
    assert readers == ["backends/llamacpp/constraint_trial.py"]


def test_importing_the_settings_brings_neither_bentoml_nor_a_parser_nor_the_hub() -> None:
    program = "import sys, settings, models.catalogue, models.sources; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50
    )

    assert not {"bentoml", "yaml", "huggingface_hub", "tqdm", "fastapi", "llama_cpp"} & set(
        done.stdout.split()
    )
