package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// ArchiveFormat is how a directory travels as one stream.
type ArchiveFormat string

const (
	Tar     ArchiveFormat = "tar" // the fastest, where the network is
	TarGzip ArchiveFormat = "tar.gz"
	TarZstd ArchiveFormat = "tar.zst"
)

// ArchiveOptions tunes an archive.
type ArchiveOptions struct {
	Format ArchiveFormat // "": tar.gz for a download; told by the content for an upload
}

// ArchiveReport says what an upload unpacked.
type ArchiveReport struct {
	Files       int64 `json:"files"`
	Directories int64 `json:"directories"`
	Bytes       int64 `json:"bytes"`
	Skipped     int64 `json:"skipped"` // devices, pipes and sockets
}

// OpenArchive opens a directory, or a file, of the sandbox as an archive whose names are relative to it. The caller closes the
// reader. An archive that is cut short ends in io.ErrUnexpectedEOF.
func (f *Files) OpenArchive(ctx context.Context, path string, o ArchiveOptions) (io.ReadCloser, error) {
	r := f.archive(http.MethodGet, path, o)
	res, err := f.c.do(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("download archive of %s: %w", path, err)
	}
	return res.Body, nil
}

// DownloadArchive writes a directory, or a file, of the sandbox to w as an archive. After an error, what w has had is a part.
func (f *Files) DownloadArchive(ctx context.Context, path string, w io.Writer, o ArchiveOptions) (bytes int64, err error) {
	body, err := f.OpenArchive(ctx, path, o)
	if err != nil {
		return 0, err
	}
	defer body.Close()
	if bytes, err = io.Copy(w, body); err != nil {
		return bytes, fmt.Errorf("download archive of %s: %w", path, err)
	}
	return bytes, nil
}

// UploadArchive unpacks an archive below path, which is made. One with an entry that would leave path is refused as unprocessable,
// and nothing of it is written. It is repeated after a fault only where archive can be read at any position.
func (f *Files) UploadArchive(ctx context.Context, path string, archive io.Reader, o ArchiveOptions) (*ArchiveReport, error) {
	r := f.archive(http.MethodPut, path, o)
	if err := r.stream(archive, 0); err != nil {
		return nil, fmt.Errorf("upload archive to %s: %w", path, err)
	}
	return f.sendArchive(ctx, path, r)
}

func (f *Files) sendArchive(ctx context.Context, path string, r *call) (*ArchiveReport, error) {
	r.set("Content-Type", "application/octet-stream")
	report := new(ArchiveReport)
	if _, err := f.c.json(ctx, r, report); err != nil {
		return nil, fmt.Errorf("upload archive to %s: %w", path, err)
	}
	return report, nil
}

func (f *Files) archive(method, path string, o ArchiveOptions) *call {
	query := url.Values{}
	if o.Format != "" {
		query.Set("format", string(o.Format))
	}
	return f.callTo(f.at.archive, method, path, query)
}
