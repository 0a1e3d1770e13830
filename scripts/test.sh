#!/usr/bin/env bash
# Runs Go tests and prints a line for each package, what failed tests said, and the numbers.
#
#   test.sh unit   what needs no server; tests that do are skipped
#   test.sh all    everything, on the servers of the environment (see dev/with-stack.sh); none may be missing. Leaves out
#                  go vet, which lint.sh runs before
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

report=bin/testreport

# run NAME ARG...: go test with these arguments.
run() {
  local name=$1
  shift
  go test -race -json "$@" | "$report" -name "$name"
}

main() {
  local packages status=0
  go build -o "$report" ./scripts/testreport
  mapfile -t packages < <(go list ./... | grep -v '/e2e$') # the end-to-end tests' helpers have tests of their own
  case ${1:-} in
    unit)
      unset "${!CDC_TEST_@}"
      run unit -timeout 5m "${packages[@]}"
      ;;
    all)
      export CDC_TEST_REQUIRE=1
      run unit -vet=off -count=1 -timeout 10m "${packages[@]}" || status=1
      run e2e -vet=off -count=1 -timeout 20m ./e2e || status=1 # even so: one run tells all that is wrong
      return $status
      ;;
    *)
      sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
      return 2
      ;;
  esac
}

main "$@"
exit
