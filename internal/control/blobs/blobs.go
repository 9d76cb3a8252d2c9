// Package blobs keeps what is too long for the store: output and artifacts of jobs, archives of sessions, in a folder or in S3. It does not
// know what they are: keys are its callers', and the rows that name them are the truth of what there is.
package blobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
	_ "gocloud.dev/blob/s3blob" // s3://
	"gocloud.dev/gcerrors"

	"github.com/cayhq/cay"
)

// Bucket is where blobs are. All methods are safe for concurrent use.
type Bucket struct{ bucket *blob.Bucket }

// Open opens the bucket at an address: file:///a/folder, s3://bucket?region=…, or "" for the folder dir. A folder is made as needed.
func Open(ctx context.Context, address, dir string) (*Bucket, error) {
	if address == "" {
		address = (&url.URL{Scheme: "file", Path: dir}).String()
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("open the blob storage: its address is no URL") // the error would show what is in it
	}
	var b *blob.Bucket
	switch u.Scheme {
	case "file":
		if !filepath.IsAbs(u.Path) {
			return nil, fmt.Errorf("open the blob storage: %q is not an absolute path", u.Path)
		}
		if err := os.MkdirAll(u.Path, 0o700); err != nil {
			return nil, fmt.Errorf("open the blob storage: %w", err)
		}
		// Without its own temporary directory a blob that was written half would be renamed across file systems.
		b, err = fileblob.OpenBucket(u.Path, &fileblob.Options{NoTempDir: true, Metadata: fileblob.MetadataDontWrite, DirFileMode: 0o700})
	case "s3":
		// Checksums that are not demanded are not asked for: some servers of S3's protocol answer a range with that of the whole.
		q := u.Query()
		for _, mode := range []string{"request_checksum_calculation", "response_checksum_validation"} {
			if !q.Has(mode) {
				q.Set(mode, "when_required")
			}
		}
		u.RawQuery = q.Encode()
		b, err = blob.OpenBucket(ctx, u.String())
	default:
		return nil, fmt.Errorf("open the blob storage: an address begins with file:/// or s3://, not with %q", u.Scheme)
	}
	if err != nil {
		return nil, fmt.Errorf("open the blob storage: %w", err)
	}
	return &Bucket{b}, nil
}

// Write keeps all that r has under a key, replacing what was there. On error, also of r, there is nothing new.
func (b *Bucket) Write(ctx context.Context, key string, r io.Reader) (n int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // before Close ends, this is what drops a half of it
	w, err := b.bucket.NewWriter(ctx, key, &blob.WriterOptions{ContentType: "application/octet-stream", DisableContentTypeDetection: true})
	if err != nil {
		return 0, fmt.Errorf("write blob %s: %w", key, err)
	}
	n, err = io.Copy(w, r)
	if err != nil {
		cancel()
		_ = w.Close()
		return n, fmt.Errorf("write blob %s: %w", key, err)
	}
	if err := w.Close(); err != nil {
		return n, fmt.Errorf("write blob %s: %w", key, err)
	}
	return n, nil
}

// Read opens what is under a key; cay.NotFound when there is nothing.
func (b *Bucket) Read(ctx context.Context, key string) (io.ReadCloser, error) {
	return b.ReadRange(ctx, key, 0, -1)
}

// ReadRange opens length bytes of what is under a key, from an offset on; -1: all that follow. Fewer when it ends before.
func (b *Bucket) ReadRange(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	r, err := b.bucket.NewRangeReader(ctx, key, offset, length, nil)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return nil, cay.Errorf(cay.NotFound, "it is not kept any more").Because(err)
	}
	if err != nil {
		return nil, fmt.Errorf("read blob %s: %w", key, err)
	}
	return r, nil
}

// Delete removes what is under a key. Nothing there is nil.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	if err := b.bucket.Delete(ctx, key); err != nil && gcerrors.Code(err) != gcerrors.NotFound {
		return fmt.Errorf("delete blob %s: %w", key, err)
	}
	return nil
}

// DeleteBelow removes everything whose key begins with prefix, which ends with a slash.
func (b *Bucket) DeleteBelow(ctx context.Context, prefix string) error {
	if !strings.HasSuffix(prefix, "/") {
		return fmt.Errorf("delete blobs below %q: it does not end with a slash", prefix)
	}
	list := b.bucket.List(&blob.ListOptions{Prefix: prefix})
	for {
		object, err := list.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list blobs below %s: %w", prefix, err)
		}
		if err := b.Delete(ctx, object.Key); err != nil {
			return err
		}
	}
}

// Close ends the connection to the storage.
func (b *Bucket) Close() error { return b.bucket.Close() }
