"""What models may still take of main memory, with and without a limit."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from backends.main_memory import available_bytes

MIB = 1 << 20


def group(folder: Path, limit: str, used: int, stat: str = "anon 1\ninactive_file 0\n") -> Path:
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(stat)
    return folder


def test_what_is_left_below_the_limit_of_a_container_counts(tmp_path: Path):
    assert available_bytes(group(tmp_path, str(3 * MIB), 2 * MIB)) == MIB


def test_files_that_nobody_uses_do_not_count_as_used(tmp_path: Path):
    stat = f"anon 5\ninactive_file {MIB}\nactive_file 7\n"

    assert available_bytes(group(tmp_path, str(3 * MIB), 2 * MIB, stat)) == 2 * MIB


def test_a_group_beyond_its_limit_has_nothing_left(tmp_path: Path):
    assert available_bytes(group(tmp_path, str(MIB), 2 * MIB)) == 0


@pytest.mark.parametrize("limit", ["max", str(1 << 60), "nonsense"])
def test_otherwise_the_machine_decides(tmp_path: Path, limit: str):
    machine = psutil.virtual_memory().available

    assert available_bytes(group(tmp_path, limit, MIB)) == pytest.approx(machine, rel=0.2)
    assert available_bytes(tmp_path / "none") == pytest.approx(machine, rel=0.2)
