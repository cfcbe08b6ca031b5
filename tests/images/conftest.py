"""Containers for the tests of the images. `make image-test` builds one and names it in TEST_IMAGE, `make image-gpu` the
other in TEST_GPU_IMAGE; without a name its tests are skipped.

A container has no network but its own loopback interface. The tests reach it from inside its network namespace, which
takes root.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

BASE_URL = "http://127.0.0.1:14011"
MODEL = "smollm2-135m-instruct"
READY_TIMEOUT_S = 240
"""Ten times as long as it takes, and more: on a busy machine what is slow is not what is broken."""
HARDENED = (
    *("--read-only", "--tmpfs", "/tmp"),  # noqa: S108  the container's own
    *("--tmpfs", "/cache:uid=1034,gid=1034", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
)
_CLONE_NEWNET = 0x40000000


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here not in item.path.parents:
            continue
        item.add_marker("image")
        item.add_marker(pytest.mark.timeout(600))
        variable = "TEST_GPU_IMAGE" if item.path.stem == "test_gpu_image" else "TEST_IMAGE"
        if not os.environ.get(variable):
            item.add_marker(pytest.mark.skip(reason=f"{variable} names no image; see make help"))


def skip_if_busy() -> None:
    """Times are promised for a machine that does nothing else; call it when one was missed."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > 1.5 * cores:
        pytest.skip(f"missed, but the machine is busy with other things: load {load:.1f} on {cores} cores")


def docker(*arguments: str, timeout_s: float = 60) -> str:
    """What a docker command prints on standard output. It failing fails the test."""
    done = subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if done.returncode != 0:
        pytest.fail(
            f"docker {' '.join(arguments)} gave {done.returncode}: {done.stderr.strip()}", pytrace=False
        )
    return done.stdout


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot enter the container's network ({os.strerror(number)})")


class Container:
    """A running container of the image. `stop` and `remove` may be called more than once."""

    def __init__(self, image: str, *options: str, command: Sequence[str] = ()) -> None:
        self.started_at = time.monotonic()
        self.id = docker("run", "--detach", *options, image, *command).strip()

    def inspect(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(docker("inspect", self.id))[0]
        return found

    @contextlib.contextmanager
    def network(self) -> Iterator[None]:
        """This thread, and the processes and threads it starts, are in the container's network."""
        state = self.inspect()["State"]
        if not state["Running"]:
            end = "\n".join((self.log() + self.log(stderr=True)).splitlines()[-30:])
            pytest.fail(
                f"the container ended with {state['ExitCode']}; the end of its log:\n{end}", pytrace=False
            )
        own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        theirs = os.open(f"/proc/{state['Pid']}/ns/net", os.O_RDONLY)
        try:
            _enter(theirs)
            yield
        finally:
            _enter(own)
            os.close(own)
            os.close(theirs)

    def wait_until_ready(self) -> None:
        deadline = self.started_at + READY_TIMEOUT_S
        with self.network():
            while time.monotonic() < deadline:
                with contextlib.suppress(httpx.HTTPError):
                    if httpx.get(f"{BASE_URL}/ready", timeout=2, trust_env=False).status_code == 200:
                        return
                time.sleep(0.05)
        pytest.fail(
            "\n".join(["not ready; the end of its log:", *self.log().splitlines()[-30:]]), pytrace=False
        )

    def log(self, *, stderr: bool = False) -> str:
        done = subprocess.run(
            ["docker", "logs", self.id], capture_output=True, text=True, check=True, timeout=30
        )
        return done.stderr if stderr else done.stdout

    def processes(self) -> dict[str, int]:
        """The id, on this machine, of each process: by the name of its service, `supervisor` for the first."""
        found = {}
        for line in docker("top", self.id, "-eo", "pid,args").splitlines()[1:]:
            pid, _, arguments = line.strip().partition(" ")
            words = arguments.split()
            name = words[words.index("--service-name") + 1] if "--service-name" in words else "supervisor"
            found.setdefault(name, int(pid))
        return found

    def run(self, *command: str) -> str:
        return docker("exec", self.id, *command)

    def stop(self) -> int:
        """SIGTERM, and the exit code; SIGKILL (137) after a minute."""
        docker("stop", "--time", "60", self.id, timeout_s=90)
        return int(self.inspect()["State"]["ExitCode"])

    def remove(self) -> None:
        docker("rm", "--force", "--volumes", self.id)


Start = Callable[..., Container]


@pytest.fixture(scope="session")
def image() -> str:
    return os.environ["TEST_IMAGE"]


@pytest.fixture(scope="session")
def start(image: str) -> Iterator[Start]:
    """`start("--env", "LLM_X=1")` gives a hardened container that is ready; `wait=False` one that just began, `network`
    the name of Docker's network that it is in, `command` what it runs instead of the service."""
    containers: list[Container] = []

    def begin(
        *options: str, wait: bool = True, network: str = "none", command: Sequence[str] = ()
    ) -> Container:
        container = Container(image, *HARDENED, "--network", network, *options, command=command)
        containers.append(container)
        if wait:
            container.wait_until_ready()
        return container

    yield begin
    for container in containers:
        container.remove()


@pytest.fixture(scope="module")
def container(start: Start) -> Container:
    return start("--env", "LLM_RATE_LIMIT_RPS=0", "--env", "LLM_MAX_CONCURRENT_COMPLETIONS=16")


@pytest.fixture
def client(container: Container) -> Iterator[httpx.Client]:
    """Talks to the container from inside its network."""
    with container.network(), httpx.Client(base_url=BASE_URL, timeout=60, trust_env=False) as http:
        yield http
