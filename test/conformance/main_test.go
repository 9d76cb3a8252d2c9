package conformance

import (
	"fmt"
	"os"
	"testing"

	"github.com/cayhq/cay/internal/testkit"
)

// scrapes is the address at which the shared server shows its metrics without a key.
var scrapes string

func TestMain(m *testing.M) {
	var err error
	if scrapes, err = testkit.FreePort(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	testkit.Main(m, "CAY_METRICS_LISTEN="+scrapes)
}

// box makes a sandbox on the shared server.
func box(t *testing.T, more ...testkit.Fields) *testkit.Sandbox {
	t.Helper()
	return testkit.Server(t).Create(t, more...)
}

type fields = testkit.Fields
