package worker

import (
	"bufio"
	"context"
	"io"
	"path"
	"strings"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/node/volume"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

const (
	maxMounts   = 16        // volumes of one sandbox
	volumeChunk = 256 << 10 // of an export, in a message
)

// attachment is a volume that a sandbox uses, and how.
type attachment struct {
	use   *volume.Use
	mount *nodev1.VolumeMount
}

// cannotMount says why there are no volumes on this worker; "" when there are.
func (w *Worker) cannotMount() string {
	if w.cfg.Volumes == nil {
		return "this worker keeps no volumes"
	}
	if why := w.cfg.Volumes.Unusable(); why != "" {
		return why
	}
	if !w.cfg.Driver.Info().CanMount {
		return "its isolation cannot show volumes to sandboxes on this host"
	}
	return ""
}

// checkMounts refuses volumes that cannot be mounted, whatever is in them. Whether a path will do, the agent knows.
func (w *Worker) checkMounts(mounts []*nodev1.VolumeMount) error {
	if len(mounts) == 0 {
		return nil
	}
	if why := w.cannotMount(); why != "" {
		return cay.Errorf(cay.Unprocessable, "volumes cannot be mounted on this worker: %s", why).On("volumes")
	}
	if len(mounts) > maxMounts {
		return cay.Errorf(cay.Unprocessable, "a sandbox has at most %d volumes", maxMounts).On("volumes")
	}
	names, paths := map[string]bool{}, map[string]bool{}
	for _, m := range mounts {
		at := path.Clean(m.GetPath())
		if !strings.HasPrefix(at, "/") || at == "/" {
			return cay.Errorf(cay.Unprocessable, "volume %s is mounted at %q, which is no absolute path below /", m.GetVolume(), m.GetPath()).On("volumes")
		}
		if names[m.GetVolume()] || paths[at] {
			return cay.Errorf(cay.Unprocessable, "volume %s or the path %s is mounted twice", m.GetVolume(), at).On("volumes")
		}
		names[m.GetVolume()], paths[at] = true, true
	}
	return nil
}

// attachVolumes holds the volumes for b until detachVolumes. On error some may be held.
func (w *Worker) attachVolumes(ctx context.Context, b *box, mounts []*nodev1.VolumeMount) error {
	for _, m := range mounts {
		use, err := w.cfg.Volumes.Attach(ctx, m.Volume, string(b.id))
		if err != nil {
			return err
		}
		b.mu.Lock()
		b.volumes = append(b.volumes, attachment{use, m})
		b.mu.Unlock()
	}
	return nil
}

// detachVolumes gives up what b holds, unless something of it may still run: then a later start of the node does.
func (w *Worker) detachVolumes(b *box) {
	b.mu.Lock()
	held := b.volumes
	b.volumes = nil
	if b.unproven {
		held = nil
	}
	b.mu.Unlock()
	for _, a := range held {
		if err := a.use.Release(context.Background()); err != nil {
			w.log.Error("a volume stays mounted for now", "sandbox", b.id, "error", err)
		}
	}
}

// adoptVolumes holds for b what an earlier node mounted for it.
func (w *Worker) adoptVolumes(b *box, shown []driver.Volume) {
	for _, v := range shown {
		if w.cfg.Volumes == nil {
			return
		}
		use, err := w.cfg.Volumes.Adopt(v.Name, string(b.id))
		if err != nil {
			w.log.Error("a volume of a sandbox is not there", "sandbox", b.id, "volume", v.Name, "error", err)
			continue
		}
		b.volumes = append(b.volumes, attachment{use, &nodev1.VolumeMount{Volume: v.Name, ReadOnly: v.ReadOnly}})
	}
}

// settleVolumes ends what an earlier node mounted for nobody that is left.
func (w *Worker) settleVolumes() {
	if w.cfg.Volumes == nil {
		return
	}
	if err := w.cfg.Volumes.Settle(w.ctx()); err != nil {
		w.log.Error("volumes of an earlier start stay mounted for now", "error", err)
	}
}

// mounts is what the driver and the agent need to know.
func (b *box) mounts() (shown []driver.Volume, inside []*guestv1.Mount) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range b.volumes {
		shown = append(shown, driver.Volume{Name: a.mount.Volume, Source: a.use.Dir(), ReadOnly: a.mount.ReadOnly})
		inside = append(inside, &guestv1.Mount{Name: a.mount.Volume, Path: a.mount.Path, ReadOnly: a.mount.ReadOnly})
	}
	return shown, inside
}

func (s service) volumes() (*volume.Store, error) {
	if why := s.w.cannotMount(); why != "" {
		return nil, cay.Errorf(cay.NotImplemented, "there are no volumes on this worker: %s", why)
	}
	return s.w.cfg.Volumes, nil
}

func volumeMessage(i volume.Info) *nodev1.Volume {
	return &nodev1.Volume{Volume: i.Name, Bytes: i.Bytes, UsedBytes: i.Used, Sandboxes: i.Users}
}

func (s service) CreateVolume(ctx context.Context, r *connect.Request[nodev1.CreateVolumeRequest]) (*connect.Response[nodev1.Volume], error) {
	store, err := s.volumes()
	if err != nil {
		return nil, noderpc.Encode(err)
	}
	i, err := store.Create(ctx, r.Msg.Volume, r.Msg.Bytes)
	return answer(volumeMessage(i), err)
}

func (s service) ListVolumes(context.Context, *connect.Request[nodev1.ListVolumesRequest]) (*connect.Response[nodev1.ListVolumesResponse], error) {
	list := &nodev1.ListVolumesResponse{}
	store, err := s.volumes()
	if err != nil {
		return connect.NewResponse(list), nil // none: that is true
	}
	for _, i := range store.List() {
		list.Volumes = append(list.Volumes, volumeMessage(i))
	}
	return connect.NewResponse(list), nil
}

func (s service) DeleteVolume(ctx context.Context, r *connect.Request[nodev1.DeleteVolumeRequest]) (*connect.Response[nodev1.DeleteVolumeResponse], error) {
	store, err := s.volumes()
	if err == nil {
		err = store.Delete(ctx, r.Msg.Volume)
	}
	return answer(&nodev1.DeleteVolumeResponse{}, err)
}

func (s service) ExportVolume(ctx context.Context, r *connect.Request[nodev1.ExportVolumeRequest], stream *connect.ServerStream[nodev1.ExportVolumeResponse]) error {
	store, err := s.volumes()
	if err != nil {
		return noderpc.Encode(err)
	}
	out := bufio.NewWriterSize(sender{stream}, volumeChunk)
	digest, err := store.Export(ctx, r.Msg.Volume, out)
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		return noderpc.Encode(err)
	}
	return stream.Send(&nodev1.ExportVolumeResponse{Part: &nodev1.ExportVolumeResponse_Digest{
		Digest: &nodev1.VolumeDigest{Sha256: digest.SHA256, Bytes: digest.Bytes},
	}})
}

// sender sends what is written, in messages of at most volumeChunk.
type sender struct {
	stream *connect.ServerStream[nodev1.ExportVolumeResponse]
}

func (s sender) Write(p []byte) (n int, err error) {
	for n < len(p) {
		part := p[n:min(n+volumeChunk, len(p))]
		if err := s.stream.Send(&nodev1.ExportVolumeResponse{Part: &nodev1.ExportVolumeResponse_Data{Data: part}}); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

func (s service) ImportVolume(ctx context.Context, stream *connect.ClientStream[nodev1.ImportVolumeRequest]) (*connect.Response[nodev1.Volume], error) {
	store, err := s.volumes()
	if err != nil {
		return nil, noderpc.Encode(err)
	}
	if !stream.Receive() || stream.Msg().GetHeader() == nil {
		return nil, noderpc.Encode(cay.Errorf(cay.InvalidRequest, "the first message is the header").Because(stream.Err()))
	}
	h := stream.Msg().GetHeader()
	i, err := store.Import(ctx, h.Volume, h.Bytes, h.Sha256, &received{stream: stream})
	return answer(volumeMessage(i), err)
}

// received reads the data of an import, up to its commit.
type received struct {
	stream *connect.ClientStream[nodev1.ImportVolumeRequest]
	rest   []byte
	err    error
}

func (r *received) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		if !r.stream.Receive() {
			r.err = cay.Errorf(cay.InvalidRequest, "the transfer ended early; nothing was written").Because(r.stream.Err())
			continue
		}
		switch part := r.stream.Msg().Part.(type) {
		case *nodev1.ImportVolumeRequest_Data:
			r.rest = part.Data
		case *nodev1.ImportVolumeRequest_Commit:
			r.err = io.EOF
		default:
			r.err = cay.Errorf(cay.InvalidRequest, "a second header")
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
