#!/usr/bin/env bash
# Builds the image and runs tests/images against it: tools/image_test.sh NAME:TAG [pytest option…]. Called by
# `make image-test`, below tools/with_docker.sh. The tests enter the containers' network, which takes root.
set -euo pipefail
cd "$(dirname "$0")/.."
image=$1
shift
if [[ $(id -u) != 0 ]]; then
    echo '!! the tests of the image need root: they enter the network of a container that has none' >&2
    exit 77
fi
# Only now, with a daemon there: the engine for the image takes minutes to compile.
make --no-print-directory wheels/SHA256SUMS
tools/image.sh bentofile.yaml "$image"
TEST_IMAGE=$image "${PYTHON_FOR_TESTS:-python3}" -m pytest -q -s tests/images "$@"
