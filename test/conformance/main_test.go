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
