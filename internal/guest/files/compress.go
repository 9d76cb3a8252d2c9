package files

import (
	"bufio"
	"bytes"
	"errors"
	"io"

	"github.com/cayhq/cay"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// Formats of an archive.
const (
	formatTar  = "tar"
	formatGzip = "tar.gz"
	formatZstd = "tar.zst"
)

const (
	// window is how far back a zstd encoder of ours looks, in bytes: memory inside the sandbox.
	window = 1 << 20
	// maxWindow is the largest window that a zstd archive may ask for, in bytes; that of zstd's own -19.
	maxWindow = 8 << 20
)

// compressor wraps w in the format. Close ends the format and leaves w open.
func compressor(w io.Writer, format string) (io.WriteCloser, error) {
	switch format {
	case formatTar:
		return nopCloser{w}, nil
	case "", formatGzip:
		return gzip.NewWriterLevel(w, gzip.BestSpeed)
	case formatZstd:
		return zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(window))
	}
	return nil, errFormat(format)
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func errFormat(format string) error {
	return cay.Errorf(cay.Unprocessable, "there is no archive format %q: tar, tar.gz or tar.zst", format).On("format")
}

// magics are how files of other kinds begin, by what to call them.
var magics = []struct {
	begin, format string
}{
	{"\x1f\x8b", formatGzip}, {"\x28\xb5\x2f\xfd", formatZstd}, {"PK\x03\x04", "zip"}, {"PK\x05\x06", "zip"}, {"BZh", "tar.bz2"},
	{"\xfd7zXZ\x00", "tar.xz"}, {"7z\xbc\xaf\x27\x1c", "7z"}, {"Rar!", "rar"},
}

// decompressor reads what is in r, whose format is told by its first bytes where it is "".
func decompressor(r io.Reader, format string) (io.ReadCloser, error) {
	in := bufio.NewReaderSize(r, pipePiece)
	if format == "" {
		head, err := in.Peek(512)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		format = formatTar
		for _, m := range magics {
			if bytes.HasPrefix(head, []byte(m.begin)) {
				format = m.format
			}
		}
		if len(head) >= 4 && head[0]&0xf0 == 0x50 && string(head[1:4]) == "\x2a\x4d\x18" { // a frame of zstd's to be skipped
			format = formatZstd
		}
	}
	switch format {
	case formatTar:
		return io.NopCloser(in), nil
	case formatGzip:
		return gzip.NewReader(in)
	case formatZstd:
		d, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	}
	return nil, errFormat(format)
}
