// Package testkit runs the real cay binary for the suites under test/: it starts and kills servers, speaks their HTTP, SSE and
// WebSocket by hand, so that a fault of the client package cannot hide one of the server, and finds what they leave behind. It
// holds no expectations of its own about behaviour; those stand in the tests.
package testkit

import (
	"os"
	"testing"
	"time"
)

// Soak reports whether the long forms of the tests were asked for.
func Soak() bool { return os.Getenv("CAY_TEST_SOAK") != "" }

// Scaled is small, or large when the long forms were asked for.
func Scaled[T any](small, large T) T {
	if Soak() {
		return large
	}
	return small
}

// Missing skips the test for want of something that the machine does not have; with CAY_TEST_REQUIRE_ALL=1 it fails instead, so
// that a green run means that everything was tried.
func Missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CAY_TEST_REQUIRE_ALL") == "1" {
		t.Fatalf("CAY_TEST_REQUIRE_ALL=1 and missing: "+format, args...)
	}
	t.Skipf("missing: "+format, args...)
}

// RequireRoot is for tests that look at other users' processes, at cgroups or at mounts.
func RequireRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		Missing(t, "root, to see processes, mounts and cgroups of the node")
	}
}

// pollInterval is how often conditions that nothing announces are looked at.
const pollInterval = 20 * time.Millisecond

// Until calls cond until it returns nil, and returns its last error once timeout has passed.
func Until(timeout time.Duration, cond func() error) error {
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		err := cond()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			return err
		}
	}
}

// Eventually fails the test when cond still returns an error after timeout.
func Eventually(t testing.TB, timeout time.Duration, what string, cond func() error) {
	t.Helper()
	if err := Until(timeout, cond); err != nil {
		t.Fatalf("%s: not within %v: %v", what, timeout, err)
	}
}
