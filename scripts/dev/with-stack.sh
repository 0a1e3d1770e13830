#!/usr/bin/env bash
# Runs a command with the servers up and its environment set:  with-stack.sh [COMPONENT...] -- COMMAND [ARG...]
#
# Starts what is down and stops, at the end, what such runs started, the last of several at the same time doing it.
# Servers that `make dev-up` started stay up. The exit code is the command's.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=lib/common.sh
source "$here/lib/common.sh"

group="" # the command's process group
interrupted=0
on_signal() { # SIGNAL CODE
  interrupted=$2
  [ -z "$group" ] || kill "-$1" -- "-$group" 2>/dev/null || true
}
finish() {
  local status=$?
  trap '' INT TERM HUP
  # whatever the command left running: it got its own process group for this
  [ -z "$group" ] || kill -TERM -- "-$group" 2>/dev/null || true
  exec 8>&-
  "$here/stack.sh" down-unused || true
  exit "$status"
}

main() {
  local components=() env status
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    components+=("$1")
    shift
  done
  [ $# -ge 2 ] || die "usage: with-stack.sh [COMPONENT...] -- COMMAND [ARG...]"
  shift

  trap finish EXIT
  trap 'on_signal INT 130' INT
  trap 'on_signal TERM 143' TERM HUP
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
}

main "$@"
exit
