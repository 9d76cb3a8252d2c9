// Package attack attacks the real server from inside a sandbox, as its user and as its root, and from the place of its agent. Each
// test says which defence it tests: it fails when that is taken away. Whether an attack achieves anything inside its own sandbox is
// not asked; what counts is that the host, the node and the neighbours stay whole, and that the sandbox can be deleted.
package attack
