package router

import (
	"context"
	"time"

	"github.com/cayhq/cay/internal/wire/guestv1"
)

// ReadArchive begins to read an archive. It has begun when this returns: what cannot be read at all is its error.
func (s *Session) ReadArchive(ctx context.Context, r *guestv1.ReadArchive) (*FileReader, error) {
	t, err := s.dialBulk(ctx, &guestv1.Bulk{Transfer: &guestv1.Bulk_ReadArchive{ReadArchive: r}})
	if err != nil {
		return nil, err
	}
	t.nc.SetReadDeadline(time.Now().Add(s.timing.BulkIdle))
	if err := t.begun(); err != nil {
		t.close()
		return nil, err
	}
	return &FileReader{t: t, left: -1}, nil
}

// begun reads the header of a transfer that describes nothing.
func (t *transfer) begun() error {
	h, err := t.answer()
	if err == nil && h.Done == nil {
		err = t.broken(violation("empty header"))
	}
	return err
}

// ArchiveWriter writes an archive into the sandbox. Nothing is visible before Commit; Close without it leaves everything as it was.
type ArchiveWriter = upload[*guestv1.ArchiveInfo]

// WriteArchive begins to write an archive.
func (s *Session) WriteArchive(ctx context.Context, w *guestv1.WriteArchive) (*ArchiveWriter, error) {
	return startUpload(ctx, s, &guestv1.Bulk{Transfer: &guestv1.Bulk_WriteArchive{WriteArchive: w}}, (*transfer).archiveHeader)
}

func (t *transfer) archiveHeader() (*guestv1.ArchiveInfo, error) {
	h, err := t.answer()
	if err != nil {
		return nil, err
	}
	i := h.Archive
	if i == nil || i.Files < 0 || i.Directories < 0 || i.Bytes < 0 || i.Skipped < 0 {
		return nil, t.broken(violation("header without the archive's counts"))
	}
	return i, nil
}
