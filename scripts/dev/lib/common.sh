# shellcheck shell=bash
# Shared by the scripts of this folder: messages, places, users, ports, processes, locks. Source it.

umask 022 # the servers' user must be able to read what is installed here

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd -P)
DEV=$ROOT/.dev # everything of this checkout that is not in git
SCRIPTS=$ROOT/scripts/dev

say() { printf '%s\n' "$*" >&2; }
die() {
  say "stack: $*"
  exit 1
}

is_root() { [ "$(id -u)" = 0 ]; }

# label COMPONENT: its name for people.
label() {
  case $1 in
    pg*) echo "PostgreSQL ${1#pg}" ;;
    kafka) echo "Kafka $KAFKA_VERSION" ;;
  esac
}

# ---------------------------------------------------------------- the user and the places of PostgreSQL

# pg_user: who runs PostgreSQL. It refuses root; Debian's package brings the user postgres.
pg_user() {
  if ! is_root; then
    id -un
  elif id postgres >/dev/null 2>&1; then
    echo postgres
  else
    echo nobody
  fi
}

# as_pg COMMAND...: runs it as that user, in a folder that is open to everybody.
as_pg() (
  cd /
  if is_root; then
    local user
    user=$(pg_user)
    exec setpriv --reuid="$user" --regid="$(id -g "$user")" --init-groups -- "$@"
  fi
  exec "$@"
)

# open_dir: the folder for what PostgreSQL's user must reach: its programs, data and logs, and the tests' throw-away
# clusters. It is .dev itself, unless a folder above is closed to that user; then a folder of this checkout's own in
# the temporary folder, remembered so that another TMPDIR does not hide running servers.
open_dir() {
  if [ -z "${OPEN_DIR:-}" ]; then
    OPEN_DIR=$(find_open_dir) || exit 1
  fi
  printf '%s\n' "$OPEN_DIR"
}

find_open_dir() {
  local name dir base
  mkdir -p "$DEV"
  if as_pg test -x "$DEV" && as_pg test -r "$DEV"; then
    printf '%s\n' "$DEV"
    return
  fi
  name=cdc-relay-dev-$(hash_of "$ROOT")
  dir=$(cat "$DEV/open-dir" 2>/dev/null || true)
  # a copy of the checkout brings the memory of another one's folder: the name tells
  if [ -d "$dir" ] && [ "${dir##*/}" = "$name" ] && as_pg test -x "$dir"; then
    printf '%s\n' "$dir"
    return
  fi
  for base in "${TMPDIR:-/tmp}" /tmp /var/tmp; do
    base=$(cd "$base" 2>/dev/null && pwd -P) || continue
    dir=$base/$name
    mkdir -m 755 "$dir" 2>/dev/null || true
    # a link, or a folder of somebody else, planted under this name is not ours to use
    if [ -d "$dir" ] && [ -O "$dir" ] && [ ! -L "$dir" ] && as_pg test -x "$dir"; then
      printf '%s\n' "$dir" >"$DEV/open-dir"
      printf '%s\n' "$dir"
      return
    fi
  done
  die "no folder that the user $(pg_user) can enter: set TMPDIR to one and try again"
}

hash_of() { printf '%s' "$1" | sha256sum | cut -c1-12; }

# ---------------------------------------------------------------- ports

# port_of NAME: the remembered port, or nothing.
port_of() { sed -n "s/^$1=//p" "$DEV/ports" 2>/dev/null || true; }

# listening PORT: somebody listens there, on any address.
listening() {
  local hex files=(/proc/net/tcp)
  [ ! -r /proc/net/tcp6 ] || files+=(/proc/net/tcp6)
  printf -v hex ':%04X' "$1"
  awk -v port="$hex" '$4 == "0A" && substr($2, length($2) - 4) == port { found = 1 } END { exit !found }' "${files[@]}"
}

# claim_port NAME: before a start. Keeps the remembered port; picks another if there is none, or somebody else has it
# now. Below 32768, where Linux does not hand out ports to clients; where the search starts depends on the checkout.
claim_port() {
  local name=$1 port old
  old=$(port_of "$name")
  [ -n "$old" ] && ! listening "$old" && return
  port=$((20000 + 16#$(hash_of "$ROOT $name" | cut -c1-6) % 10000))
  while listening "$port" || grep -qs "=$port\$" "$DEV/ports"; do port=$((port + 1)); done
  {
    grep -v "^$name=" "$DEV/ports" 2>/dev/null || true
    echo "$name=$port"
  } >"$DEV/ports.new"
  mv "$DEV/ports.new" "$DEV/ports"
  [ -z "$old" ] || say "port $old is taken by another program: $name moves to $port"
}

# ---------------------------------------------------------------- processes

# lives_in PID DIR: the process is alive and DIR is its working folder. A server started here always works in a folder
# of this checkout, so this tells it from a stranger that got the same number, and from a copied checkout's.
lives_in() { [[ $1 =~ ^[0-9]+$ ]] && [ "/proc/$1/cwd" -ef "$2" ]; }

# ended PID DIR SECONDS: waits until the process is gone; false if it is still there.
ended() {
  local deadline=$((SECONDS + $3))
  while lives_in "$1" "$2"; do
    [ "$SECONDS" -lt "$deadline" ] || return 1
    sleep 0.1
  done
}

# close_descriptors: all but 0, 1 and 2. In the subshell that becomes a server, or whoever waits for the end of a pipe
# that the caller has open waits for the server's end.
close_descriptors() {
  local fd
  for fd in "/proc/$BASHPID/fd/"*; do
    fd=${fd##*/}
    [ "$fd" -le 2 ] || eval "exec $fd>&-"
  done
}

# memory_mib PID: resident memory of a process and its children, shared pages counted once.
memory_mib() {
  local pid sum=0 kib
  for pid in "$1" $(cat "/proc/$1/task/"*/children 2>/dev/null || true); do
    kib=$(awk '/^Pss:/ { print $2 }' "/proc/$pid/smaps_rollup" 2>/dev/null || true)
    sum=$((sum + ${kib:-0}))
  done
  echo $((sum / 1024))
}

# together FUNCTION COMPONENT...: runs FUNCTION for each at the same time; ends the script when one of them fails.
# AGAIN: those that returned PORT_TAKEN and are worth another try.
PORT_TAKEN=75
together() {
  local f=$1 c status failed=()
  local -A job=()
  shift
  AGAIN=()
  for c in "$@"; do
    ("$f" "$c") &
    job[$c]=$!
  done
  for c in "$@"; do
    status=0
    wait "${job[$c]}" || status=$?
    case $status in
      0) ;;
      "$PORT_TAKEN") AGAIN+=("$c") ;;
      *) failed+=("$c") ;;
    esac
  done
  [ ${#failed[@]} -eq 0 ] || exit 1 # each has said why
}

# since START: seconds since that $EPOCHREALTIME, for people.
since() { awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f s", b - a }'; }

# ---------------------------------------------------------------- locks

# one_at_a_time: start, stop and install exclude each other within a checkout. The lock is on a folder of the checkout,
# so that deleting .dev does not delete it.
one_at_a_time() {
  exec 9<"$SCRIPTS"
  if ! flock -n 9; then
    say "waiting for another start or stop in this checkout"
    flock 9
  fi
}

# in_use: tests or a demo run on these servers now (with-stack.sh holds the file's shared lock).
in_use() {
  [ -e "$DEV/users" ] && ! (flock -n -x 7) 7<"$DEV/users"
}
