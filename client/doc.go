// Package client is the Go SDK for a Cay server: sandboxes, commands, processes, files, jobs and sessions over its public HTTP API.
//
// It speaks only the documented API (/v1, see the server's /openapi.json) and holds no state but connections: everything it
// answers is what the server said. It does not start servers and knows nothing of nodes or drivers. Unknown members, events and
// values of a newer server are ignored.
//
// # Retries
//
// GET, HEAD, PUT and DELETE are tried again after a broken connection, 429 and 503, honouring Retry-After, as is a POST that
// carries an Idempotency-Key; [Client.Create], [Client.Exec], [Client.Stream] and [Jobs.Submit] set one themselves. A PUT of a file
// is repeated only where its content can be read again. Streams ([Client.Stream], [Client.Session]) attach again by offset, so that
// no output is lost or doubled, until the process's exit has been seen; [Jobs.Stream] does so by position, also over restarts of
// the server.
//
// # Errors
//
// What the server refuses is an [*Error] with its stable reason; see [ReasonOf]. A command that fails is not an error: see
// [ExecResult].
package client
