#!/usr/bin/env bash
# Builds the image and runs tests/images against it: tools/image_test.sh NAME:TAG [pytest option…]. Called by
# `make image-test`, below tools/with_docker.sh. The tests enter the containers' network, which takes root.
#
#   IMAGE_BUILD_WITHIN_S  how long building may take; unset: as long as it takes
#
# Exit code 77: this machine cannot do it (no root, disk, file system, base image, time). Every other one but 0 is a fault
# of ours.
set -euo pipefail
cd "$(dirname "$0")/.."
image=$1
shift
give_up() {
    echo "!! $1" >&2
    exit 77
}
[[ $(id -u) == 0 ]] || give_up 'the tests of the image need root: they enter the network of a container that has none'
IFS=' ' read -r driver folder < <(docker info --format '{{.Driver}} {{.DockerRootDir}}')
# Each of the build's forty steps would be a full copy.
[[ $driver != vfs ]] || give_up "Docker has no layered file system below $folder"
need_gb=7
if [[ -d $folder ]]; then
    free_gb=$(($(df --output=avail --block-size=1G "$folder" | tail -1)))
    ((free_gb >= need_gb)) || give_up "$free_gb GB are free in $folder; building takes $need_gb"
fi

# Only now, with a daemon there: the engine for the image takes minutes to compile.
code=0
# shellcheck disable=SC2016  # it is the inner shell's
timeout --kill-after 30 "${IMAGE_BUILD_WITHIN_S:-0}" bash -c \
    'make --no-print-directory wheels/SHA256SUMS && exec tools/image.sh bentofile.yaml "$0"' "$image" || code=$?
((code != 124 && code != 137)) || give_up "the image was not finished within ${IMAGE_BUILD_WITHIN_S} s"
((code == 0)) || exit "$code"
TEST_IMAGE=$image "${PYTHON_FOR_TESTS:-python3}" -m pytest -q -s tests/images "$@"
