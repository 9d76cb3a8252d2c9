// Package conformance holds the faults that users met in systems of this kind as tests against the real server: each is a small
// input and the right result, and carries its id. What the API says elsewhere is tested where it is built.
package conformance
