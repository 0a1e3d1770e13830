#!/usr/bin/env bash
# Runs Go tests and prints a line for each package, what failed tests said, and the numbers.
#
#   test.sh unit   what needs no server; tests that do are skipped
#   test.sh all    everything, on the servers of the environment (see dev/with-stack.sh); none may be missing
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

report=bin/testreport
go build -o "$report" ./scripts/testreport

# run NAME ARG...: go test with these arguments.
run() {
  local name=$1
  shift
  go test -race -json "$@" | "$report" -name "$name"
}

# packages [-v]: all but the end-to-end tests, or (-v) those.
packages() { go list ./... | if [ "${1:-}" = e2e ]; then grep '/e2e\(/\|$\)'; else grep -v '/e2e\(/\|$\)'; fi; }

mapfile -t others < <(packages)
mapfile -t e2e < <(packages e2e)

case ${1:-} in
  unit)
    unset "${!CDC_TEST_@}"
    run unit -timeout 5m "${others[@]}"
    ;;
  all)
    export CDC_TEST_REQUIRE=1
    status=0
    run unit -count=1 -timeout 10m "${others[@]}" || status=1
    # even so: what the packages' tests found is best seen together with what it does to the whole
    [ ${#e2e[@]} -eq 0 ] || run e2e -count=1 -timeout 20m "${e2e[@]}" || status=1
    exit $status
    ;;
  *)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac
