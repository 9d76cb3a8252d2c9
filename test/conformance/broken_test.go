package conformance

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

func TestO11AStreamCutInTheMiddleIsNeverASuccessAndCanBeAttachedAgain(t *testing.T) {
	for _, role := range []testkit.Role{testkit.RoleNode, testkit.RoleServer} {
		t.Run(string(role)+" killed", func(t *testing.T) {
			inst := testkit.StartServer(t, testkit.Options{})
			sb := inst.Create(t)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			stream, tr := sb.Open(ctx, `for i in $(seq 60); do echo $i; sleep .2; done`)
			for len(tr.Stdout) < 6 { // some lines have come
				ev, err := stream.Next()
				if err != nil {
					t.Fatal(err)
				}
				if err := tr.Add(ev); err != nil {
					t.Fatal(err)
				}
			}
			killed, err := inst.PID(role)
			if err != nil {
				t.Fatal(err)
			}
			if err := inst.Kill9(role); err != nil {
				t.Fatal(err)
			}
			for {
				ev, err := stream.Next()
				if err != nil {
					break // broken, as it should be
				}
				if err := tr.Add(ev); err != nil {
					t.Fatal(err)
				}
			}
			if tr.Exit != nil {
				t.Fatalf("the cut stream claims an exit: %+v", tr.Exit)
			}
			if err := inst.Restarted(role, killed, time.Minute); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, time.Minute, "readyz", func() error { return inst.Ready(ctx) })
			offset, err := strconv.ParseInt(tr.LastID, 10, 64)
			if err != nil {
				t.Fatalf("last event id %q: %v", tr.LastID, err)
			}
			again := sb.AttachStream(ctx, tr.ProcessID, offset)
			rest, err := again.ReadAll()
			if err != nil || rest.Exit == nil || rest.Exit.ExitCode != 0 {
				t.Fatalf("attached again: %v, %+v %+v", err, rest.Exit, rest.Error)
			}
			if got, want := string(tr.Stdout)+string(rest.Stdout), sequence(60); got != want {
				t.Errorf("before and after the cut: %q, want %q", strings.ReplaceAll(got, "\n", " "), strings.ReplaceAll(want, "\n", " "))
			}
		})
	}
}
