package cay

import (
	"testing"
	"time"
)

func TestAnIDOfALaterMillisecondSortsLater(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	last := newIDAt(PrefixSandbox, at)
	for range 5000 {
		at = at.Add(time.Millisecond)
		next := newIDAt(PrefixSandbox, at)
		if next <= last {
			t.Fatalf("%s of %v does not come after %s", next, at, last)
		}
		last = next
	}
}
