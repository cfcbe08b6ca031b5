"""Cores that count: what a control group grants, in both versions and however deep."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from backends.control_groups import ControlGroups
from backends.processors import usable_cores


@pytest.fixture(autouse=True)
def machine_of_64_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)


def seen(folder: Path, membership: str, files: dict[str, str]) -> int:
    """Cores, where /proc/self/cgroup says `membership` and these files stand below /sys/fs/cgroup."""
    (folder / "membership").write_text(membership)
    for name, content in files.items():
        path = folder / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return usable_cores(ControlGroups(folder / "membership", folder / "groups"))


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("200000 100000", 2), ("150000 100000", 1), ("50000 100000", 1), ("max 100000", 64), ("nonsense", 64)],
)
def test_the_quota_of_the_container_counts_in_whole_cores(tmp_path: Path, quota: str, cores: int) -> None:
    assert seen(tmp_path, "0::/\n", {"cpu.max": f"{quota}\n"}) == cores


def test_a_quota_beyond_the_machine_changes_nothing(tmp_path: Path) -> None:
    assert seen(tmp_path, "0::/\n", {"cpu.max": "9000000 100000\n"}) == 64


def test_the_smallest_quota_on_the_way_up_counts(tmp_path: Path) -> None:
    files = {
        "pods/cpu.max": "300000 100000\n",
        "pods/one/cpu.max": "max 100000\n",
        "pods/one/api/cpu.max": "800000 100000\n",
        "pods/two/cpu.max": "100000 100000\n",
    }

    assert seen(tmp_path, "0::/pods/one/api\n", files) == 3


@pytest.mark.parametrize("group", ["", "docker/abc"])
def test_version_one_is_read_whether_it_shows_the_whole_tree_or_the_container_alone(
    tmp_path: Path, group: str
) -> None:
    folder = f"cpu/{group}".rstrip("/")
    files = {f"{folder}/cpu.cfs_quota_us": "400000\n", f"{folder}/cpu.cfs_period_us": "100000\n"}
    membership = "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/docker/abc\n"

    assert seen(tmp_path, membership, files) == 4


def test_version_one_without_a_quota_leaves_it_to_the_machine(tmp_path: Path) -> None:
    files = {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}

    assert seen(tmp_path, "1:cpu:/\n", files) == 64


def test_another_controller_s_group_is_not_asked(tmp_path: Path) -> None:
    files = {"cpuset/cpu.cfs_quota_us": "100000\n", "cpuset/cpu.cfs_period_us": "100000\n"}

    assert seen(tmp_path, "5:cpuset:/\n", files) == 64


def test_where_there_are_no_control_groups_the_machine_counts(tmp_path: Path) -> None:
    assert usable_cores(ControlGroups(tmp_path / "none", tmp_path / "nothing")) == 64


def test_a_group_outside_of_what_is_seen_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "groups").mkdir()
    (tmp_path / "cpu.max").write_text("100000 100000\n")

    assert seen(tmp_path, "0::/../outside\n", {"other/cpu.max": "100000 100000\n"}) == 64
