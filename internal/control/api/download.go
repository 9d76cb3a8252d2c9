package api

import (
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/api/problem"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

type readFileInput struct {
	FilePath
	FileConditions
}

// FileConditions say which part of which version of a file is asked for.
type FileConditions struct {
	Range       string `header:"Range" doc:"bytes=FROM-TO, bytes=FROM- or bytes=-LAST; several ranges are answered by the whole"`
	IfRange     string `header:"If-Range" doc:"The ETag that Range is about; otherwise the whole is answered"`
	IfMatch     string `header:"If-Match"`
	IfNoneMatch string `header:"If-None-Match"`
}

// readFile downloads a file, or a range of it.
func (a *API) readFile(w http.ResponseWriter, r *http.Request, in *readFileInput) error {
	p, err := a.place(r.Context(), in.FilePath)
	if err != nil {
		return err
	}
	return a.sendFile(w, r, p, in.FileConditions)
}

func (a *API) sendFile(w http.ResponseWriter, r *http.Request, p place, in FileConditions) error {
	ctx, cancel := a.served(r.Context())
	defer cancel()
	from, length := int64(0), int64(-1)
	partial := false
	etag := ""
	if in.Range != "" { // its meaning depends on the size
		info, err := p.stat(ctx, true)
		if err != nil {
			return err
		}
		etag = quoted(info.GetEtag())
		if info.GetType() == "file" && (in.IfRange == "" || in.IfRange == etag) {
			if from, length, partial, err = parseRange(in.Range, info.GetSize()); err != nil {
				return a.unsatisfiable(r, err, info.GetSize())
			}
		}
	}
	stream, info, err := p.openFile(ctx, from, length)
	if err != nil {
		return err
	}
	defer func() {
		cancel()
		_ = stream.Close()
	}()
	if partial && quoted(info.GetEtag()) != etag { // another file has taken its place: the whole of that
		in.Range = ""
		return a.sendFile(w, r, p, in)
	}
	whole := info.GetSize()
	etag = quoted(info.GetEtag())
	if done, err := preconditions(w, in, etag); done || err != nil {
		return err
	}
	size := whole
	if partial {
		size = length
	}
	fileHeader(w.Header(), p.name(), info, size)
	if partial {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, from+length-1, whole))
		w.WriteHeader(http.StatusPartialContent)
	}
	if size == 0 && !partial { // files of /proc say 0 and hold more
		w.Header().Del("Content-Length")
		return a.copyToEnd(w, stream)
	}
	return a.copyFile(w, stream, size)
}

// copyToEnd sends whatever comes.
func (a *API) copyToEnd(w http.ResponseWriter, stream *connect.ServerStreamForClient[nodev1.ReadFileResponse]) error {
	out := a.patient(w)
	defer out.reset()
	for stream.Receive() {
		if _, err := out.Write(stream.Msg().GetData()); err != nil {
			return err
		}
	}
	return decode(stream.Err())
}

// copyFile sends exactly size bytes: a file that shrinks meanwhile cuts the answer, one that grows does not lengthen it.
func (a *API) copyFile(w http.ResponseWriter, stream *connect.ServerStreamForClient[nodev1.ReadFileResponse], size int64) error {
	out := a.patient(w)
	defer out.reset()
	for size > 0 && stream.Receive() {
		data := stream.Msg().GetData()
		data = data[:min(int64(len(data)), size)]
		if _, err := out.Write(data); err != nil {
			return err
		}
		size -= int64(len(data))
	}
	if size > 0 {
		err := decode(stream.Err())
		if err == nil {
			err = errors.New("the file became shorter while it was read")
		}
		if !answered(w) { // nothing has left yet: the length that was promised can be taken back
			w.Header().Del("Content-Length")
		}
		return err
	}
	return nil
}

// openFile begins to read; the first message is the file's description.
func (p place) openFile(ctx context.Context, from, length int64) (*connect.ServerStreamForClient[nodev1.ReadFileResponse], *nodev1.FileInfo, error) {
	stream, err := p.node.ReadFile(ctx, connect.NewRequest(&nodev1.ReadFileRequest{
		SandboxId: string(p.sandbox), Path: p.path, User: p.user, Offset: from, Length: length,
	}))
	if err != nil {
		return nil, nil, decode(err)
	}
	if !stream.Receive() {
		err := decode(stream.Err())
		_ = stream.Close()
		if err == nil {
			err = errBroken()
		}
		return nil, nil, err
	}
	info := stream.Msg().GetInfo()
	if info == nil {
		_ = stream.Close()
		return nil, nil, cay.Errorf(cay.Internal, "the worker sent data before the file's description")
	}
	return stream, info, nil
}

// headFile answers what readFile would, without the file.
func (a *API) headFile(w http.ResponseWriter, r *http.Request, in *readFileInput) error {
	p, err := a.place(r.Context(), in.FilePath)
	if err != nil {
		return err
	}
	return p.head(w, r, in.FileConditions)
}

func (p place) head(w http.ResponseWriter, r *http.Request, in FileConditions) error {
	info, err := p.stat(r.Context(), true)
	if err != nil {
		return err
	}
	if info.GetType() != "file" {
		return cay.Errorf(cay.Unprocessable, "%s is a %s", clip(p.name(), 200), info.GetType()).On("path")
	}
	if done, err := preconditions(w, in, quoted(info.GetEtag())); done || err != nil {
		return err
	}
	fileHeader(w.Header(), p.name(), info, info.GetSize())
	w.WriteHeader(http.StatusOK)
	return nil
}

// name is the path as the client gave it.
func (p place) name() string {
	raw, ok := cay.ParseWirePath(p.path)
	if !ok {
		return p.path
	}
	return raw
}

func fileHeader(h http.Header, name string, info *nodev1.FileInfo, size int64) {
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", disposition(path.Base(name)))
	h.Set("Content-Length", strconv.FormatInt(size, 10))
	h.Set("Accept-Ranges", "bytes")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	if etag := quoted(info.GetEtag()); etag != "" {
		h.Set("ETag", etag)
	}
	if ns := info.GetModifiedUnixNs(); ns != 0 {
		h.Set("Last-Modified", time.Unix(0, ns).UTC().Format(http.TimeFormat))
	}
}

// disposition makes a browser save the file under its name, whatever that holds (RFC 6266).
func disposition(name string) string {
	if s := mime.FormatMediaType("attachment", map[string]string{"filename": strings.ToValidUTF8(name, "_")}); s != "" {
		return s
	}
	return "attachment"
}

// preconditions answers If-Match and If-None-Match. done: 304 has been answered.
func preconditions(w http.ResponseWriter, in FileConditions, etag string) (done bool, err error) {
	if in.IfMatch != "" && !etagListed(in.IfMatch, etag) {
		return false, cay.Errorf(cay.PreconditionFailed, "the file is another version: %s", etag).On("If-Match")
	}
	if in.IfNoneMatch != "" && etagListed(in.IfNoneMatch, etag) {
		w.Header().Set("ETag", etag)
		w.WriteHeader(http.StatusNotModified)
		return true, nil
	}
	return false, nil
}

func etagListed(list, etag string) bool {
	for part := range strings.SplitSeq(list, ",") {
		if part = strings.TrimSpace(part); part == "*" || etag != "" && strings.TrimPrefix(part, "W/") == etag {
			return true
		}
	}
	return false
}

var errRange = errors.New("range not satisfiable")

func (a *API) unsatisfiable(r *http.Request, err error, size int64) error {
	if !errors.Is(err, errRange) {
		return err
	}
	return problem.From(cay.Errorf(cay.RangeNotSatisfiable, "the file has %d bytes", size).On("Range").With("size", size),
		exchangeOf(r.Context()).requestID).WithHeader("Content-Range", fmt.Sprintf("bytes */%d", size))
}

// parseRange reads a Range header for a file of size bytes. ok is false where RFC 9110 asks for the whole: another unit, a malformed
// range, several ranges. errRange is one that lies outside of the file.
func parseRange(header string, size int64) (from, length int64, ok bool, err error) {
	unit, spec, found := strings.Cut(header, "=")
	if !found || !strings.EqualFold(strings.TrimSpace(unit), "bytes") {
		return 0, -1, false, nil
	}
	first, last, found := strings.Cut(strings.TrimSpace(spec), "-")
	if !found || strings.Contains(spec, ",") {
		return 0, -1, false, nil
	}
	if first == "" {
		n, valid := digits(last)
		if !valid {
			return 0, -1, false, nil
		}
		if n == 0 || size == 0 {
			return 0, -1, false, errRange
		}
		n = min(n, size)
		return size - n, n, true, nil
	}
	from, valid := digits(first)
	if !valid {
		return 0, -1, false, nil
	}
	end := size - 1
	if last != "" {
		to, valid := digits(last)
		if !valid || to < from {
			return 0, -1, false, nil
		}
		end = min(to, end)
	}
	if from >= size {
		return 0, -1, false, errRange
	}
	return from, end - from + 1, true, nil
}

// digits reads a number of digits only; one that is too large is the largest.
func digits(s string) (n int64, ok bool) {
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
	}
	if s == "" {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 1<<63 - 1, true
	}
	return n, true
}
