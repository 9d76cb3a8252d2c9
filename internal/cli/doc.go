// Package cli is the command line: commands that read flags, call package client and print. The client is its only door to a
// server; it knows nothing of nodes, drivers or the store. Commands that start servers belong to the composition root, which
// hands them to [New].
//
// # Exit codes
//
//	0        done
//	N        run, exec, sh and code: the command's own code (128+N when signal N ended it)
//	2        the command line is wrong
//	125      Cay itself failed: no server, no key, refused, connection lost
//	126, 127 run and exec: the command cannot be executed, or is not there (as a shell says it, from inside the sandbox)
//	130      interrupted
package cli
