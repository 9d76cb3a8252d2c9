package api

import (
	"net/http"
	"path"

	"connectrpc.com/connect"

	"github.com/cayhq/cay/internal/wire/nodev1"
)

type readArchiveInput struct {
	FilePath
	Format string `query:"format" default:"tar.gz" enum:"tar,tar.gz,tar.zst"`
}

// archiveTypes are the media types of archives, by format.
var archiveTypes = map[string]string{"tar": "application/x-tar", "tar.gz": "application/gzip", "tar.zst": "application/zstd"}

// readArchive downloads what is below a path as one archive. One that breaks on the way ends the connection.
func (a *API) readArchive(w http.ResponseWriter, r *http.Request, in *readArchiveInput) error {
	p, err := a.place(r.Context(), in.FilePath)
	if err != nil {
		return err
	}
	return a.sendArchive(w, r, p, archiveName(in.Path), in.Format)
}

func (a *API) sendArchive(w http.ResponseWriter, r *http.Request, p place, name, format string) error {
	ctx, cancel := a.served(r.Context())
	defer cancel()
	stream, err := p.node.ReadArchive(ctx, connect.NewRequest(&nodev1.ReadArchiveRequest{
		SandboxId: string(p.sandbox), Path: p.path, User: p.user, Format: format,
	}))
	if err != nil {
		return decode(err)
	}
	defer func() {
		cancel()
		_ = stream.Close()
	}()
	if !stream.Receive() { // the first message says that it has begun
		if err := decode(stream.Err()); err != nil {
			return err
		}
		return errBroken()
	}
	h := w.Header()
	h.Set("Content-Type", archiveTypes[format])
	h.Set("Content-Disposition", disposition(name+"."+format))
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	out := a.patient(w)
	defer out.reset()
	for stream.Receive() {
		if _, err := out.Write(stream.Msg().GetData()); err != nil {
			return err
		}
	}
	if err := decode(stream.Err()); err != nil {
		if !answered(w) {
			h.Del("Content-Disposition")
		}
		return err
	}
	return nil
}

func archiveName(p string) string {
	if name := path.Base(path.Clean(p)); name != "/" {
		return name
	}
	return "root"
}

type writeArchiveInput struct {
	FilePath
	Format string `query:"format" enum:"tar,tar.gz,tar.zst" doc:"Default: told by the first bytes"`
}

// archiveAnswer counts what an archive brought.
type archiveAnswer struct {
	Files       int64 `json:"files" doc:"Symlinks and hard links count as files"`
	Directories int64 `json:"directories"`
	Bytes       int64 `json:"bytes"`
	Skipped     int64 `json:"skipped" doc:"Devices, FIFOs and sockets"`
}

// writeArchive streams an archive to the node, which puts it into its place as a whole once it is there as a whole.
func (a *API) writeArchive(w http.ResponseWriter, r *http.Request, in *writeArchiveInput) error {
	p, err := a.place(r.Context(), in.FilePath)
	if err != nil {
		return err
	}
	return a.receiveArchive(w, r, p, in.Format)
}

func (a *API) receiveArchive(w http.ResponseWriter, r *http.Request, p place, format string) error {
	ctx, cancel := a.served(r.Context())
	defer cancel()
	stream := p.node.WriteArchive(ctx)
	header := &nodev1.WriteArchiveHeader{SandboxId: string(p.sandbox), Path: p.path, User: p.user, Format: format}
	info, err := upload(stream, archiveHeader(header), archiveData, &nodev1.WriteArchiveRequest{Part: &nodev1.WriteArchiveRequest_Commit{Commit: true}}, r.Body)
	if err != nil {
		cancel() // before the stream is closed: what has no commit is not written
		_, _ = stream.CloseAndReceive()
		return err
	}
	return writeJSON(w, archiveAnswer{Files: info.GetFiles(), Directories: info.GetDirectories(), Bytes: info.GetBytes(), Skipped: info.GetSkipped()})
}

func archiveHeader(h *nodev1.WriteArchiveHeader) *nodev1.WriteArchiveRequest {
	return &nodev1.WriteArchiveRequest{Part: &nodev1.WriteArchiveRequest_Header{Header: h}}
}

func archiveData(b []byte) *nodev1.WriteArchiveRequest {
	return &nodev1.WriteArchiveRequest{Part: &nodev1.WriteArchiveRequest_Data{Data: b}}
}
