"""A machine that cannot build or run the image (exit code 77) is told from a fault of ours. The programs that
the scripts call are stand-ins."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
CANNOT = 77
is_root = pytest.mark.skipif(os.geteuid() != 0, reason="the scripts give up earlier for whoever is not root")


class Programs:
    """Stand-ins that are found before the real ones. Each notes that it was called, then does what it was given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "calls"

    def add(self, name: str, script: str = "") -> None:
        program = self.folder / name
        program.write_text(f'#!/bin/bash\necho "{name} $*" >>{self.log}\n{script}\n')
        program.chmod(0o755)

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("DOCKER_", "CI_"))},
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            **variables,
        }
        return subprocess.run(
            command,
            cwd=REPOSITORY,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def calls(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


@is_root
def test_a_daemon_that_does_not_start_is_told_from_a_fault_of_ours(
    programs: Programs, tmp_path: Path
) -> None:
    programs.add("docker", "exit 1")
    programs.add("containerd")
    programs.add("dockerd", "echo 'no cgroups here' >&2; exit 1")

    done = programs.run("tools/with_docker.sh", "true", LLM_DOCKER_ROOT=str(tmp_path / "root"))

    assert done.returncode == CANNOT
    assert "no Docker daemon" in done.stderr


@pytest.mark.parametrize(
    ("says", "code"),
    [
        ("E: Failed getting release file http://deb.example.org/dists/bookworm/Release", CANNOT),
        ("E: Couldn't find these debs: python3-vnev", 1),
    ],
    ids=["no mirror", "no such package"],
)
def test_no_mirror_is_told_from_a_package_that_does_not_exist(
    programs: Programs, says: str, code: int
) -> None:
    programs.add("debootstrap", f'echo "{says}"; exit 1')

    done = programs.run("deploy/image/debian-base.sh", "base:test", TMPDIR=str(programs.folder))

    assert done.returncode == code
    assert says in done.stderr
    assert not list(programs.folder.glob("tmp.*"))


@pytest.fixture
def docker(programs: Programs) -> Programs:
    programs.add("docker", '[[ $1 == info ]] && echo "overlay2 /nowhere"; exit 0')
    return programs


@is_root
def test_what_cannot_be_layered_is_not_tried(programs: Programs) -> None:
    programs.add("docker", 'echo "vfs /nowhere"')
    programs.add("make")

    done = programs.run("tools/image_test.sh", "image:test")

    assert done.returncode == CANNOT
    assert "make" not in programs.calls()


@is_root
def test_a_build_that_takes_too_long_is_given_up(docker: Programs) -> None:
    docker.add("make", "sleep 30")

    done = docker.run("tools/image_test.sh", "image:test", IMAGE_BUILD_WITHIN_S="0.2")

    assert done.returncode == CANNOT
    assert "within 0.2 s" in done.stderr


@is_root
def test_a_build_that_fails_is_a_fault_of_ours(docker: Programs) -> None:
    docker.add("make", "exit 2")

    assert docker.run("tools/image_test.sh", "image:test").returncode == 2


@is_root
def test_tests_of_the_image_that_fail_are_a_fault_of_ours(docker: Programs) -> None:
    docker.add("make", f"rm {docker.folder}/make; exit 0")
    docker.add("timeout", "exit 0")
    docker.add("python", "exit 1")

    done = docker.run("tools/image_test.sh", "image:test", PYTHON_FOR_TESTS=str(docker.folder / "python"))

    assert done.returncode == 1
    assert "pytest" in docker.calls()


@pytest.fixture
def machine(programs: Programs) -> Programs:
    """One that has every program that `.ci/run` looks for."""
    for name in ("cc", "c++", "redis-server", "dockerd", "docker", "debootstrap", "apt-get"):
        programs.add(name)
    return programs


def test_ci_runs_the_image_with_the_time_that_is_left(machine: Programs) -> None:
    machine.add("make", f'echo "within $IMAGE_BUILD_WITHIN_S" >>{machine.log}')

    done = machine.run(".ci/run")

    assert done.returncode == 0
    assert "SKIPPED" not in done.stderr
    assert machine.calls().endswith("make image-test\nwithin 4500\n")


def test_ci_that_is_late_leaves_the_image_out_and_says_so(machine: Programs) -> None:
    machine.add("make")

    done = machine.run(".ci/run", CI_IMAGE_TEST_BEFORE_S="-1")

    assert done.returncode == 0
    assert "make image-test: SKIPPED" in done.stderr
    assert "image-test" not in machine.calls()


def test_ci_fails_with_the_image(machine: Programs) -> None:
    machine.add("make", "[[ $1 != image-test ]]")

    assert machine.run(".ci/run").returncode != 0
