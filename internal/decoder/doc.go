// Package decoder turns the payload of replication frames into messages:
// keepalives, transaction borders, outbox rows as events, and logical
// messages. It is pure: bytes in, values out, no I/O, no clock, no goroutine.
//
// A Decoder belongs to one replication connection: it remembers the open
// transaction and the columns of the outbox table, as the last Relation
// message gave them, and is thrown away with its connection. It understands
// pgoutput's protocol version 1 with logical messages, values in binary as
// well as in text format.
//
// It is strict, so that nothing is passed over in silence (I7): an unknown
// message type, a message that is too short or too long, one that is out of
// order, a missing or mistyped column and a value that cannot be read are all
// an *Error with the message's LSN. Only what pgoutput sends about other
// things than our rows is reported as Ignored, to be counted. After an error
// the decoder must not be used again.
//
// Begin, Insert and Commit of a stream in binary format allocate nothing; the
// slices of a Message are views into the bytes given to Decode.
package decoder
