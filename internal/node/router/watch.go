package router

import (
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

// maxEventPath bounds a path of an event as messages carry it: every byte of a path may take three.
const maxEventPath = 3*4096 + 1

// FileWatch tells what changes in a sandbox's files. It must be closed.
type FileWatch struct {
	t *transfer
}

// WatchFiles begins to watch; when it returns, changes are seen. The caller's pace is the agent's: what it does not take is bounded
// there, and told as an overflow.
func (s *Session) WatchFiles(ctx context.Context, r *guestv1.Watch) (*FileWatch, error) {
	if len(s.watches) == cap(s.watches) {
		return nil, cay.Errorf(cay.Conflict, "the sandbox has %d watches already: end one", maxWatches)
	}
	t, err := s.dialBulk(ctx, &guestv1.Bulk{Transfer: &guestv1.Bulk_Watch{Watch: r}})
	if err != nil {
		return nil, err
	}
	t.nc.SetReadDeadline(time.Now().Add(s.timing.BulkIdle))
	if err := t.begun(); err != nil {
		t.close()
		return nil, err
	}
	t.nc.SetReadDeadline(time.Time{})
	return &FileWatch{t: t}, nil
}

// Next waits for an event; io.EOF when what was watched is gone.
func (w *FileWatch) Next() (*guestv1.WatchEvent, error) {
	data, err := w.t.next()
	if err != nil {
		return nil, err
	}
	var e guestv1.WatchEvent
	if len(data) > 3*maxEventPath || proto.Unmarshal(data, &e) != nil || !sound(&e) {
		return nil, w.t.broken(violation("an event of a watch that makes no sense"))
	}
	return &e, nil
}

func sound(e *guestv1.WatchEvent) bool {
	absolute := func(p string) bool {
		file, ok := cay.ParseWirePath(p)
		return ok && len(p) <= maxEventPath && strings.HasPrefix(file, "/")
	}
	switch e.Type {
	case "create", "write", "remove", "chmod":
		return absolute(e.Path) && e.To == ""
	case "rename":
		return absolute(e.Path) && absolute(e.To)
	case "overflow":
		return e.Path == "" && e.To == ""
	}
	return false
}

// Close ends the watch.
func (w *FileWatch) Close() { w.t.close() }
