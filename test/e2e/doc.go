// Package e2e runs the real binary through the days of its life: start, stop, kill -9, restart, another user, many sandboxes, and the
// command line. Each server has a data directory of its own, and what it leaves behind fails the test.
package e2e
