package sink

import (
	"strconv"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// refuse refuses what is at fault in a batch and keeps the rest to be sent
// next, in order.
func (w *worker) refuse(d *delivery, v verdict) {
	bad := w.blame(d, v)
	if bad == nil {
		half := d.batch.Len() / 2
		w.todo = append(w.todo,
			d.batch.Subset(func(i int) bool { return i >= half }),
			d.batch.Subset(func(i int) bool { return i < half }))
		return
	}
	rest, behind := w.queues.refuseIn(w.part, d.batch, bad, w.failure(d, v), w.todo)
	w.todo = behind
	if rest != nil {
		w.todo = append(w.todo, rest)
	}
}

// blame returns the indexes of the records at fault, in order; nil if they
// cannot be told.
func (w *worker) blame(d *delivery, v verdict) []int {
	n := d.batch.Len()
	if n == 1 || v.class == classTopic || v.whole {
		all := make([]int, n)
		for i := range all {
			all[i] = i
		}
		return all
	}
	if len(d.offenders) > 0 && d.offenders[0] >= 0 && d.offenders[len(d.offenders)-1] < n {
		return d.offenders
	}
	return nil
}

// failure is what the row of a refused event will say.
func (w *worker) failure(d *delivery, v verdict) event.Failure {
	t := w.part.topic
	f := event.Failure{Class: event.ClassRecord, Code: v.code, Permanent: v.permanent}
	switch v.code {
	case codeTopicUnknown:
		return failTopicUnknown(t.name)
	case codeTopicDenied:
		return failTopicDenied(t.name)
	case "RECORD_TOO_LARGE":
		f.Message = w.sizeMessage(d)
	case "RECORD_INVALID":
		f.Message = "topic " + t.name + " does not accept the record: a compacted topic needs a key, a schema check may have failed"
	case "TIMESTAMP_INVALID":
		f.Message = "topic " + t.name + " does not accept the record's time: compare the clocks and message.timestamp.*.max.ms"
	case "POLICY_VIOLATION":
		f.Message = "a policy of the Kafka cluster refuses the record for topic " + t.name
	default:
		f.Message = "the Kafka cluster does not accept the topic name"
	}
	return f
}

// sizeMessage tells size and limit of a record that was refused for its size.
func (w *worker) sizeMessage(d *delivery) string {
	maxBytes, _ := w.queues.sizeLimit(w.part.topic)
	w.queues.doubtLimit(w.part.topic)
	f := "the record takes " + strconv.Itoa(d.sealed.Size()) + " bytes; topic " + w.part.topic.name + " accepts "
	if maxBytes == 0 {
		return f + "fewer (max.message.bytes)"
	}
	return f + strconv.Itoa(maxBytes) + " (max.message.bytes)"
}
