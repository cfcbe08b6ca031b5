"""The measurements know the service by its address alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_command_imports_nothing_of_the_service() -> None:
    code = (
        "import sys, bench.__main__; "
        "print(sorted({name.partition('.')[0] for name in sys.modules} "
        "& {'backends', 'models', 'openai_compat', 'service', 'settings', 'preflight', 'bentoml', 'llama_cpp'}))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    )

    assert told.stdout.strip() == "[]"
