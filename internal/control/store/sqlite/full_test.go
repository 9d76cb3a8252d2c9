package sqlite

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
)

func TestAFullDiskIsSaidAndPassesWhenThereIsRoomAgain(t *testing.T) {
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "cay.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	limit := func(pages int) {
		if _, err := s.write.Exec(fmt.Sprintf("PRAGMA max_page_count = %d", pages)); err != nil {
			t.Fatal(err)
		}
	}
	limit(1) // SQLite takes what the file has already as the least
	for i := 0; err == nil && i < 100; i++ {
		err = s.InsertProject(t.Context(), cay.Project{ID: cay.NewID(cay.PrefixProject), Name: strings.Repeat(fmt.Sprint(i), 5000), CreatedAt: time.Now()})
	}
	if cay.ReasonOf(err) != cay.DiskFull {
		t.Fatalf("a write to a full disk: %v", err)
	}
	limit(1 << 20)
	if err := s.InsertProject(t.Context(), cay.Project{ID: cay.NewID(cay.PrefixProject), Name: "later", CreatedAt: time.Now()}); err != nil {
		t.Errorf("with room again: %v", err)
	}
}
