// Package provider is a stand-in for a service that sends e-mails, with faults
// that can be switched on. It keeps everything in memory.
//
//	POST /v1/messages        send one: Idempotency-Key, X-Attempt-Id, any body
//	GET  /v1/messages?key=   was it accepted? 200, 404, or 409 while it runs
//	PUT  /faults             what goes wrong from now on, a list of [Fault]
//	GET  /log                what was observed, a list of [Observation]
//	GET  /mailbox            what was accepted, a list of [Message]
//	POST /reset              forget all of it
//
// A key is remembered from when its message is accepted, for Config.TTL: the
// same request again gets the stored answer, with Idempotent-Replayed: true; a
// request with another body gets 422; while the first one runs, 409.
//
// What happened is told by two separate observers: the server knows what it has
// accepted and which answers it has written; whether one arrived only the client
// knows (package client). They join on the attempt id.
package provider
