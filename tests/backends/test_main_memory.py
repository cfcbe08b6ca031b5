"""What models may still take of main memory, with and without a limit."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from backends.control_groups import ControlGroups
from backends.main_memory import available_bytes

MIB = 1 << 20


STAT = "anon 1\ninactive_file 0\n"


def groups(folder: Path, limit: str, used: int, stat: str = STAT, *, name: str = "") -> ControlGroups:
    group = folder / "groups" / name
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.max").write_text(f"{limit}\n")
    (group / "memory.current").write_text(f"{used}\n")
    (group / "memory.stat").write_text(stat)
    (folder / "membership").write_text(f"0::/{name}\n")
    return ControlGroups(folder / "membership", folder / "groups")


def test_what_is_left_below_the_limit_of_a_container_counts(tmp_path: Path):
    assert available_bytes(groups(tmp_path, str(3 * MIB), 2 * MIB)) == MIB


def test_files_that_nobody_uses_do_not_count_as_used(tmp_path: Path):
    stat = f"anon 5\ninactive_file {MIB}\nactive_file 7\n"

    assert available_bytes(groups(tmp_path, str(3 * MIB), 2 * MIB, stat)) == 2 * MIB


def test_a_group_beyond_its_limit_has_nothing_left(tmp_path: Path):
    assert available_bytes(groups(tmp_path, str(MIB), 2 * MIB)) == 0


def test_the_limit_of_a_group_further_up_counts_too(tmp_path: Path):
    groups(tmp_path, str(4 * MIB), 3 * MIB, name="pod")

    assert available_bytes(groups(tmp_path, "max", 2 * MIB, name="pod/container")) == MIB


def test_version_one_of_control_groups_is_read_as_well(tmp_path: Path):
    group = tmp_path / "groups" / "memory"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text(f"{4 * MIB}\n")
    (group / "memory.usage_in_bytes").write_text(f"{3 * MIB}\n")
    (group / "memory.stat").write_text(f"inactive_file 1\ntotal_inactive_file {MIB}\n")
    (tmp_path / "membership").write_text("4:memory:/docker/abc\n0::/\n")

    assert available_bytes(ControlGroups(tmp_path / "membership", tmp_path / "groups")) == 2 * MIB


@pytest.mark.parametrize("limit", ["max", str(1 << 60), "nonsense"])
def test_otherwise_the_machine_decides(tmp_path: Path, limit: str):
    machine = psutil.virtual_memory().available

    assert available_bytes(groups(tmp_path, limit, MIB)) == pytest.approx(machine, rel=0.2)
    assert available_bytes(ControlGroups(tmp_path / "none", tmp_path)) == pytest.approx(machine, rel=0.2)
