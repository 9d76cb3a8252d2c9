// Package api is the public HTTP surface: routes, decoding, encoding, streams. Handlers translate between HTTP and the interfaces
// in deps.go; they decide nothing. It does not know SQL, placement or gVisor.
package api
