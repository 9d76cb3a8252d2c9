// Package mcp offers sandboxes as tools to language models, over the Model Context Protocol.
//
// It is a client of the public API and nothing else: each tool is a call or two of package client with the caller's own key, so that
// scopes, limits, audit and metrics are the API's. [New] makes the server, for any transport of the SDK; [Handler] serves it over
// Streamable HTTP, without sessions.
//
// # Bounds
//
// A result is made for a model's context: of each stream of output it has the head and the tail, and says where the rest is. Guests
// and models are both not trusted: arguments are checked against each tool's schema, output is kept in bounded windows while it comes,
// and what is not UTF-8 is replaced and said.
//
// # Faults
//
// A program that fails is a result. What cannot be done is a result too, with isError, a stable reason and what to do next; protocol
// errors are for faults of the protocol alone.
package mcp
