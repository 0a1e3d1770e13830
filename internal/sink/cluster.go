package sink

import (
	"context"
	"io"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/cdc-relay/cdc-relay/internal/kafkaconn"
	"github.com/cdc-relay/cdc-relay/internal/sink/record"
)

// broker is what a partition's worker needs of Kafka. Safe for concurrent use.
type broker interface {
	// produce sends a batch once, acks=all. The error is nil, the broker's
	// answer (answered is true) or what kept the answer away. offenders are
	// the indexes of the records that the broker names as the cause. The
	// context must not be cancelled: a request that was handed over cannot be
	// taken back. ready asks, when a connection has been found and the bytes are
	// about to be written, whether they still may be: an error keeps them here.
	produce(ctx context.Context, to *partition, batch *record.Sealed, ready func() error) (offenders []int, answered bool, err error)
	// initProducer asks for a producer id. Without a transactional id it is a
	// new one. With it, own tells apart a renewal, which raises the epoch of an
	// id that is still ours (it may be repeated after a lost answer), from a
	// takeover (record.NoProducer), which makes the epochs of all others old.
	initProducer(ctx context.Context, transactionalID string, own record.Producer) (record.Producer, error)
	// refresh makes the next request fetch metadata first. It may do nothing
	// if that was asked for a moment ago.
	refresh()
}

// cluster is the Kafka client: the only place that talks to brokers.
type cluster struct{ client *kafkaconn.Client }

var (
	_ broker  = (*cluster)(nil)
	_ catalog = (*cluster)(nil)
)

// newCluster makes a transport without a Context: requests for batches must not
// wait for a layout that no longer comes.
func newCluster(cfg *Config) *cluster {
	conns := kafkaconn.New((&net.Dialer{Timeout: cfg.DialTimeout}).DialContext)
	return &cluster{kafkaconn.NewClient(cfg.Brokers, cfg.RequestTimeout, conns, &kafka.Transport{
		DialTimeout: cfg.DialTimeout + cfg.DialTimeout/2, // TCP, TLS, versions and SASL together
		IdleTimeout: cfg.IdleTimeout,
		MetadataTTL: cfg.MetadataTTL,
		ClientID:    cfg.ClientID,
		TLS:         cfg.TLS,
		SASL:        cfg.SASL,
	})}
}

// close ends all connections, and with them the requests on them. A request
// that begins later fails, and leaves something to close again.
func (c *cluster) close() { c.client.Close() }

func (c *cluster) refresh() { c.client.Refresh() }

func (c *cluster) lastHeard() time.Time { return c.client.LastHeard() }

func (c *cluster) produce(ctx context.Context, to *partition, batch *record.Sealed, ready func() error) ([]int, bool, error) {
	res, err := c.client.RawProduce(ctx, &kafka.RawProduceRequest{
		Topic:        to.topic.name,
		Partition:    int(to.number),
		RequiredAcks: kafka.RequireAll,
		RawRecords:   protocol.RawRecordSet{Reader: &gatedReader{ready: ready, batch: batch.Reader()}},
	})
	if err != nil {
		return nil, false, err
	}
	var offenders []int
	for i := range res.RecordErrors {
		offenders = append(offenders, i)
	}
	slices.Sort(offenders)
	return offenders, true, res.Error
}

// gatedReader yields a batch if it still may be sent. The client reads it when
// it has a connection, and writes nothing when the reading fails.
type gatedReader struct {
	ready func() error
	batch io.Reader
}

func (r *gatedReader) Read(p []byte) (int, error) {
	if err := r.ready(); err != nil {
		return 0, err
	}
	return r.batch.Read(p)
}

// WriteTo is what the client calls: once, for the whole batch.
func (r *gatedReader) WriteTo(w io.Writer) (int64, error) {
	if err := r.ready(); err != nil {
		return 0, err
	}
	return io.Copy(w, r.batch)
}

// transactionTimeout is asked for because a transactional id needs one; there
// are no transactions. Brokers allow up to 15 minutes by default.
const transactionTimeout = time.Minute

func (c *cluster) initProducer(ctx context.Context, transactionalID string, own record.Producer) (record.Producer, error) {
	res, err := c.client.InitProducerID(ctx, &kafka.InitProducerIDRequest{
		TransactionalID:      transactionalID,
		TransactionTimeoutMs: int(transactionTimeout.Milliseconds()),
		ProducerID:           int(own.ID),
		ProducerEpoch:        int(own.Epoch),
	})
	if err != nil {
		return record.NoProducer, err
	}
	if res.Error != nil {
		return record.NoProducer, res.Error
	}
	return record.Producer{ID: int64(res.Producer.ProducerID), Epoch: int16(res.Producer.ProducerEpoch)}, nil
}

// topics is answered from metadata that is at most as old as configured, or
// from the last that came, as long as there has been any since the last
// refresh. names must not be nil, which would mean all topics.
func (c *cluster) topics(ctx context.Context, names []string) (map[string]topicState, error) {
	res, err := c.client.Metadata(ctx, &kafka.MetadataRequest{Topics: names})
	if err != nil {
		return nil, err
	}
	states := make(map[string]topicState, len(res.Topics))
	for _, t := range res.Topics {
		s := topicState{partitions: len(t.Partitions), err: t.Error}
		if len(t.Partitions) > 0 {
			s.err = nil // a leader is missing: that is its partition's affair
		}
		states[t.Name] = s
	}
	return states, nil
}

func (c *cluster) maxBytes(ctx context.Context, names []string) (map[string]int, error) {
	req := &kafka.DescribeConfigsRequest{}
	for _, name := range names {
		req.Resources = append(req.Resources, kafka.DescribeConfigRequestResource{
			ResourceType: kafka.ResourceTypeTopic,
			ResourceName: name,
			ConfigNames:  []string{"max.message.bytes"},
		})
	}
	res, err := c.client.DescribeConfigs(ctx, req)
	if err != nil {
		return nil, err
	}
	limits := make(map[string]int, len(names))
	for _, r := range res.Resources {
		for _, entry := range r.ConfigEntries {
			if n, err := strconv.Atoi(entry.ConfigValue); err == nil && r.Error == nil && n > 0 {
				limits[r.ResourceName] = n
			}
		}
	}
	return limits, nil
}
