package sessions

import (
	"context"
	"errors"
	"fmt"
	"io"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/observe/tracing"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// volumeBytes is the bound on all that a session holds.
func volumeBytes(row *cay.Session) int64 { return int64(row.DiskGB * (1 << 30)) }

// Prepare answers what a sandbox with a session mounts, once it is on the sandbox's worker: a volume is made on the first use and brought
// back from the archive. One that a worker should have and has not is never made anew: the node refuses the mount. cay.Conflict with
// worker_id: the files are on that worker, and the sandbox has to go there.
func (s *Sessions) Prepare(ctx context.Context, sb *cay.Sandbox) ([]*nodev1.VolumeMount, error) {
	id := sb.Spec.SessionID
	for {
		row, err := s.store.Session(ctx, id)
		if cay.ReasonOf(err) == cay.NotFound {
			return nil, cay.Errorf(cay.Gone, "session %s is not there any more", id)
		}
		if err != nil {
			return nil, err
		}
		if err := row.Usable(); err != nil {
			return nil, err
		}
		switch {
		case row.WorkerID != "" && row.WorkerID != sb.WorkerID:
			return nil, cay.Errorf(cay.Conflict, "the files of session %s are on another worker", id).With("worker_id", string(row.WorkerID))
		case row.Status == cay.SessionActive && row.WorkerID != "":
			return []*nodev1.VolumeMount{{Volume: row.Volume(), Path: cay.SessionPath}}, nil
		case row.Status == cay.SessionActive:
			err = s.volumes.do(ctx, id, placing, s.place(id, sb.WorkerID))
		case row.Status == cay.SessionArchived || row.Status == cay.SessionRestoring:
			err = s.volumes.do(ctx, id, restoring, s.restore(id, sb.WorkerID))
		default:
			err = cay.Errorf(cay.NotReady, "session %s is %s", id, row.Status)
		}
		if err != nil {
			return nil, err
		}
	}
}

// place makes the session's empty volume on a worker, then says so in the row: until then nobody can have mounted it, so that a volume
// that is there already is as good as a fresh one.
func (s *Sessions) place(id, worker cay.ID) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, placeTimeout)
		defer cancel()
		row, err := s.store.Session(ctx, id)
		if err != nil {
			return err
		}
		if row.Status != cay.SessionActive || row.WorkerID != "" {
			return nil
		}
		node, err := s.nodes.For(ctx, worker)
		if err != nil {
			return err
		}
		if _, err := node.CreateVolume(ctx, connect.NewRequest(&nodev1.CreateVolumeRequest{Volume: row.Volume(), Bytes: volumeBytes(row)})); err != nil {
			return noderpc.Decode(err)
		}
		_, err = s.settle(ctx, id, func(row *cay.Session, _ []*cay.Sandbox) error {
			if row.Status != cay.SessionActive || row.WorkerID != "" {
				return errUnchanged
			}
			row.WorkerID = worker
			return nil
		})
		return err
	}
}

// restore brings the session's volume back from its archive to a worker. Until the row says active the archive is the truth, and
// remains it when anything fails.
func (s *Sessions) restore(id, worker cay.ID) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, transferTimeout)
		defer cancel()
		if err := s.restores.take(ctx); err != nil {
			return err
		}
		defer s.restores.give()
		row, err := s.mutate(ctx, id, func(row *cay.Session, _ []*cay.Sandbox) error {
			if row.Status != cay.SessionArchived {
				return errUnchanged
			}
			row.WorkerID = worker
			return row.Transition(cay.SessionRestoring, "", now())
		})
		if err != nil || row.Status != cay.SessionRestoring {
			return err
		}
		ctx, span := tracing.Start(ctx, "session.restore", tracing.ProjectID(row.ProjectID), tracing.WorkerID(worker))
		defer span.End()
		failure := s.importVolume(ctx, row)
		span.Fail(string(cay.ReasonOf(failure)))
		row, err = s.settle(ctx, id, func(row *cay.Session, _ []*cay.Sandbox) error {
			if row.Status != cay.SessionRestoring {
				return errUnchanged // it is being deleted
			}
			if failure == nil {
				used(row, now())
				return row.Transition(cay.SessionActive, "", now())
			}
			row.WorkerID = ""
			return row.Transition(cay.SessionArchived, "", now())
		})
		if err = errors.Join(failure, err); err != nil {
			s.log.Warn("a session was not restored; its archive stays", "session", id, "worker", worker, "error", err)
			return err
		}
		if row.Status != cay.SessionActive {
			return nil
		}
		s.log.Info("a session was restored", "session", id, "worker", worker, "bytes", row.ArchiveBytes)
		s.dropArchive(ctx, row)
		return nil
	}
}

// dropArchive removes the blob of a session whose files are on a worker again. One that stays behind is removed by the next archive, or
// with the session.
func (s *Sessions) dropArchive(ctx context.Context, row *cay.Session) {
	err := s.blobs.DeleteBelow(ctx, archiveFolder(row.ID))
	if err == nil {
		_, err = s.settle(ctx, row.ID, func(row *cay.Session, _ []*cay.Sandbox) error {
			if row.Status != cay.SessionActive {
				return errUnchanged
			}
			forgetArchive(row)
			return nil
		})
	}
	if err != nil {
		s.log.Warn("the archive of a restored session was not removed", "session", row.ID, "error", err)
	}
}

func forgetArchive(row *cay.Session) { row.ArchiveKey, row.ArchiveDigest, row.ArchiveBytes = "", "", 0 }

// errSpoiled is an archive that is not what was stored.
func errSpoiled(row *cay.Session, cause error) error {
	return cay.Errorf(cay.Unprocessable, "the archive of session %s is not what was stored, so that its files were not brought back; "+
		"nothing was changed, and the archive is kept as it is", row.ID).Because(cause)
}

// importVolume sends the archive to the row's worker, which makes the volume of it only if it has the digest of what was stored.
func (s *Sessions) importVolume(ctx context.Context, row *cay.Session) error {
	node, err := s.nodes.For(ctx, row.WorkerID)
	if err != nil {
		return err
	}
	archive, err := s.blobs.Read(ctx, row.ArchiveKey)
	if cay.ReasonOf(err) == cay.NotFound {
		return errSpoiled(row, err)
	}
	if err != nil {
		return unreadable(row, err)
	}
	defer archive.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream that was left
	stream := node.ImportVolume(ctx)
	if err := stream.Send(&nodev1.ImportVolumeRequest{Part: &nodev1.ImportVolumeRequest_Header{Header: &nodev1.ImportVolumeHeader{
		Volume: row.Volume(), Bytes: volumeBytes(row), Sha256: row.ArchiveDigest,
	}}}); err != nil && !errors.Is(err, io.EOF) {
		return noderpc.Decode(err)
	}
	// A file that has grown is refused here, without a node having to take it all.
	n, err := io.CopyBuffer(importWriter{stream}, io.LimitReader(archive, row.ArchiveBytes+1), make([]byte, chunk))
	var refused sendError
	switch {
	case errors.As(err, &refused) && errors.Is(err, io.EOF): // the node has answered already
	case errors.As(err, &refused):
		return noderpc.Decode(refused.error)
	case err != nil:
		return unreadable(row, err)
	case n != row.ArchiveBytes:
		return errSpoiled(row, fmt.Errorf("it has another length than %d bytes", row.ArchiveBytes))
	default:
		if err := stream.Send(&nodev1.ImportVolumeRequest{Part: &nodev1.ImportVolumeRequest_Commit{Commit: true}}); err != nil && !errors.Is(err, io.EOF) {
			return noderpc.Decode(err)
		}
	}
	_, err = stream.CloseAndReceive()
	if err = noderpc.Decode(err); cay.ReasonOf(err) == cay.Unprocessable {
		return errSpoiled(row, err)
	}
	return err
}

func unreadable(row *cay.Session, err error) error {
	return cay.Errorf(cay.Unavailable, "the archive of session %s cannot be read now; try again later", row.ID).Because(err)
}

// chunk is how much of an archive is in one message.
const chunk = 256 << 10

// importWriter sends what is written to a node.
type importWriter struct {
	stream *connect.ClientStreamForClient[nodev1.ImportVolumeRequest, nodev1.Volume]
}

type sendError struct{ error }

func (e sendError) Unwrap() error { return e.error }

func (w importWriter) Write(p []byte) (int, error) {
	if err := w.stream.Send(&nodev1.ImportVolumeRequest{Part: &nodev1.ImportVolumeRequest_Data{Data: p}}); err != nil {
		return 0, sendError{err}
	}
	return len(p), nil
}

// removeVolume removes a volume from a worker. One that is not there is gone.
func (s *Sessions) removeVolume(ctx context.Context, worker cay.ID, volume string) error {
	ctx, cancel := context.WithTimeout(ctx, placeTimeout)
	defer cancel()
	node, err := s.nodes.For(ctx, worker)
	if err != nil {
		return err
	}
	if _, err := node.DeleteVolume(ctx, connect.NewRequest(&nodev1.DeleteVolumeRequest{Volume: volume})); err != nil {
		return noderpc.Decode(err)
	}
	return nil
}
