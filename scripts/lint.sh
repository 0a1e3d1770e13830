#!/usr/bin/env bash
# The checks that need no test run: format, vet, staticcheck, import table, shell syntax. Says all that is wrong.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

failed=()
# check NAME COMMAND...: prints the command's output only if it fails.
check() {
  local name=$1 start=$EPOCHREALTIME out
  shift
  if out=$("$@" 2>&1); then
    awk -v name="$name" -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "lint ok    %-13s %5.1f s\n", name, b - a }'
  else
    printf 'lint FAIL  %s\n%s\n' "$name" "$out"
    failed+=("$name")
  fi
}

# files PATTERN...: in git or on the way there
files() { git ls-files -z --cached --others --exclude-standard -- "$@"; }
shell_files() { files '*.sh' .ci/run; }

format() {
  local out
  out=$(files '*.go' | xargs -0 -r gofmt -l)
  [ -z "$out" ] || {
    printf 'run gofmt -w on:\n%s\n' "$out"
    return 1
  }
}
shell_syntax() {
  local f status=0
  while IFS= read -r -d '' f; do bash -n "$f" || status=1; done < <(shell_files)
  return $status
}
shell_style() { shell_files | xargs -0 -r shellcheck -x -P SCRIPTDIR -e SC2317; } # which takes functions called by name for unreachable

check gofmt format
check shell shell_syntax
if command -v shellcheck >/dev/null; then check shellcheck shell_style; fi
check vet go vet ./...
check go.mod go mod tidy -diff
check staticcheck go tool staticcheck ./...
check imports go test -count=1 ./internal/archtest # go cannot know that its result depends on all packages

[ ${#failed[@]} -eq 0 ] || {
  echo "lint: ${failed[*]} failed"
  exit 1
}
