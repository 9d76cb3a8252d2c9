package client

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"unicode/utf8"
)

// UploadDirectory copies a local folder to the path remote of the sandbox, which is made, as one archive that is packed as it goes:
// nothing is written to this machine's disk. What remote holds already is merged with, and until all has arrived it stays as it is.
// Permission bits and times are kept. Symbolic links stay links, with their targets as they are; devices, sockets and pipes are
// skipped, which the report says.
func (f *Files) UploadDirectory(ctx context.Context, local, remote string, o CopyOptions) (*CopyReport, error) {
	local, err := filepath.EvalSymlinks(local) // WalkDir does not follow the one it starts from
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(local)
	if err != nil {
		return nil, err
	}
	if f.at.actions != nil { // else the archive makes it, with the server's mode
		if err := f.Mkdir(ctx, remote, info.Mode().Perm()|0o700, true); err != nil && ReasonOf(err) != ReasonAlreadyExists {
			return nil, err
		}
	}
	p := &packing{local: local, progress: o.Progress}
	r := f.archive(http.MethodPut, remote, ArchiveOptions{Format: Tar})
	r.size = -1
	r.open = func() (io.Reader, error) { return p.begin(ctx), nil }
	_, err = f.sendArchive(ctx, remote, r)
	p.end()
	return &p.c.report, err
}

// packing is a folder on its way into an archive, from the beginning with each attempt.
type packing struct {
	local    string
	progress func(int64)
	told     int64 // bytes that progress was told of, by any attempt

	c      *copier        // of the attempt; written by its goroutine, read once that has ended
	reader *io.PipeReader // of the attempt; nil before the first
	done   chan struct{}  // closed when the attempt's goroutine has ended
}

// begin starts to pack, after the attempt before has stopped.
func (p *packing) begin(ctx context.Context) io.Reader {
	p.end()
	reader, writer := io.Pipe()
	p.c = &copier{}
	p.c.progress = func(n int64) {
		if ahead := p.c.report.Bytes - p.told; p.progress != nil && ahead > 0 {
			p.told += ahead
			p.progress(min(ahead, n))
		}
	}
	p.reader, p.done = reader, make(chan struct{})
	go func(done chan struct{}) {
		defer close(done)
		if err := p.pack(ctx, writer); err != nil {
			writer.CloseWithError(&localError{err})
			return
		}
		writer.Close()
	}(p.done)
	return reader
}

// end stops the attempt that runs and waits for it.
func (p *packing) end() {
	if p.reader == nil {
		p.c = &copier{}
		return
	}
	p.reader.CloseWithError(errPackingLeft)
	<-p.done
}

var errPackingLeft = errors.New("the upload has ended")

func (p *packing) pack(ctx context.Context, w io.Writer) error {
	buffered := bufio.NewWriterSize(w, copyBuffer)
	out := &packer{tar: tar.NewWriter(buffered), c: p.c, buf: make([]byte, copyBuffer)}
	err := filepath.WalkDir(p.local, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case path == p.local:
			return nil
		}
		rel, err := filepath.Rel(p.local, path)
		if err != nil {
			return err
		}
		return out.entry(path, filepath.ToSlash(rel), d)
	})
	if err != nil {
		return err
	}
	if err := out.tar.Close(); err != nil {
		return err
	}
	return buffered.Flush()
}

// packer writes local files to an archive.
type packer struct {
	tar *tar.Writer
	c   *copier
	buf []byte
}

const neitherKind = "it is neither a file, a directory nor a symbolic link"

func (p *packer) entry(path, name string, d fs.DirEntry) error {
	switch {
	case d.IsDir():
		info, err := d.Info()
		if err != nil {
			return err
		}
		p.c.report.Directories++
		return p.header(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: int64(info.Mode().Perm() | 0o700)}, info)
	case d.Type().IsRegular():
		return p.file(path, name)
	case d.Type()&fs.ModeSymlink != 0:
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		p.c.report.Symlinks++
		return p.header(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}, info)
	}
	p.c.skip(path, neitherKind)
	return nil
}

// file archives a file as long as it was when it was opened.
func (p *packer) file(path, name string) error {
	file, err := os.OpenFile(path, os.O_RDONLY|openNonblock, 0) // a pipe put in the file's place must not hold us
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		p.c.skip(path, neitherKind)
		return nil
	}
	if err := p.header(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: info.Size(), Mode: int64(info.Mode().Perm())}, info); err != nil {
		return err
	}
	content := countingReader{io.LimitReader(file, info.Size()), p.c}
	n, err := io.CopyBuffer(struct{ io.Writer }{p.tar}, content, p.buf)
	if err == nil && n < info.Size() {
		err = fmt.Errorf("%s became shorter while it was read; copy it again", path)
	}
	if err != nil {
		return err
	}
	p.c.report.Files++
	return nil
}

func (p *packer) header(h *tar.Header, info fs.FileInfo) error {
	h.ModTime = info.ModTime()
	if !utf8.ValidString(h.Name) || !utf8.ValidString(h.Linkname) {
		h.Format = tar.FormatGNU // keeps any bytes; PAX is UTF-8 by definition
	}
	return p.tar.WriteHeader(h)
}
