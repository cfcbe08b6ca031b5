#!/usr/bin/env bash
# Runs a command with a Docker daemon: the one that is there, else one started for it and stopped after it.
#
#   tools/with_docker.sh COMMAND…       exit code 77 where no daemon can be had, and says so
#
# A daemon of our own keeps its images in ${LLM_DOCKER_ROOT:-~/.cache/llm-inference/docker}, so that the next run finds
# them; it listens on a socket in there and nowhere else.
set -euo pipefail

give_up() {
    echo "!! no Docker daemon: $1" >&2
    exit 77
}

# A daemon that hangs is as good as none.
answers() { timeout --kill-after 1 5 docker info >/dev/null 2>&1; }
if answers; then
    exec "$@"
fi
[[ -z ${DOCKER_HOST:-} ]] || give_up "DOCKER_HOST is $DOCKER_HOST and does not answer"
for program in docker dockerd containerd; do
    command -v "$program" >/dev/null || give_up "$program is not installed (on Debian: apt-get install docker.io)"
done
[[ $(id -u) == 0 ]] || give_up 'none answers, and starting one needs root'

root=${LLM_DOCKER_ROOT:-${XDG_CACHE_HOME:-$HOME/.cache}/llm-inference/docker}
mkdir -p "$root"
exec 9>"$root/lock"
flock -n 9 || { echo "== waiting for another run to give $root free" >&2; flock -w 1800 9 || give_up "$root is taken"; }
export DOCKER_HOST="unix://$root/docker.sock"
# Of a session of its own, so that Ctrl-C ends the command and not the daemon under it.
setsid dockerd --data-root "$root/data" --exec-root "$root/exec" --pidfile "$root/dockerd.pid" \
    --host "$DOCKER_HOST" >"$root/dockerd.log" 2>&1 9>&- &
daemon=$!
stop() {
    kill "$daemon" 2>/dev/null || true
    for _ in {1..120}; do
        kill -0 "$daemon" 2>/dev/null || break
        sleep 0.25
    done
    kill -KILL "$daemon" 2>/dev/null || true
    # The daemon leaves it mounted, and the folder could not be removed.
    umount "$root/exec/netns/default" 2>/dev/null || true
}
trap stop EXIT
deadline=$((SECONDS + 30))
until answers; do
    kill -0 "$daemon" 2>/dev/null || give_up "dockerd ended: $(tail -1 "$root/dockerd.log")"
    ((SECONDS < deadline)) || give_up "dockerd does not answer after 30 s ($root/dockerd.log)"
    sleep 0.25
done
code=0
"$@" 9>&- || code=$?
exit "$code"
