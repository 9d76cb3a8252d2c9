// Package app is the composition root: it puts the parts together into the processes `cay up`, `cay server` and `cay node`, and
// owns their order of start and stop. It is the only package that sees all zones, and holds no logic of any of them.
package app
