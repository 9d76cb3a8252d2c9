package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/cayhq/cay/internal/testkit"
	"github.com/cayhq/cay/test/bench/harness"
)

const (
	byArchive = "one archive up"
	asArchive = "one archive down"
	oneByOne  = "one by one up"
)

const (
	smallFiles    = 10_000
	smallFileSize = 500 // bytes
	singles       = 500 // of them are put one by one in a sample
)

// archives measures a tree of small files as one archive beside its files one by one, in files a second.
func (b *bench) archives(ctx context.Context, budget time.Duration) harness.Group {
	content := bytes.Repeat([]byte("x"), smallFileSize)
	tree, err := smallTree(content)
	group := harness.Group{Name: "archive", Title: fmt.Sprintf("%d files of %d bytes through the API", smallFiles, smallFileSize), Unit: "files/s"}
	if err != nil {
		group.Notes = append(group.Notes, "make the archive: "+err.Error())
		return group
	}
	const dir = "/workspace/bench-archive"
	archive := "/v1/sandboxes/" + b.box + "/archive?path=" + dir
	remove := func(ctx context.Context) error {
		_, err := b.cold.Do(ctx, "DELETE", "/v1/sandboxes/"+b.box+testkit.FilePath(dir, "recursive", "true"), nil)
		return err
	}
	rate := func(files int, do func() error) (float64, error) {
		begin := time.Now()
		err := do()
		return float64(files) / time.Since(begin).Seconds(), err
	}
	put := func(ctx context.Context) error {
		resp, err := b.cold.Do(ctx, "PUT", archive, tree)
		if err == nil && resp.Status != 200 {
			err = fmt.Errorf("upload the archive: %v", resp)
		}
		return err
	}
	group.Series = harness.Interleave(ctx, b.plan(4, budget), []harness.Contender{
		{Name: byArchive, Sample: func(ctx context.Context) (float64, error) {
			return rate(smallFiles, func() error { return put(ctx) })
		}},
		{Name: asArchive, After: remove, Sample: func(ctx context.Context) (float64, error) {
			return rate(smallFiles, func() error {
				req, err := b.cold.Request(ctx, "GET", archive, nil)
				if err != nil {
					return err
				}
				resp, err := b.cold.HTTP.Do(req)
				if err != nil {
					return err
				}
				defer resp.Body.Close()
				if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != 200 {
					return fmt.Errorf("download the archive: status %d, %w", resp.StatusCode, err)
				}
				return nil
			})
		}},
		{Name: oneByOne, After: remove, Sample: func(ctx context.Context) (float64, error) {
			return rate(singles, func() error {
				for i := range singles {
					path := "/v1/sandboxes/" + b.box + testkit.FilePath(fmt.Sprintf("%s/d%d/f%d", dir, i/100, i))
					resp, err := b.cold.Do(ctx, "PUT", path, content)
					if err == nil && resp.Status/100 != 2 {
						err = fmt.Errorf("upload: %v", resp)
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
		}},
	})
	return group
}

func smallTree(content []byte) ([]byte, error) {
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	w := tar.NewWriter(zip)
	for i := range smallFiles {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("d%d/f%d", i/100, i), Size: int64(len(content)), Mode: 0o644}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	err := zip.Close()
	return out.Bytes(), err
}
