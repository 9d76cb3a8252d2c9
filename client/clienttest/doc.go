// Package clienttest is a Cay server in memory for tests of programs that use package client: it speaks the public API for
// sandboxes, commands (JSON, server-sent events, WebSocket), processes, files, jobs, sessions and the history, runs programs that are Go
// functions, and breaks connections on request. It isolates nothing, keeps no promise about limits or clocks, and does not belong in production.
package clienttest
