package harness

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// Kafka is how to reach a broker.
type Kafka struct {
	Relay string // host:port for the relay
	Test  string // host:port for the test itself, past any proxy
}

// Shared is the broker that tests share: they must not stop or reconfigure it.
func Shared(t testing.TB) Kafka {
	t.Helper()
	addr := pgtest.Env(t, "CDC_TEST_KAFKA")
	return Kafka{Relay: addr, Test: addr}
}

// Broker is a single-node Kafka of one test.
type Broker struct {
	Kafka
	Proxy *Proxy // between the relay and the broker
	t     testing.TB
	dir   string
	java  string
	libs  string
	proc  *relayproc.Process
	runs  int
}

// StartBroker makes a broker and waits until it accepts clients. The relay
// reaches it through a proxy. It ends with the test.
func StartBroker(t testing.TB) *Broker {
	t.Helper()
	b := &Broker{t: t, dir: t.TempDir(), java: pgtest.Env(t, "CDC_TEST_JAVA"), libs: pgtest.Env(t, "CDC_TEST_KAFKA_LIBS") + "/*"}
	b.Kafka.Test = freeAddr(t)
	controller, proxied := freeAddr(t), freeAddr(t)
	proxy, err := StartProxy(proxied)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	b.Proxy, b.Kafka.Relay = proxy, proxy.Addr()
	settings := fmt.Sprintf(brokerSettings, b.Kafka.Test, proxied, controller, proxy.Addr(), filepath.Join(b.dir, "data"))
	if err := os.WriteFile(filepath.Join(b.dir, "server.properties"), []byte(settings), 0o600); err != nil {
		t.Fatalf("writing the broker's settings: %v", err)
	}
	b.format()
	t.Cleanup(b.remove)
	b.Start()
	return b
}

// brokerSettings: the short session lets a killed broker come back in seconds.
const brokerSettings = `process.roles=broker,controller
node.id=1
listeners=DIRECT://%[1]s,PROXIED://%[2]s,CONTROLLER://%[3]s
advertised.listeners=DIRECT://%[1]s,PROXIED://%[4]s,CONTROLLER://%[3]s
listener.security.protocol.map=DIRECT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=%[3]s
inter.broker.listener.name=DIRECT
log.dirs=%[5]s
auto.create.topics.enable=false
log.cleaner.dedupe.buffer.size=16777216
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500
`

// format prepares the empty data folder.
func (b *Broker) format() {
	b.t.Helper()
	id := make([]byte, 16)
	rand.Read(id)
	cmd := exec.Command(b.java, "-XX:TieredStopAtLevel=1", "-cp", b.libs, "kafka.tools.StorageTool", "format", "--standalone",
		"-t", base64.RawURLEncoding.EncodeToString(id), "-c", "server.properties")
	cmd.Dir = b.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		b.t.Fatalf("formatting the broker's storage: %v\n%s", err, out)
	}
}

// Start starts the broker, on the data it had, and waits until it is ready.
func (b *Broker) Start() {
	b.t.Helper()
	b.runs++
	proc, err := relayproc.Start(filepath.Join(b.dir, fmt.Sprintf("broker-%d.log", b.runs)), nil, b.java,
		"-Xms256m", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"-Dorg.slf4j.simpleLogger.showDateTime=true", "-cp", b.libs, "kafka.Kafka", filepath.Join(b.dir, "server.properties"))
	if err != nil {
		b.t.Fatal(err)
	}
	b.proc = proc
	// it opens the clients' port when it is registered and ready
	poll(b.t, "the broker to accept clients", func() bool {
		if proc.Exited() {
			b.t.Fatalf("the broker ended while starting:\n%s", proc.Tail(40))
		}
		conn, err := net.DialTimeout("tcp", b.Test, time.Second)
		if err == nil {
			conn.Close()
		}
		return err == nil
	}, func() string { return proc.Tail(20) })
}

// EnsureUp starts the broker if it is down.
func (b *Broker) EnsureUp() {
	b.t.Helper()
	if b.proc.Exited() {
		b.Start()
	}
}

// Stop ends the broker cleanly and waits for its end.
func (b *Broker) Stop() {
	b.t.Helper()
	if err := b.proc.Stop(30 * time.Second); err != nil {
		b.t.Fatalf("stopping the broker: %v\n%s", err, b.proc.Tail(20))
	}
}

// Kill ends the broker at once.
func (b *Broker) Kill() {
	b.t.Helper()
	if err := b.proc.Kill(); err != nil {
		b.t.Fatalf("killing the broker: %v", err)
	}
}

// Freeze keeps the broker silent until Thaw: connections stay open.
func (b *Broker) Freeze() { b.signal(syscall.SIGSTOP) }

// Thaw ends Freeze.
func (b *Broker) Thaw() { b.signal(syscall.SIGCONT) }

func (b *Broker) signal(sig syscall.Signal) {
	b.t.Helper()
	if err := b.proc.Signal(sig); err != nil {
		b.t.Fatal(err)
	}
}

func (b *Broker) remove() {
	if b.t.Failed() {
		b.t.Logf("the broker's last lines:\n%s", b.proc.Tail(20))
	}
	if err := b.proc.Kill(); err != nil {
		b.t.Errorf("ending the broker: %v", err)
	}
}

func freeAddr(t testing.TB) string {
	t.Helper()
	addr, err := relayproc.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// patience bounds every wait on a real server. It is there to end a broken
// test, not to measure anything.
const patience = 90 * time.Second

// poll asks for a condition until it holds, every few milliseconds, and less
// often if the question itself takes its time.
func poll(t testing.TB, what string, condition func() bool, state func() string) {
	t.Helper()
	const often = 10 * time.Millisecond
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		start := time.Now()
		if condition() {
			return
		}
		pause := time.NewTimer(max(often, 3*time.Since(start)))
		select {
		case <-deadline.C:
			pause.Stop()
			t.Fatalf("waited %v for %s; state:\n%s", patience, what, state())
		case <-pause.C:
		}
	}
}
