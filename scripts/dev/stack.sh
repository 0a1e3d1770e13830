#!/usr/bin/env bash
# Real PostgreSQL and a real Kafka broker on 127.0.0.1, for development and tests, one set a checkout.
#
#   stack.sh up [COMPONENT...]        installs what is missing, starts what is down   (default: pg15 pg18 kafka)
#   stack.sh down [COMPONENT...]      stops; the data stays                           (default: all)
#   stack.sh wipe                     stops all and deletes everything of this checkout
#   stack.sh install [COMPONENT...]   installs only
#   stack.sh status                   what runs, where
#   stack.sh env                      shell commands that export how to reach it: eval "$(stack.sh env)"
#
# Components: pg15 (Debian's package) pg16 pg17 pg18 (npm) kafka (Maven).
# Environment: CDC_DEV_KAFKA_HEAP (default "-Xms256m -Xmx512m").
# Everything lies below .dev of the checkout; what PostgreSQL's user must reach lies in the temporary folder where a
# folder above the checkout is closed to that user.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=lib/common.sh
source "$here/lib/common.sh"
# shellcheck source=lib/install.sh
source "$here/lib/install.sh"
# shellcheck source=lib/postgres.sh
source "$here/lib/postgres.sh"
# shellcheck source=lib/kafka.sh
source "$here/lib/kafka.sh"

PG_VERSIONS=(15 16 17 18)
ALL=(pg15 pg16 pg17 pg18 kafka)
DEFAULT=(pg15 pg18 kafka)

pid() { case $1 in kafka) kafka_pid ;; *) pg_pid "${1#pg}" ;; esac; }
log() { case $1 in kafka) kafka_log ;; *) pg_log "${1#pg}" ;; esac; }
start() { case $1 in kafka) start_kafka ;; *) start_pg "${1#pg}" ;; esac; }
stop() { case $1 in kafka) stop_kafka ;; *) stop_pg "${1#pg}" ;; esac; }
claim() {
  claim_port "$1"
  [ "$1" != kafka ] || claim_port kafka_controller
}

# up COMPONENT...: STARTED tells afterwards which of them were down.
up() {
  local c down=()
  install "$@"
  for c in "$@"; do
    if [ "$c" != kafka ] && pg_replaced "${c#pg}"; then
      say "$(label "$c") was upgraded while it ran: restarting it"
      stop "$c"
    fi
    [ -n "$(pid "$c")" ] || down+=("$c")
  done
  STARTED=("${down[@]}")
  for _ in 1 2 3; do
    [ ${#down[@]} -gt 0 ] || return 0
    for c in "${down[@]}"; do claim "$c"; done
    together start "${down[@]}"
    down=("${AGAIN[@]}")
  done
  [ ${#down[@]} -eq 0 ] || die "no free port for ${down[*]}"
}

down() { together stop "$@"; }

# refuse_if_used: do not pull the servers away from a test run.
refuse_if_used() { ! in_use || die "a test or demo run of this checkout uses these servers: end it first"; }

wipe() {
  local dir
  refuse_if_used
  down "${ALL[@]}"
  dir=$(open_dir)
  rm -rf "$dir" "$DEV"
  say "deleted $DEV"
}

# The list of servers that with-stack.sh started and that end with its last run; an explicit `up` takes them off it.
keep() {
  local c
  for c in "$@"; do sed -i "/^$c\$/d" "$DEV/temporary" 2>/dev/null || true; done
}
down_unused() {
  local -a temporary=()
  ! in_use || return 0
  mapfile -t temporary < <(cat "$DEV/temporary" 2>/dev/null)
  [ ${#temporary[@]} -eq 0 ] || down "${temporary[@]}"
  rm -f "$DEV/temporary"
}

status() {
  local c pid
  for c in "${ALL[@]}"; do
    pid=$(pid "$c")
    if [ -n "$pid" ]; then
      printf '%-15s up    127.0.0.1:%-6s pid %-8s %4s MiB   %s\n' \
        "$(label "$c")" "$(port_of "$c")" "$pid" "$(memory_mib "$pid")" "$(log "$c")"
    else
      printf '%-15s down\n' "$(label "$c")"
    fi
  done
}

env_of() {
  local v port newest=""
  echo "export CDC_TEST_PSQL=$DEBIAN_PG/psql"
  echo "export CDC_TEST_PG_USER=$(! is_root || pg_user)"
  echo "export CDC_TEST_TMP=$(test_tmp)"
  for v in "${PG_VERSIONS[@]}"; do
    ! pg_installed "$v" || echo "export CDC_TEST_PG${v}_BIN=$(pg_bin "$v")" # enough for clusters of a test's own
    [ -n "$(pg_pid "$v")" ] || continue
    port=$(port_of "pg$v")
    newest=$port
    echo "export CDC_TEST_PG${v}_DSN='postgres://postgres@127.0.0.1:$port/postgres?sslmode=disable'"
  done
  if [ -n "$newest" ]; then
    echo "export PGHOST=127.0.0.1 PGPORT=$newest PGUSER=postgres PGDATABASE=postgres"
  fi
  if [ -n "$(kafka_pid)" ]; then
    port=$(port_of kafka)
    echo "export CDC_TEST_KAFKA=127.0.0.1:$port KAFKA_BROKERS=127.0.0.1:$port"
    echo "export CDC_TEST_KAFKA_LIBS=$(kafka_libs)"
    echo "export CDC_TEST_JAVA=$(java_bin)"
  elif [ -z "$newest" ]; then
    say "nothing runs: make dev-up"
    return 1
  fi
}

# test_tmp: for throw-away clusters and brokers; open to us and to PostgreSQL's user.
test_tmp() {
  local dir
  dir=$(open_dir)/tmp
  mkdir -p "$dir"
  ! is_root || chmod 1777 "$dir"
  printf '%s\n' "$dir"
}

components() {
  local c
  for c in "$@"; do
    [[ " ${ALL[*]} " == *" $c "* ]] || die "unknown component $c: one of ${ALL[*]}"
  done
}

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }

main() {
  local command=${1:-help}
  [ $# -eq 0 ] || shift
  mkdir -p "$DEV"
  case $command in
    up | up-temporary | install)
      [ $# -gt 0 ] || set -- "${DEFAULT[@]}"
      components "$@"
      one_at_a_time
      case $command in
        install) install "$@" ;;
        up)
          up "$@"
          keep "$@"
          ;;
        up-temporary)
          up "$@"
          [ ${#STARTED[@]} -eq 0 ] || printf '%s\n' "${STARTED[@]}" >>"$DEV/temporary"
          ;;
      esac
      ;;
    down)
      [ $# -gt 0 ] || set -- "${ALL[@]}"
      components "$@"
      one_at_a_time
      refuse_if_used
      down "$@"
      ;;
    down-unused)
      one_at_a_time
      down_unused
      ;;
    wipe)
      one_at_a_time
      wipe
      ;;
    status) status ;;
    env) env_of ;;
    help | -h | --help) usage ;;
    *)
      usage >&2
      exit 2
      ;;
  esac
}

main "$@"
exit # bash reads a script as it goes: after an edit or a pull meanwhile, not on into the new text
