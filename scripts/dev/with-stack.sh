#!/usr/bin/env bash
# Runs a command with the servers up and its environment set:  with-stack.sh [COMPONENT...] -- COMMAND [ARG...]
#
# Starts what is down and stops, at the end, what such runs started, the last of several at the same time doing it.
# Servers that `make dev-up` started stay up. The exit code is the command's.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=lib/common.sh
source "$here/lib/common.sh"

components=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  components+=("$1")
  shift
done
[ $# -ge 2 ] || die "usage: with-stack.sh [COMPONENT...] -- COMMAND [ARG...]"
shift

group="" # the command's process group
finish() {
  local status=$?
  trap '' INT TERM HUP
  # whatever the command left running: it got its own process group for this
  [ -z "$group" ] || kill -TERM -- "-$group" 2>/dev/null || true
  exec 8>&-
  "$here/stack.sh" down-unused || true
  exit "$status"
}
trap finish EXIT
pass_on() { [ -z "$group" ] || kill "-$1" -- "-$group" 2>/dev/null || true; }
trap 'interrupted=130; pass_on INT' INT
trap 'interrupted=143; pass_on TERM' TERM HUP
interrupted=0

mkdir -p "$DEV"
exec 8>>"$DEV/users"
flock -s 8
"$here/stack.sh" up-temporary "${components[@]}" 8>&-
[ "$interrupted" = 0 ] || exit "$interrupted"
env=$("$here/stack.sh" env 8>&-)
eval "$env"

set -m
"$@" 8>&- </dev/null &
group=$!
set +m
while :; do
  status=0
  wait "$group" || status=$?
  kill -0 "$group" 2>/dev/null || exit "$status" # else a signal ended the wait, not the command
done
