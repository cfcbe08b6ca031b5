#!/usr/bin/env bash
# Builds the Bento and the image from it. Called by `make image` and `make image-gpu`, below tools/with_docker.sh.
#
#   tools/image.sh BENTOFILE NAME:TAG [DOCKERFILE FILE…]
#
#   DOCKERFILE    builds a layer of its own between the base and the rest; the FILEs are what it may copy
#   BASE=name     the base image; unset: the one in the bentofile, or a Debian base made here where that cannot be pulled
#   BENTOML=path  the bentoml to use
#   BUILD_OPTS    more options for `docker build`; CONTAINERIZE_OPTS for `bentoml containerize`
set -euo pipefail
cd "$(dirname "$0")/.."
bentofile=$1 name=$2
shift 2
say() { echo "== $*" >&2; }

# The image runs any x86-64 CPU's own kernels; BuildKit is a package of its own on Debian and is not needed.
export DOCKER_BUILDKIT=0 BENTOML_DO_NOT_TRACK=True
wanted=$(sed -n 's/^ *base_image: *"\(.*\)".*/\1/p' "$bentofile")
here() { docker image inspect "$1" >/dev/null 2>&1; }
if [[ -z ${BASE:-} ]]; then
    BASE=$wanted
    if ! here "$BASE" && ! timeout 60 docker pull --quiet "$BASE" >/dev/null 2>&1; then
        BASE=llm-inference-base:$(sha256sum deploy/image/debian-base.sh | cut -c1-12)
        say "$wanted cannot be pulled; building on $BASE"
        here "$BASE" || deploy/image/debian-base.sh "$BASE"
    fi
fi
# Not every machine whose daemon starts lets it run something.
if ! docker run --rm --network none --entrypoint true "$BASE"; then
    echo "!! Docker cannot run a container of $BASE" >&2
    exit 77
fi
if (($#)); then
    below=${name%:*}-below:$({ sha256sum "$@" && echo "$BASE"; } | sha256sum | cut -c1-12)
    # shellcheck disable=SC2086
    here "$below" || tar --create "$@" |
        docker build --network=host ${BUILD_OPTS:-} --tag "$below" --file "$1" --build-arg BASE_IMAGE="$BASE" -
    BASE=$below
fi

mkdir -p .cache/image
file=.cache/image/$(basename "$bentofile")
sed "s|^\( *base_image: *\).*|\1\"$BASE\"|" "$bentofile" >"$file"
export BENTOML_HOME="$PWD/.cache/image/bentoml"
mkdir -p "$BENTOML_HOME"
tag=$("${BENTOML:-bentoml}" build --output tag --bentofile "$file" . | sed -n 's/^__tag__://p')
say "Bento $tag"
trap '"${BENTOML:-bentoml}" delete --yes "$tag" >/dev/null' EXIT
# shellcheck disable=SC2086  # BUILD_OPTS is a list of words
"${BENTOML:-bentoml}" containerize "$tag" --image-tag "$name-bento" --opt network=host ${CONTAINERIZE_OPTS:-}
default_backend=$(docker image inspect --format '{{range .Config.Env}}{{println .}}{{end}}' "$name-bento" |
    sed -n 's/^LLM_DEFAULT_BACKEND=//p')
# shellcheck disable=SC2086
docker build --quiet --network=host ${BUILD_OPTS:-} --tag "$name" --file deploy/image/Dockerfile \
    --build-arg BENTO_IMAGE="$name-bento" --build-arg BASE_IMAGE="$BASE" \
    --build-arg DEFAULT_BACKEND="$default_backend" --build-arg VERSION="${tag#*:}" \
    --build-arg REVISION="$(git rev-parse HEAD 2>/dev/null || true)" deploy/image
say "image $name: $(docker image inspect --format '{{.Size}}' "$name" | awk '{printf "%.0f MB", $1 / 1e6}')"
