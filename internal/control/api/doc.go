// Package api is the public HTTP surface: routes, decoding, encoding, streams. Handlers translate between HTTP and the interfaces
// in deps.go; they decide nothing. It does not know SQL, placement or gVisor.
//
// The whole surface is the table in routes.go. A request passes, in this order: request id and log, panics, Host, Origin and CORS,
// routing (404, 405), then for each route the key or ticket, the scope, the query's names, the content type, and the handler, which
// reads the body within its bound.
package api
