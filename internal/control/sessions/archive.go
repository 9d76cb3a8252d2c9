package sessions

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/observe/tracing"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// archiveFolder is where a session's one blob is, and what a server that was killed may have left of one.
func archiveFolder(id cay.ID) string { return "sessions/" + string(id) + "/" }

func archiveKey(id cay.ID) string { return archiveFolder(id) + "volume.zst" }

// archive brings the volume of a session that nobody has used for long to blob storage. Until the row says archived the volume is the
// truth, and remains it when anything fails; from then on it is a copy that nobody needs.
func (s *Sessions) archive(id cay.ID) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, transferTimeout)
		defer cancel()
		if err := s.archives.take(ctx); err != nil {
			return err
		}
		defer s.archives.give()
		if ok, err := s.idle(ctx, id); err != nil || !ok {
			return err
		}
		row, err := s.mutate(ctx, id, func(row *cay.Session, users []*cay.Sandbox) error {
			if row.Status != cay.SessionActive || row.WorkerID == "" || len(users) > 0 || row.LastUsedAt.After(now().Add(-s.cfg.ArchiveAfter)) ||
				!s.nodes.Available(row.WorkerID) {
				return errUnchanged
			}
			row.ArchiveKey = archiveKey(id)
			return row.Transition(cay.SessionArchiving, "", now())
		})
		if err != nil || row.Status != cay.SessionArchiving {
			return err
		}
		worker := row.WorkerID
		ctx, span := tracing.Start(ctx, "session.archive", tracing.ProjectID(row.ProjectID), tracing.WorkerID(worker))
		defer span.End()
		digest, bytes, failure := s.exportVolume(ctx, row)
		span.Fail(string(cay.ReasonOf(failure)))
		row, err = s.settle(ctx, id, func(row *cay.Session, _ []*cay.Sandbox) error {
			if row.Status != cay.SessionArchiving {
				return errUnchanged // it is being deleted
			}
			if failure != nil {
				return row.Transition(cay.SessionActive, "", now())
			}
			row.WorkerID, row.ArchiveDigest, row.ArchiveBytes = "", digest, bytes
			return row.Transition(cay.SessionArchived, "", now())
		})
		if err = errors.Join(failure, err); err != nil {
			return err
		}
		if row.Status != cay.SessionArchived {
			return nil
		}
		s.log.Info("a session was archived", "session", id, "worker", worker, "bytes", bytes)
		if err := s.removeVolume(ctx, worker, row.Volume()); err != nil {
			s.log.Warn("the volume of an archived session was not removed; it is tried again", "session", id, "worker", worker, "error", err)
		}
		return nil
	}
}

// exportVolume streams the row's volume to its blob.
func (s *Sessions) exportVolume(ctx context.Context, row *cay.Session) (digest string, n int64, err error) {
	node, err := s.nodes.For(ctx, row.WorkerID)
	if err != nil {
		return "", 0, err
	}
	if err := s.blobs.DeleteBelow(ctx, archiveFolder(row.ID)); err != nil {
		return "", 0, s.storageFailed(ctx, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := node.ExportVolume(ctx, connect.NewRequest(&nodev1.ExportVolumeRequest{Volume: row.Volume()}))
	if err != nil {
		cancel()
		return "", 0, noderpc.Decode(err)
	}
	defer func() {
		cancel() // first: closing a stream that is alive would wait for its end
		_ = stream.Close()
	}()
	image := &exportReader{stream: stream, sum: sha256.New()}
	if _, err := s.blobs.Write(ctx, row.ArchiveKey, image); err != nil {
		if image.err != nil && !errors.Is(image.err, io.EOF) {
			return "", 0, image.err
		}
		return "", 0, s.storageFailed(ctx, err)
	}
	s.storageWorks()
	return hex.EncodeToString(image.sum.Sum(nil)), image.n, nil
}

// exportReader reads a volume's image. It ends well only when all of it came that the node sent.
type exportReader struct {
	stream *connect.ServerStreamForClient[nodev1.ExportVolumeResponse]
	sum    hash.Hash
	n      int64
	rest   []byte
	err    error // io.EOF: it was whole
}

func (r *exportReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if r.err == nil {
			r.err = r.receive()
		}
		if r.err != nil {
			return 0, r.err
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func (r *exportReader) receive() error {
	if !r.stream.Receive() {
		if err := noderpc.Decode(r.stream.Err()); err != nil {
			return err
		}
		return errors.New("the node ended the volume's image without its digest")
	}
	switch part := r.stream.Msg().Part.(type) {
	case *nodev1.ExportVolumeResponse_Data:
		r.rest = part.Data
		r.n += int64(len(part.Data))
		r.sum.Write(part.Data)
	case *nodev1.ExportVolumeResponse_Digest:
		if got := hex.EncodeToString(r.sum.Sum(nil)); got != part.Digest.Sha256 || r.n != part.Digest.Bytes {
			return fmt.Errorf("the volume's image arrived with %d bytes and digest %s; the node sent %d and %s", r.n, got, part.Digest.Bytes, part.Digest.Sha256)
		}
		return io.EOF
	}
	return nil
}

// idle reports whether no helper is in use, and ends those that only wait for their idle timeout.
func (s *Sessions) idle(ctx context.Context, id cay.ID) (bool, error) {
	users, err := s.store.SessionUsers(ctx, id)
	if err != nil {
		return false, err
	}
	if len(others(users, id)) > 0 {
		return false, nil
	}
	for _, sb := range users {
		sb, err := s.sandboxes.Get(ctx, sb.ProjectID, sb.ID)
		if err != nil {
			return false, err
		}
		if sb.Status == cay.Creating || time.Since(sb.LastActiveAt) < quiet {
			return false, nil
		}
	}
	return true, s.endSandboxes(ctx, users)
}
