# shellcheck shell=bash
# PostgreSQL on 127.0.0.1, one server a version.

pg_data() { echo "$(open_dir)/data/pg$1"; }
pg_log() { echo "$(open_dir)/log/pg$1.log"; }

# pg_pid VERSION: the postmaster of this checkout, or nothing.
pg_pid() {
  local data pid
  data=$(pg_data "$1")
  pid=$(head -n 1 "$data/postmaster.pid" 2>/dev/null) || return 0
  if lives_in "$pid" "$data"; then echo "$pid"; fi
}

# pg_replaced VERSION: its program file was replaced by an upgrade; new sessions of such a server fail to load modules.
pg_replaced() {
  local pid
  pid=$(pg_pid "$1")
  [ -n "$pid" ] && [[ $(readlink "/proc/$pid/exe" 2>/dev/null) == *' (deleted)' ]]
}

start_pg() {
  local v=$1 data log user start=$EPOCHREALTIME
  data=$(pg_data "$v") log=$(pg_log "$v") user=$(pg_user)
  mkdir -p "${data%/*}" "${log%/*}"
  : >>"$log"
  if [ ! -s "$data/PG_VERSION" ]; then
    rm -rf "$data"
    mkdir -m 700 "$data"
    is_root && chown "$user" "$data"
    as_pg "$(pg_bin "$v")/initdb" -D "$data" -U postgres -A trust --no-locale -E UTF8 >"$log" 2>&1 || {
      tail -20 "$log" >&2
      die "PostgreSQL $v: initdb failed"
    }
    echo "include 'dev.conf'" >>"$data/postgresql.conf"
  fi
  [ "$(stat -c %U "$data")" = "$user" ] ||
    die "$data belongs to $(stat -c %U "$data"), not to $user: run this as the user who made it, or delete it"
  if is_root; then chown "$user" "$log"; fi
  rm -f "$data/postmaster.pid" # nobody runs here (see pg_pid); after a crash, or in a copy, it may name a stranger
  pg_settings "$v" >"$data/dev.conf"
  pg_access >"$data/pg_hba.conf"
  (
    close_descriptors
    as_pg "$(pg_bin "$v")/pg_ctl" -D "$data" -l "$log" -w -t 60 start >/dev/null 2>&1 </dev/null
  ) || {
    if listening "$(port_of "pg$v")"; then return "$PORT_TAKEN"; fi # the caller picks another one
    tail -20 "$log" >&2
    die "PostgreSQL $v did not start (its log: $log)"
  }
  say "$(label "pg$v") listens on 127.0.0.1:$(port_of "pg$v") ($(since "$start"))"
}

# pg_settings VERSION: written at every start, so that a change here reaches data that exists. fsync stays on: the
# relay's promises are about what is durable.
pg_settings() {
  cat <<CONF
listen_addresses = '127.0.0.1'
port = $(port_of "pg$1")
unix_socket_directories = ''
max_connections = 300
shared_buffers = 256MB

wal_level = logical
max_wal_senders = 50
max_replication_slots = 50
max_prepared_transactions = 20
min_wal_size = 256MB
max_wal_size = 2GB
checkpoint_timeout = 5min

log_line_prefix = '%m [%p] %q%u@%d %a '
timezone = 'UTC'
CONF
}

# pg_access: no passwords, but for one role, with which a test can meet a refused one. The test makes the role.
pg_access() {
  cat <<'CONF'
# TYPE  DATABASE     USER               ADDRESS       METHOD
host    all          cdc_password_user  127.0.0.1/32  scram-sha-256
host    replication  cdc_password_user  127.0.0.1/32  scram-sha-256
host    all          all                127.0.0.1/32  trust
host    replication  all                127.0.0.1/32  trust
CONF
}

# stop_pg VERSION: a fast stop waits for every walsender's client; one that is frozen gets 20 s.
stop_pg() {
  local v=$1 data pid mode
  data=$(pg_data "$v") pid=$(pg_pid "$v")
  [ -n "$pid" ] || return 0
  for mode in fast immediate; do
    as_pg "$(pg_bin "$v")/pg_ctl" -D "$data" -m "$mode" -w -t 20 stop >/dev/null 2>&1 || true
    if ended "$pid" "$data" 1; then
      say "$(label "pg$v") stopped"
      return
    fi
  done
  die "PostgreSQL $v (pid $pid) does not stop; its log: $(pg_log "$v")"
}
