// Package contract holds the real server against the OpenAPI document that it serves. It walks every operation with valid, invalid
// and hostile input: no answer is a fault of the server, each comes in time, has a status that the document names, and a body that
// matches its schema, to which nothing undocumented may be added. What an operation does beyond that is not asked here; the tests
// of conformance and those beside the code ask it.
//
// An operation of the document needs a valid call in the table of calls_test.go; all else is derived from its description.
package contract
