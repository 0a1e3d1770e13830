package group

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
)

// peer is a connection whose other side has answered already.
type peer struct {
	io.Reader
	sent bytes.Buffer
}

func (p *peer) Write(b []byte) (int, error) { return p.sent.Write(b) }

// written is what the library writes as a broker.
func responseOf(t *testing.T, version int16, id int32, change func(*fetch.Response)) []byte {
	t.Helper()
	res := &fetch.Response{Topics: []fetch.ResponseTopic{{Topic: "topic", Partitions: []fetch.ResponsePartition{{
		Partition: 3, HighWatermark: 77, LastStableOffset: 76, LogStartOffset: 5, PreferredReadReplica: -1,
		AbortedTransactions: []fetch.ResponseTransaction{{ProducerID: 1, FirstOffset: 2}, {ProducerID: 3, FirstOffset: 4}},
		RecordSet: protocol.RecordSet{Version: 2, Records: protocol.NewRecordReader(
			protocol.Record{Value: protocol.NewBytes([]byte("v"))}, protocol.Record{Value: protocol.NewBytes([]byte("w"))})},
	}}}}}
	change(res)
	var b bytes.Buffer
	if err := protocol.WriteResponse(&b, version, id, res); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func exchanged(version int16, answered []byte) (*answer, *peer, error) {
	e := &exchange{clientID: "me", Request: fetch.Request{Topics: []fetch.RequestTopic{{Topic: "topic",
		Partitions: []fetch.RequestPartition{{Partition: 3, FetchOffset: 42}}}}}}
	e.Prepare(version)
	p := &peer{Reader: bytes.NewReader(answered)}
	m, err := e.RawExchange(p)
	if err != nil {
		return nil, p, err
	}
	return m.(*answer), p, nil
}

func TestExchangeInEveryVersion(t *testing.T) {
	t.Parallel()
	for version := int16(oldestFetch); version <= 11; version++ {
		ans, p, err := exchanged(version, responseOf(t, version, correlationID, func(*fetch.Response) {}))
		if err != nil {
			t.Fatalf("version %d: %v", version, err)
		}
		if ans.code != 0 || ans.highWatermark != 77 {
			t.Errorf("version %d: %+v", version, ans)
		}
		b, err := decode(somewhere, 0, 2, ans.records)
		if diff := cmp.Diff([]string{"v", "w"}, valuesOf(b.Records)); diff != "" || err != nil {
			t.Errorf("version %d: %v (-want +got):\n%s", version, err, diff)
		}
		got, id, client, req, err := protocol.ReadRequest(&p.sent)
		if err != nil || got != version || id != correlationID || client != "me" {
			t.Fatalf("version %d: sent version %d, id %d, client %q, %v", version, got, id, client, err)
		}
		if at := req.(*fetch.Request).Topics[0].Partitions[0]; at.Partition != 3 || at.FetchOffset != 42 {
			t.Errorf("version %d: asked for %+v", version, at)
		}
	}
}

func TestExchangeTellsErrors(t *testing.T) {
	t.Parallel()
	const version = 11
	same := func(*fetch.Response) {}
	whole := responseOf(t, version, correlationID, same)
	for name, tc := range map[string]struct {
		version  int16
		answered []byte
		code     int16
		want     string
	}{
		"partition's code": {version, responseOf(t, version, correlationID, func(r *fetch.Response) {
			r.Topics[0].Partitions[0].ErrorCode = 6
		}), 6, ""},
		"code of all": {version, responseOf(t, version, correlationID, func(r *fetch.Response) {
			r.ErrorCode, r.Topics = 70, nil
		}), 70, ""},
		"no topic":        {version, responseOf(t, version, correlationID, func(r *fetch.Response) { r.Topics = nil }), 0, "no topic"},
		"no partition":    {version, responseOf(t, version, correlationID, func(r *fetch.Response) { r.Topics[0].Partitions = nil }), 0, "no partition"},
		"another request": {version, responseOf(t, version, correlationID+1, same), 0, "not an answer"},
		"a huge answer":   {version, append([]byte{0x7f, 0xff, 0xff, 0xff}, whole[4:]...), 0, "not an answer"},
		"a tiny answer":   {version, append([]byte{0, 0, 0, 3}, whole[4:]...), 0, "not an answer"},
		"connection ends": {version, whole[:len(whole)-1], 0, "unexpected EOF"},
		"ends at once":    {version, nil, 0, "EOF"},
		"fields missing":  {version, append([]byte{0, 0, 0, 30}, whole[4:34]...), 0, "cut short"},
		"old broker":      {oldestFetch - 1, whole, 0, "Kafka 0.11"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ans, _, err := exchanged(tc.version, tc.answered)
			switch {
			case tc.want == "" && (err != nil || ans.code != tc.code):
				t.Errorf("got %+v, %v; want code %d", ans, err, tc.code)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("got %+v, %v; want %q", ans, err, tc.want)
			}
		})
	}
}

func FuzzParseAnswer(f *testing.F) {
	f.Add([]byte{}, int16(11))
	f.Add(bytes.Repeat([]byte{0, 0, 0, 1}, 40), int16(4))
	f.Add(bytes.Repeat([]byte{0xff}, 100), int16(7))
	f.Fuzz(func(t *testing.T, body []byte, version int16) {
		if ans, err := parseAnswer(body, version); err == nil && len(ans.records) > len(body) {
			t.Fatal("more than there is")
		}
	})
}
