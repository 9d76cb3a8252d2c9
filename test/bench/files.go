package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"time"

	"github.com/cayhq/cay/internal/testkit"
	"github.com/cayhq/cay/test/bench/harness"
)

const (
	upload   = "upload"
	download = "download"
)

// files measures one file up and down again.
func (b *bench) files(ctx context.Context, size int64, budget time.Duration) harness.Group {
	content := make([]byte, size)
	rand.Read(content)
	path := "/v1/sandboxes/" + b.box + testkit.FilePath("/workspace/bench.bin")
	rate := func(transfer func() error) (float64, error) {
		begin := time.Now()
		err := transfer()
		return float64(size) / 1e6 / time.Since(begin).Seconds(), err
	}
	contenders := []harness.Contender{
		{Name: upload, Sample: func(ctx context.Context) (float64, error) {
			return rate(func() error {
				resp, err := b.cold.Do(ctx, "PUT", path, content)
				if err == nil && resp.Status/100 != 2 {
					err = fmt.Errorf("upload: %v", resp)
				}
				return err
			})
		}},
		{Name: download, Sample: func(ctx context.Context) (float64, error) {
			return rate(func() error {
				req, err := b.cold.Request(ctx, "GET", path, nil)
				if err != nil {
					return err
				}
				resp, err := b.cold.HTTP.Do(req)
				if err != nil {
					return err
				}
				defer resp.Body.Close()
				n, err := io.Copy(io.Discard, resp.Body)
				if err == nil && (resp.StatusCode != 200 || n != size) {
					err = fmt.Errorf("download: status %d, %d bytes of %d", resp.StatusCode, n, size)
				}
				return err
			})
		}},
	}
	group := harness.Group{Name: "files", Title: fmt.Sprintf("A file of %d MiB through the API", size>>20), Unit: "MB/s"}
	group.Series = harness.Interleave(ctx, b.plan(8, budget), contenders)
	sum := sha256.Sum256(content)
	if result, err := b.cold.Exec(ctx, b.box, "sha256sum </workspace/bench.bin"); err != nil || len(result.Stdout) < 64 || result.Stdout[:64] != hex.EncodeToString(sum[:]) {
		group.Notes = append(group.Notes, fmt.Sprintf("THE FILE INSIDE DIFFERS: %q %v", result.Stdout, err))
	}
	if _, err := b.cold.Do(ctx, "DELETE", path, nil); err != nil {
		group.Notes = append(group.Notes, "remove the file: "+err.Error())
	}
	return group
}
