// Package cay is the domain: what a sandbox, a process, a project and an event are, which states they may take, and the errors
// that every zone speaks. It imports the standard library only and holds no I/O; storage, transport and isolation live elsewhere.
package cay
