// Package conformance holds the faults that users met in systems of this kind as tests against the real server: each is a small
// input and the right result, and carries its id. What the API says elsewhere is tested where it is built.
package conformance

import (
	"testing"

	"github.com/cayhq/cay/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// box makes a sandbox on the shared server.
func box(t *testing.T, more ...testkit.Fields) *testkit.Sandbox {
	t.Helper()
	return testkit.Server(t).Create(t, more...)
}

type fields = testkit.Fields
