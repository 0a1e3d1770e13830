package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/sink"
	"github.com/cdc-relay/cdc-relay/internal/sink/record"
)

func loadTest(t *testing.T, environ ...string) *config.Config {
	t.Helper()
	loaded, err := config.Load(config.Input{File: writeFile(t, validConfig), Environ: environ})
	if err != nil {
		t.Fatal(err)
	}
	return &loaded.Config
}

func TestSinkConfig(t *testing.T) {
	t.Parallel()
	got, err := sinkConfig(loadTest(t,
		"CDC_RELAY_KAFKA__COMPRESSION=lz4", "CDC_RELAY_KAFKA__IDENTITY=none", "CDC_RELAY_RECORD__KEY_ENCODING=json_string",
		"CDC_RELAY_RECORD__TIMESTAMP=event", "CDC_RELAY_RECORD__PARTITIONER=crc32", "CDC_RELAY_OUTBOX__TABLE=events.outbox"))
	if err != nil {
		t.Fatal(err)
	}
	want := sink.Config{
		Brokers: []string{"k1:9092"}, ClientID: "cdc-relay", Compression: record.LZ4, BatchBytes: 1044480, BatchRecords: 5000,
		MaxRequests: 32, RequestTimeout: 10 * time.Second, DialTimeout: 3 * time.Second, IdleTimeout: 4 * time.Minute,
		MetadataTTL: time.Second, BackoffMin: 50 * time.Millisecond, BackoffMax: 5 * time.Second, UnknownTopicGrace: 30 * time.Second, PartitionGrace: time.Minute,
		WaitingEvents: 12500, WaitingBytes: 6 << 20, Identity: sink.None,
		Record: record.Config{
			TopicTemplate: "outbox.event.{aggregate_type}", Schema: "events", KeyJSON: true, Partitioner: record.CRC32,
			Headers: record.CloudEvents, Source: "/shop", EventTime: true,
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sink (-want +got):\n%s", diff)
	}
}

func TestKafkaTLS(t *testing.T) {
	t.Parallel()
	cert, key := writeCertificate(t)
	text := writeFile(t, "no certificate")
	tests := []struct {
		name string
		tls  config.TLS
		err  string // part of it
	}{
		{"authority", config.TLS{CAFile: cert}, ""},
		{"client certificate", config.TLS{CertFile: cert, KeyFile: key}, ""},
		{"system's authorities", config.TLS{ServerName: "k1"}, ""},
		{"no authority in the file", config.TLS{CAFile: text}, "kafka.tls.ca_file holds no certificate"},
		{"no key in the file", config.TLS{CertFile: cert, KeyFile: text}, "reading kafka.tls.cert_file and key_file"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.tls.Enabled = true
			got, err := kafkaTLS(tt.tls)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want one with %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.ServerName != tt.tls.ServerName || (got.RootCAs != nil) != (tt.tls.CAFile != "") ||
				(got.GetClientCertificate != nil) != (tt.tls.CertFile != "") {
				t.Errorf("got server name %q, authorities %v, client certificate %v", got.ServerName, got.RootCAs != nil, got.GetClientCertificate != nil)
			}
		})
	}
	if got, err := kafkaTLS(config.TLS{}); got != nil || err != nil {
		t.Errorf("plain text: %v, %v", got, err)
	}
}

// writeCertificate writes a self-signed certificate and its key as PEM.
func writeCertificate(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile = writeFile(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	keyFile = writeFile(t, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})))
	return certFile, keyFile
}

func TestKafkaLogin(t *testing.T) {
	t.Parallel()
	if got := kafkaLogin(config.SASL{Mechanism: "none"}); got != nil {
		t.Errorf("no mechanism: %v", got)
	}
	file := writeFile(t, "old")
	tests := []struct{ mechanism, name, old, rotated string }{
		{"plain", "PLAIN", "\x00u\x00old", "\x00u\x00new"},
		{"scram-sha-256", "SCRAM-SHA-256", "n,,n=u,r=", "n,,n=u,r="},
		{"scram-sha-512", "SCRAM-SHA-512", "n,,n=u,r=", "n,,n=u,r="},
	}
	for _, tt := range tests {
		login := kafkaLogin(config.SASL{Mechanism: tt.mechanism, Username: "u", Password: config.NewSecretFile(file)})
		if login.Name() != tt.name {
			t.Errorf("%s is called %s, want %s", tt.mechanism, login.Name(), tt.name)
		}
		for password, want := range map[string]string{"old": tt.old, "new": tt.rotated} {
			if err := os.WriteFile(file, []byte(password), 0o600); err != nil {
				t.Fatal(err)
			}
			_, first, err := login.Start(t.Context())
			if err != nil || !strings.HasPrefix(string(first), want) {
				t.Errorf("%s starts with %q, %v, want %q", tt.mechanism, first, err, want)
			}
		}
	}
	gone := kafkaLogin(config.SASL{Mechanism: "plain", Password: config.NewSecretFile(filepath.Join(t.TempDir(), "gone"))})
	if _, _, err := gone.Start(t.Context()); err == nil {
		t.Error("a password file that is gone is no error")
	}
	forbidden := kafkaLogin(config.SASL{Mechanism: "scram-sha-256", Username: "u", Password: config.NewSecret(planted + "\u0000")})
	if _, _, err := forbidden.Start(t.Context()); err == nil || strings.Contains(err.Error(), planted) {
		t.Errorf("a password that SCRAM does not allow: %v", err)
	}
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	got := addresses(loadTest(t,
		"CDC_RELAY_POSTGRES__DSN=postgres://u@db1:5433,db2:5434/app",
		"CDC_RELAY_POSTGRES__REPLICATION_DSN=postgres://u@[::1]:5435/app"))
	want := []string{"[::1]:5435", "db1:5433", "db2:5434", "k1:9092"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
}

func TestConnectionOptions(t *testing.T) {
	t.Parallel()
	const own, other = "postgres://u@db/app", "postgres://stream@db/app"
	tests := []struct {
		name                             string
		environ                          []string
		dsn, password                    string
		replicationDSN, replicationLogin string
	}{
		{"one login", []string{"DSN=" + own, "PASSWORD=a"}, own, "a", own, "a"},
		{"password of the stream apart", []string{"DSN=" + own, "PASSWORD=a", "REPLICATION_PASSWORD=b"}, own, "a", own, "b"},
		{"two logins", []string{"DSN=" + own, "PASSWORD=a", "REPLICATION_DSN=" + other, "REPLICATION_PASSWORD=b"}, own, "a", other, "b"},
		{"the other login's password is its own", []string{"DSN=" + own, "PASSWORD=a", "REPLICATION_DSN=" + other}, own, "a", other, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			environ := make([]string, len(tt.environ))
			for i, e := range tt.environ {
				environ[i] = "CDC_RELAY_POSTGRES__" + e
			}
			c := loadTest(t, environ...)
			sql, err1 := sqlOptions(c)
			stream, err2 := replicationOptions(c)
			if err1 != nil || err2 != nil {
				t.Fatal(err1, err2)
			}
			password, _ := sql.Password()
			streamPassword, _ := stream.Password()
			got := []string{sql.DSN, password, stream.DSN, streamPassword, stream.ApplicationName}
			want := []string{tt.dsn, tt.password, tt.replicationDSN, tt.replicationLogin, "cdc-relay/cdc_relay"}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
		})
	}
}
