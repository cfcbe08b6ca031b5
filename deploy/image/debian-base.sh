#!/usr/bin/env bash
# Makes a base image of Debian's own Python where no registry can be reached: debian-base.sh NAME:TAG. Needs root and
# debootstrap. `make image` calls it when python:3.11-slim-bookworm is neither here nor to be had. Exit code 77: it cannot be
# made on this machine.
#
# The host's certificates go in, and where pip and uv find them: whoever has no registry often has a proxy of its own.
set -euo pipefail
name=$1
command -v debootstrap >/dev/null || {
    echo '!! no base image: debootstrap is not installed (on Debian: apt-get install debootstrap)' >&2
    exit 77
}
root=$(mktemp -d)
# debootstrap mounts the kernel's file systems in there; when it is stopped half way they stay.
trap 'umount --lazy "$root/proc" "$root/sys" 2>/dev/null || true; rm -rf --one-file-system "$root" "$root.log"' EXIT

echo "== $name: Debian 12 by debootstrap" >&2
packages=ca-certificates,python3,python3-venv,python3-pip,libgomp1
${EATMYDATA:-} debootstrap --variant=minbase --include="$packages" bookworm "$root" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} >"$root.log" 2>&1 || {
    tail -20 "$root.log" >&2
    # A package that does not exist is our mistake; anything else is the mirror, or what this machine does not allow.
    ! grep -q "find these debs" "$root.log" || exit 1
    echo '!! no base image: debootstrap failed (see above)' >&2
    exit 77
}
# BentoML installs uv with pip into the system's Python, which Debian forbids by this file.
rm -f "$root"/usr/lib/python3*/EXTERNALLY-MANAGED
ln -sf python3 "$root/usr/bin/python"
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/* \
    "$root"/usr/share/{man,info,locale,lintian}/*
# Each package's licence has to come along with it.
find "$root/usr/share/doc" -type f -not -name copyright -delete
find "$root/usr/share/doc" \( -xtype l -o -type d -empty \) -delete
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
certificates=/etc/ssl/certs/ca-certificates.crt
tar -C "$root" -c . | docker import \
    -c "ENV PIP_CERT=$certificates SSL_CERT_FILE=$certificates UV_SYSTEM_CERTS=1 PIP_DISABLE_PIP_VERSION_CHECK=1" \
    -c 'CMD ["python3"]' - "$name"
