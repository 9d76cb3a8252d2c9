package store_test

import (
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/store"
)

func FuzzACursorIsReadAsWrittenOrRefused(f *testing.F) {
	f.Add(store.Cursor{At: time.UnixMicro(1772366400123456), ID: cay.NewID(cay.PrefixSandbox)}.String())
	f.Add("")
	f.Add("MTIz")
	f.Add("LTEgc2J4X3h4")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := store.ParseCursor(cay.PrefixSandbox, s)
		if err != nil {
			if cay.ReasonOf(err) != cay.InvalidRequest {
				t.Errorf("%q: %v", s, err)
			}
			return
		}
		again, err := store.ParseCursor(cay.PrefixSandbox, c.String())
		if err != nil || again != c {
			t.Errorf("%q is read as %+v, and written again as %q", s, c, c.String())
		}
	})
}
