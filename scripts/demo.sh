#!/usr/bin/env bash
# Rows through the whole line on real servers, with a report: see internal/demo, which does the work.
# Installs and starts what is missing, and stops what it started.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mkdir -p bin
go build -o bin/ ./cmd/cdc-relay ./internal/demo
exec scripts/dev/with-stack.sh pg18 kafka -- bin/demo -relay bin/cdc-relay "$@"
