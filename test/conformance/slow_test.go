//go:build soak

package conformance

import (
	"fmt"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

// Waits out the minute that the contract gives a reader: part of `make soak`.
func TestAReaderThatStopsIsLeftBehindAndTheProgramRunsOn(t *testing.T) {
	t.Parallel()
	sb := box(t)
	stream, _ := sb.Open(t.Context(), `yes | head -c 300000000; touch /tmp/ran-on; sleep 300`)
	testkit.Eventually(t, 3*time.Minute, "the program runs on", func() error {
		out, err := sb.Client.Exec(t.Context(), sb.ID, "test -e /tmp/ran-on")
		if err == nil && !out.OK {
			err = fmt.Errorf("not yet")
		}
		return err
	})
	rest, err := stream.ReadAll()
	if err != nil || rest.Error == nil || rest.Error.Reason != "slow_consumer" {
		t.Errorf("the stream ended with %v %+v %+v", err, rest.Error, rest.Exit)
	}
}
