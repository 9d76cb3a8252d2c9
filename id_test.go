package cay_test

import (
	"strings"
	"testing"

	"github.com/cayhq/cay"
)

func TestIDsAreUniqueSortByTimeAndParse(t *testing.T) {
	seen := map[cay.ID]bool{}
	for range 10000 {
		id := cay.NewID(cay.PrefixSandbox)
		if seen[id] {
			t.Fatalf("%s came twice", id)
		}
		seen[id] = true
		if got, ok := cay.ParseID(cay.PrefixSandbox, string(id)); !ok || got != id {
			t.Fatalf("%s does not parse", id)
		}
		if len(id.Body()) != 26 || cay.PrefixSandbox+id.Body() != id.String() {
			t.Fatalf("%s has the body %s", id, id.Body())
		}
	}
}

func FuzzAnIDParsesOnlyInItsForm(f *testing.F) {
	f.Add("sbx_" + strings.Repeat("0", 26))
	f.Add("sbx_" + strings.Repeat("A", 26))
	f.Add("prj_" + strings.Repeat("0", 26))
	f.Add("sbx_../" + strings.Repeat("0", 23))
	f.Fuzz(func(t *testing.T, s string) {
		id, ok := cay.ParseID(cay.PrefixSandbox, s)
		if !ok {
			if id != "" {
				t.Errorf("%q was refused and still gave %q", s, id)
			}
			return
		}
		if len(s) != 30 || !strings.HasPrefix(s, "sbx_") || strings.Trim(s[4:], "0123456789abcdefghijklmnopqrstuvwxyz") != "" {
			t.Errorf("%q was taken for an ID", s)
		}
	})
}
