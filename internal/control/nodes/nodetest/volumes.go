package nodetest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// volume is its own image: some bytes.
type volume struct {
	bytes     int64
	image     []byte
	mounts    map[string]bool // by sandbox
	exporting bool
}

// exportChunk is small, so that an image has several messages.
const exportChunk = 1000

// mount takes note of what a sandbox mounts. n.mu is held.
func (n *Node) mount(r *nodev1.CreateRequest) error {
	for _, m := range r.Spec.GetVolumes() {
		v := n.volumes[m.Volume]
		if v == nil {
			return cay.Errorf(cay.Unprocessable, "volume %s is not on this worker", m.Volume)
		}
		if v.exporting {
			return cay.Errorf(cay.Conflict, "volume %s is being exported", m.Volume)
		}
		v.mounts[r.SandboxId] = true
	}
	return nil
}

// unmount forgets what a sandbox mounted. n.mu is held.
func (n *Node) unmount(sandbox string) {
	for _, v := range n.volumes {
		delete(v.mounts, sandbox)
	}
}

// Image is what a volume holds, and whether it is there.
func (n *Node) Image(name string) (image []byte, there bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if v := n.volumes[name]; v != nil {
		return slices.Clone(v.image), true
	}
	return nil, false
}

// PutVolume makes a volume, or writes into the one that is there.
func (n *Node) PutVolume(name string, image []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.volumes[name] == nil {
		n.volumes[name] = &volume{mounts: map[string]bool{}}
	}
	n.volumes[name].image = slices.Clone(image)
}

// LoseVolume forgets a volume without a word.
func (n *Node) LoseVolume(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.volumes, name)
}

func (n *Node) onVolume(ctx context.Context, call, name string) error {
	if n.OnVolume == nil {
		return nil
	}
	return n.OnVolume(ctx, call, name)
}

// CreateVolume implements the node service.
func (n *Node) CreateVolume(ctx context.Context, r *connect.Request[nodev1.CreateVolumeRequest]) (*connect.Response[nodev1.Volume], error) {
	if err := n.onVolume(ctx, "create", r.Msg.Volume); err != nil {
		return nil, noderpc.Encode(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.volumes[r.Msg.Volume] == nil {
		n.volumes[r.Msg.Volume] = &volume{bytes: r.Msg.Bytes, mounts: map[string]bool{}}
	}
	return connect.NewResponse(n.volumes[r.Msg.Volume].message(r.Msg.Volume)), nil
}

func (v *volume) message(name string) *nodev1.Volume {
	return &nodev1.Volume{Volume: name, Bytes: v.bytes, Sandboxes: slices.Sorted(maps.Keys(v.mounts))}
}

// ListVolumes implements the node service.
func (n *Node) ListVolumes(context.Context, *connect.Request[nodev1.ListVolumesRequest]) (*connect.Response[nodev1.ListVolumesResponse], error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	answer := &nodev1.ListVolumesResponse{}
	for name, v := range n.volumes {
		answer.Volumes = append(answer.Volumes, v.message(name))
	}
	return connect.NewResponse(answer), nil
}

// DeleteVolume implements the node service.
func (n *Node) DeleteVolume(ctx context.Context, r *connect.Request[nodev1.DeleteVolumeRequest]) (*connect.Response[nodev1.DeleteVolumeResponse], error) {
	if err := n.onVolume(ctx, "delete", r.Msg.Volume); err != nil {
		return nil, noderpc.Encode(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if v := n.volumes[r.Msg.Volume]; v != nil && len(v.mounts) > 0 {
		return nil, noderpc.Encode(cay.Errorf(cay.Conflict, "volume %s is mounted", r.Msg.Volume))
	}
	delete(n.volumes, r.Msg.Volume)
	return connect.NewResponse(&nodev1.DeleteVolumeResponse{}), nil
}

// ExportVolume implements the node service.
func (n *Node) ExportVolume(ctx context.Context, r *connect.Request[nodev1.ExportVolumeRequest], stream *connect.ServerStream[nodev1.ExportVolumeResponse]) error {
	n.mu.Lock()
	v := n.volumes[r.Msg.Volume]
	if v == nil || len(v.mounts) > 0 {
		n.mu.Unlock()
		return noderpc.Encode(cay.Errorf(cay.Conflict, "volume %s cannot be exported", r.Msg.Volume))
	}
	v.exporting = true
	image := slices.Clone(v.image)
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		v.exporting = false
		n.mu.Unlock()
	}()
	for chunk := range slices.Chunk(image, exportChunk) {
		if err := stream.Send(&nodev1.ExportVolumeResponse{Part: &nodev1.ExportVolumeResponse_Data{Data: chunk}}); err != nil {
			return err
		}
	}
	if err := n.onVolume(ctx, "export", r.Msg.Volume); err != nil { // in the middle: all but the digest was sent
		return noderpc.Encode(err)
	}
	return stream.Send(&nodev1.ExportVolumeResponse{Part: &nodev1.ExportVolumeResponse_Digest{
		Digest: &nodev1.VolumeDigest{Sha256: digest(image), Bytes: int64(len(image))},
	}})
}

func digest(image []byte) string {
	sum := sha256.Sum256(image)
	return hex.EncodeToString(sum[:])
}

// ImportVolume implements the node service.
func (n *Node) ImportVolume(ctx context.Context, stream *connect.ClientStream[nodev1.ImportVolumeRequest]) (*connect.Response[nodev1.Volume], error) {
	var header *nodev1.ImportVolumeHeader
	var image []byte
	committed := false
	for stream.Receive() {
		switch part := stream.Msg().Part.(type) {
		case *nodev1.ImportVolumeRequest_Header:
			header = part.Header
		case *nodev1.ImportVolumeRequest_Data:
			image = append(image, part.Data...)
		case *nodev1.ImportVolumeRequest_Commit:
			committed = part.Commit
		}
	}
	if err := stream.Err(); err != nil || header == nil || !committed {
		return nil, noderpc.Encode(cay.Errorf(cay.InvalidRequest, "the import was not finished"))
	}
	if err := n.onVolume(ctx, "import", header.Volume); err != nil {
		return nil, noderpc.Encode(err)
	}
	if digest(image) != header.Sha256 {
		return nil, noderpc.Encode(cay.Errorf(cay.Unprocessable, "the image of volume %s has another digest", header.Volume))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.volumes[header.Volume] = &volume{bytes: header.Bytes, image: image, mounts: map[string]bool{}}
	return connect.NewResponse(n.volumes[header.Volume].message(header.Volume)), nil
}
