#!/usr/bin/env bash
# Puts vLLM into /opt/vllm, an environment of its own (its packages pin many of the service's), with what Triton needs to
# compile its launchers. Does nothing where this very lock is installed. Run from the folder that holds requirements/.
set -euo pipefail
lock=requirements/vllm.txt
prefix=/opt/vllm
export UV_NO_CACHE=1 UV_COMPILE_BYTECODE=1 UV_NO_PROGRESS=1

sum=$(sha256sum <"$lock")
if [[ -f $prefix/lock.sha256 && $(<"$prefix/lock.sha256") == "$sum" ]]; then
    exit 0
fi
# On a base of Debian's own Python its headers are a package of their own.
packages=(gcc libc6-dev libgomp1)
header='import os, sysconfig; print(os.path.join(sysconfig.get_path("include"), "Python.h"))'
[[ -f $(python3 -c "$header") ]] || packages+=(libpython3-dev)
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${packages[@]}"
rm -rf /var/lib/apt/lists/*

uv=$(command -v uv) || {
    python3 -m venv /tmp/uv
    /tmp/uv/bin/pip install --quiet --no-cache-dir --require-hashes -r requirements/uv.txt
    uv=/tmp/uv/bin/uv
}
rm -rf "$prefix"
"$uv" venv --quiet --no-project --python "$(command -v python3)" "$prefix"
"$uv" pip install --python "$prefix/bin/python" --require-hashes --no-deps -r "$lock"
rm -rf /tmp/uv
echo "$sum" >"$prefix/lock.sha256"
