package storetest

import (
	"slices"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/store"
)

func eventsSince(t *testing.T, s store.Store) {
	since := func(after int64, limit int) ([]cay.ID, int64) {
		t.Helper()
		ids, newest, err := s.EventsSince(t.Context(), after, limit)
		must(t, err)
		return ids, newest
	}
	if ids, newest := since(0, 10); len(ids) != 0 || newest != 0 {
		t.Errorf("an empty store names %v up to %d", ids, newest)
	}
	for _, id := range []cay.ID{"sbx_1", "sbx_2", "sbx_2", "sbx_3"} {
		must(t, s.AddEvent(t.Context(), cay.Event{SandboxID: id, ProjectID: project, Type: cay.EventOOM, At: epoch}))
	}
	all, newest := since(0, 10)
	slices.Sort(all)
	if !slices.Equal(all, []cay.ID{"sbx_1", "sbx_2", "sbx_3"}) {
		t.Errorf("four events of three sandboxes name %v", all)
	}
	if last, again := since(newest-1, 10); !slices.Equal(last, []cay.ID{"sbx_3"}) || again != newest {
		t.Errorf("the last event names %v up to %d, want up to %d", last, again, newest)
	}
	if none, again := since(newest, 10); len(none) != 0 || again != newest {
		t.Errorf("after the last event there are %v up to %d", none, again)
	}
	if two, _ := since(0, 2); len(two) != 2 {
		t.Errorf("a limit of two names %v", two)
	}
}
