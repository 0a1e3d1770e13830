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
	"github.com/cdc-relay/cdc-relay/internal/nettest"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// Kafka is how to reach brokers. Several addresses are separated by commas.
type Kafka struct {
	Relay string // host:port for the relay
	Test  string // host:port for the test itself, past any proxy
	// Config is what the relay needs to log in, User the name it has then.
	Config relayproc.Config
	User   string
	// shared: others use it too, so topics are deleted after the test.
	shared bool
}

// Shared is the broker that tests share: they must not stop or reconfigure it.
func Shared(t testing.TB) Kafka {
	t.Helper()
	addr := pgtest.Env(t, "CDC_TEST_KAFKA")
	return Kafka{Relay: addr, Test: addr, shared: true}
}

// Broker is a single-node Kafka of one test. The relay reaches it through a
// proxy.
type Broker struct {
	Kafka
	*Node
	Proxy *Proxy
}

// StartBroker makes a broker and waits until it accepts clients. It ends with
// the test.
func StartBroker(t testing.TB) *Broker {
	t.Helper()
	return startBroker(t, "PLAINTEXT", "")
}

// Who logs in at a secure broker.
const (
	secureUser     = "relay"
	securePassword = "planted-3kZq9-password"
)

// StartSecureBroker makes a broker that asks the relay for a login by
// SCRAM-SHA-256 and lets it do nothing that topics.Admin.Allow has not allowed
// it. The test itself may do everything.
func StartSecureBroker(t testing.TB) *Broker {
	t.Helper()
	b := startBroker(t, "SASL_PLAINTEXT", secureSettings,
		"--add-scram", fmt.Sprintf("SCRAM-SHA-256=[name=%s,password=%s]", secureUser, securePassword))
	b.Kafka.Config = relayproc.Config{
		"kafka.sasl.mechanism": "scram-sha-256", "kafka.sasl.username": secureUser, "kafka.sasl.password": securePassword,
	}
	b.User = secureUser
	return b
}

// startBroker: protocol is that of the proxied listener, format are arguments
// for the storage.
func startBroker(t testing.TB, protocol, settings string, format ...string) *Broker {
	t.Helper()
	direct, controller, proxied := freeAddr(t), freeAddr(t), freeAddr(t)
	proxy, err := StartProxy(proxied)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	b := &Broker{Kafka: Kafka{Relay: proxy.Addr(), Test: direct}, Proxy: proxy}
	b.Node = newNode(t, direct, fmt.Sprintf(brokerSettings, direct, proxied, controller, proxy.Addr(), protocol)+settings)
	b.format(clusterID(), append(format, "--standalone")...)
	b.Start()
	return b
}

// StartDistantBroker makes a broker that its clients reach by a network on which
// connections can die. It ends with the test.
func StartDistantBroker(t testing.TB) (Kafka, *nettest.Network) {
	t.Helper()
	direct, controller, distant := freeAddr(t), freeAddr(t), freeAddr(t)
	network := nettest.Listen(t, distant)
	n := newNode(t, direct, fmt.Sprintf(brokerSettings, direct, distant, controller, network.Addr(), "PLAINTEXT"))
	n.format(clusterID(), "--standalone")
	n.Start()
	return Kafka{Relay: network.Addr(), Test: direct}, network
}

const brokerSettings = `process.roles=broker,controller
node.id=1
listeners=DIRECT://%[1]s,PROXIED://%[2]s,CONTROLLER://%[3]s
advertised.listeners=DIRECT://%[1]s,PROXIED://%[4]s,CONTROLLER://%[3]s
listener.security.protocol.map=DIRECT:PLAINTEXT,PROXIED:%[5]s,CONTROLLER:PLAINTEXT
controller.quorum.bootstrap.servers=%[3]s
inter.broker.listener.name=DIRECT
`

// secureSettings: who comes by another listener than the relay's has no name
// and may do everything.
const secureSettings = `listener.name.proxied.sasl.enabled.mechanisms=SCRAM-SHA-256
listener.name.proxied.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
`

// Cluster is a Kafka of two brokers. A topic's partitions are on both in turn,
// each on one only: stopping one broker leaves half of them without leader.
// The first broker holds the cluster together: when both are stopped, it must
// be started first.
type Cluster struct {
	Kafka
	First, Second *Node
}

// StartCluster makes a cluster and waits until both brokers accept clients. It
// ends with the test.
func StartCluster(t testing.TB) *Cluster {
	t.Helper()
	first, second, controller, id := freeAddr(t), freeAddr(t), freeAddr(t), clusterID()
	c := &Cluster{
		Kafka:  Kafka{Relay: first + "," + second, Test: first + "," + second},
		First:  newNode(t, first, fmt.Sprintf(clusterSettings, 1, "broker,controller", "DIRECT://"+first+",CONTROLLER://"+controller, first, controller)),
		Second: newNode(t, second, fmt.Sprintf(clusterSettings, 2, "broker", "DIRECT://"+second, second, controller)),
	}
	c.First.format(id, "--standalone")
	c.Second.format(id)
	c.First.launch() // side by side: a start takes seconds
	c.Second.Start()
	c.First.waitUp()
	return c
}

const clusterSettings = `node.id=%d
process.roles=%s
listeners=%s
advertised.listeners=DIRECT://%s
listener.security.protocol.map=DIRECT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.quorum.bootstrap.servers=%s
inter.broker.listener.name=DIRECT
`

// Node is one Kafka process of a test, which may end and restart it.
type Node struct {
	t    testing.TB
	addr string // where it accepts clients once it is ready
	dir  string
	java string
	libs string
	proc *relayproc.Process
	runs int
}

// newNode writes the settings of a process that is yet to be formatted and
// started. It ends with the test.
func newNode(t testing.TB, addr, settings string) *Node {
	t.Helper()
	n := &Node{t: t, addr: addr, dir: t.TempDir(), java: pgtest.Env(t, "CDC_TEST_JAVA"), libs: pgtest.Env(t, "CDC_TEST_KAFKA_LIBS") + "/*"}
	settings += fmt.Sprintf(nodeSettings, filepath.Join(n.dir, "data"))
	if err := os.WriteFile(filepath.Join(n.dir, "server.properties"), []byte(settings), 0o600); err != nil {
		t.Fatalf("writing the broker's settings: %v", err)
	}
	t.Cleanup(n.remove)
	return n
}

// nodeSettings: the short session lets a killed broker come back in seconds.
const nodeSettings = `controller.listener.names=CONTROLLER
log.dirs=%s
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

func clusterID() string {
	id := make([]byte, 16)
	rand.Read(id)
	id[0] &= 0x7f // so that it does not begin with a dash, like an option
	return base64.RawURLEncoding.EncodeToString(id)
}

// format prepares the empty data folder.
func (n *Node) format(cluster string, args ...string) {
	n.t.Helper()
	args = append([]string{"-XX:TieredStopAtLevel=1", "-cp", n.libs, "kafka.tools.StorageTool", "format",
		"-t", cluster, "-c", "server.properties"}, args...)
	cmd := exec.Command(n.java, args...)
	cmd.Dir = n.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		n.t.Fatalf("formatting the broker's storage: %v\n%s", err, out)
	}
}

// Start starts the broker, on the data it had, and waits until it is ready.
func (n *Node) Start() {
	n.t.Helper()
	n.launch()
	n.waitUp()
}

func (n *Node) launch() {
	n.t.Helper()
	n.runs++
	proc, err := relayproc.Start(filepath.Join(n.dir, fmt.Sprintf("broker-%d.log", n.runs)), nil, n.java,
		"-Xms256m", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"-Dorg.slf4j.simpleLogger.showDateTime=true", "-cp", n.libs, "kafka.Kafka", filepath.Join(n.dir, "server.properties"))
	if err != nil {
		n.t.Fatal(err)
	}
	n.proc = proc
}

// waitUp: a broker opens the clients' port when it is registered and ready.
func (n *Node) waitUp() {
	n.t.Helper()
	poll(n.t, "the broker to accept clients", func() bool {
		if n.proc.Exited() {
			n.t.Fatalf("the broker ended while starting:\n%s", n.proc.Tail(40))
		}
		conn, err := net.DialTimeout("tcp", n.addr, time.Second)
		if err == nil {
			conn.Close()
		}
		return err == nil
	}, func() string { return n.proc.Tail(20) })
}

// EnsureUp starts the broker if it is down.
func (n *Node) EnsureUp() {
	n.t.Helper()
	if n.proc.Exited() {
		n.Start()
	}
}

// Stop ends the broker cleanly and waits for its end.
func (n *Node) Stop() {
	n.t.Helper()
	if err := n.proc.Stop(30 * time.Second); err != nil {
		n.t.Fatalf("stopping the broker: %v\n%s", err, n.proc.Tail(20))
	}
}

// Kill ends the broker at once.
func (n *Node) Kill() {
	n.t.Helper()
	if err := n.proc.Kill(); err != nil {
		n.t.Fatalf("killing the broker: %v", err)
	}
}

// Freeze keeps the broker silent until Thaw: connections stay open.
func (n *Node) Freeze() { n.signal(syscall.SIGSTOP) }

// Thaw ends Freeze.
func (n *Node) Thaw() { n.signal(syscall.SIGCONT) }

func (n *Node) signal(sig syscall.Signal) {
	n.t.Helper()
	if err := n.proc.Signal(sig); err != nil {
		n.t.Fatal(err)
	}
}

func (n *Node) remove() {
	if n.proc == nil {
		return // the test failed before
	}
	if n.t.Failed() {
		n.t.Logf("the broker's last lines:\n%s", n.proc.Tail(20))
	}
	if err := n.proc.Kill(); err != nil {
		n.t.Errorf("ending the broker: %v", err)
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
