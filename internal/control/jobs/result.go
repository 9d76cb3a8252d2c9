package jobs

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/jobs/kept"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// blobsOf is what the keys of a job's blobs begin with.
func blobsOf(id cay.ID) string { return "jobs/" + string(id) + "/" }

// result is what a row keeps of what a program left behind. Paths are as cay.WirePath writes them.
type result struct {
	Output           kept.Index       `json:"output"`
	FilesChanged     []cay.FileChange `json:"files_changed,omitempty"`
	FilesTruncated   bool             `json:"files_truncated,omitempty"`
	Outputs          []cay.JobOutput  `json:"outputs,omitempty"`
	OutputsTruncated bool             `json:"outputs_truncated,omitempty"`
}

// maxResult bounds a result as it is unpacked, in bytes: a thousand paths and the index of the longest output are far below.
const maxResult = 16 << 20

var (
	packer, _   = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true)) // no option of these fails
	unpacker, _ = zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(maxResult))
)

func (r *result) encode() ([]byte, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode a job's result: %w", err)
	}
	return packer.EncodeAll(b, nil), nil
}

// decodeResult reads what encode wrote; nothing of no bytes.
func decodeResult(packed []byte) (*result, error) {
	r := &result{}
	if len(packed) == 0 {
		return r, nil
	}
	b, err := unpacker.DecodeAll(packed, nil)
	if err == nil {
		err = json.Unmarshal(b, r)
	}
	if err != nil {
		return nil, fmt.Errorf("a job's result is damaged: %w", err)
	}
	for i, f := range r.FilesChanged {
		if path, ok := cay.ParseWirePath(f.Path); ok {
			r.FilesChanged[i].Path = path
		}
	}
	for i, o := range r.Outputs {
		if path, ok := cay.ParseWirePath(o.Path); ok {
			r.Outputs[i].Path = path
		}
	}
	return r, nil
}

// outputBlob opens ranges of the blob of a row's output.
func (j *Jobs) outputBlob(row *cay.Job) kept.Blob {
	return func(ctx context.Context, offset, length int64) (io.ReadCloser, error) {
		return j.blobs.ReadRange(ctx, row.ResultKey, offset, length)
	}
}

const (
	maxScans = 4 // readings of the whole output of running programs at once
	scanPage = 4 << 20
)

// Result answers what the job left behind or, while it runs, has written so far; of each stream at most most bytes, head and tail.
func (j *Jobs) Result(ctx context.Context, row *cay.Job, most int) (cay.JobResult, error) {
	if row.Status == cay.JobRunning {
		return j.resultSoFar(ctx, row, most)
	}
	if row.Status.Finished() && row.Result == nil { // a list's row
		var err error
		if row, err = j.store.Job(ctx, row.ID); err != nil {
			return cay.JobResult{}, err
		}
	}
	r, err := decodeResult(row.Result)
	if err != nil {
		return cay.JobResult{}, err
	}
	out, err := r.Output.Ends(ctx, j.outputBlob(row), most)
	if err != nil {
		return cay.JobResult{}, err
	}
	out.FilesChanged, out.FilesTruncated = r.FilesChanged, r.FilesTruncated
	out.Outputs, out.OutputsTruncated = r.Outputs, r.OutputsTruncated
	return out, nil
}

func (j *Jobs) resultSoFar(ctx context.Context, row *cay.Job, most int) (cay.JobResult, error) {
	select {
	case j.scans <- struct{}{}:
	case <-ctx.Done():
		return cay.JobResult{}, ctx.Err()
	}
	defer func() { <-j.scans }()
	sb, err := j.sandboxes.Get(ctx, row.ProjectID, row.SandboxID)
	if err != nil {
		return cay.JobResult{}, err
	}
	ends := kept.NewEnds(most)
	_, err = j.readOutput(ctx, sb, row.ProcessID, func(m *nodev1.ReadOutputResponse_Run) error { return ends.Add(kept.RunOf(m)) })
	return ends.Result(), err
}
