# shellcheck shell=bash
# One Kafka broker in KRaft mode on 127.0.0.1.

KAFKA_DIR=$DEV/kafka # the broker's working folder
KAFKA_HEAP=${CDC_DEV_KAFKA_HEAP:--Xms256m -Xmx512m}

kafka_log() { echo "$DEV/log/kafka.log"; }

# kafka_pid: the broker of this checkout, or nothing.
kafka_pid() {
  local pid
  pid=$(cat "$KAFKA_DIR/pid" 2>/dev/null) || return 0
  if lives_in "$pid" "$KAFKA_DIR"; then echo "$pid"; fi
}

start_kafka() {
  local port log java pid start=$EPOCHREALTIME deadline=$((SECONDS + 60))
  port=$(port_of kafka) log=$(kafka_log) java=$(java_bin)
  mkdir -p "$KAFKA_DIR" "${log%/*}"
  kafka_settings >"$KAFKA_DIR/server.properties"
  kafka_format "$java" || {
    tail -20 "$log" >&2
    die "Kafka: formatting its storage failed"
  }
  # setsid: a Ctrl-C in the terminal that started it does not reach it
  # shellcheck disable=SC2086
  (
    close_descriptors
    cd "$KAFKA_DIR" || exit
    exec setsid "$java" $KAFKA_HEAP -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -Djava.awt.headless=true \
      -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -Dorg.slf4j.simpleLogger.showDateTime=true \
      -cp "$(kafka_libs)/*" kafka.Kafka server.properties >>"$log" 2>&1 </dev/null
  ) &
  pid=$!
  echo "$pid" >"$KAFKA_DIR/pid"
  # the broker opens its client port when it is registered and ready, not before
  until lives_in "$pid" "$KAFKA_DIR" && (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
    if ! kill -0 "$pid" 2>/dev/null; then
      if listening "$port" || listening "$(port_of kafka_controller)"; then return "$PORT_TAKEN"; fi
      tail -30 "$log" >&2
      die "Kafka ended while starting (its log: $log)"
    fi
    [ "$SECONDS" -lt "$deadline" ] || die "Kafka did not open port $port within 60 s (its log: $log)"
    sleep 0.1
  done
  say "$(label kafka) listens on 127.0.0.1:$port ($(since "$start"))"
}

# kafka_format JAVA: once, for an empty data folder.
kafka_format() {
  [ ! -e "$KAFKA_DIR/data/meta.properties" ] || return 0
  local id
  id=cdc-$(od -An -N9 -tx1 /dev/urandom | tr -d ' \n')
  rm -rf "$KAFKA_DIR/data"
  "$1" -XX:TieredStopAtLevel=1 -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -cp "$(kafka_libs)/*" kafka.tools.StorageTool \
    format --standalone -t "${id:0:22}" -c "$KAFKA_DIR/server.properties" >"$(kafka_log)" 2>&1 </dev/null
}

# kafka_settings: for one node. The short session lets a killed broker come back in seconds.
kafka_settings() {
  local port ctrl
  port=$(port_of kafka) ctrl=$(port_of kafka_controller)
  cat <<CONF
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$ctrl
advertised.listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$ctrl
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=127.0.0.1:$ctrl
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs=$KAFKA_DIR/data

auto.create.topics.enable=false
delete.topic.enable=true
num.partitions=12
log.segment.delete.delay.ms=1000
log.cleaner.dedupe.buffer.size=16777216

offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1

group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500
CONF
}

stop_kafka() {
  local pid
  pid=$(kafka_pid)
  [ -n "$pid" ] || return 0
  kill -TERM "$pid"
  if ! ended "$pid" "$KAFKA_DIR" 20; then
    kill -KILL "$pid"
    ended "$pid" "$KAFKA_DIR" 10 || die "Kafka (pid $pid) does not stop"
  fi
  rm -f "$KAFKA_DIR/pid"
  say "$(label kafka) stopped"
}
