package router

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/node/spool"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

// Bounds of a report. Sizes are in bytes.
const (
	inlineReport   = 32 << 10 // that comes with the exit
	maxFileChanges = 1000
	maxResults     = 1000
	maxParts       = 64 // representations of one result
	maxDepth       = 100
	maxChangedPath = 4 * 4096 // a path, percent-encoded perhaps
	maxErrorName   = 1 << 10
	maxErrorValue  = 64 << 10
	maxTraceback   = 256 << 10
)

// settle takes the exit of a process. That of a program waits for its report, for as long as an agent may take to answer.
func (p *Process) settle(m *guestv1.Exited) error {
	e := p.exitBy(m)
	if p.code == nil {
		p.finish(e)
		return nil
	}
	if m.ReportBytes == 0 {
		report, err := sanitize(m.Report)
		if err == nil {
			p.keepReport(report)
		}
		p.finish(e)
		return err
	}
	if m.ReportBytes < 0 || m.ReportBytes > spool.MaxReport {
		p.finish(e)
		return violation("a report of %d bytes", m.ReportBytes)
	}
	p.mu.Lock()
	fetching := p.exit != nil
	p.exit = &e
	p.mu.Unlock()
	if fetching {
		return nil // an exit that is repeated
	}
	p.stopTimers()
	p.s.work.Go(func() {
		report, err := p.s.fetchReport(p, m.ReportBytes)
		switch {
		case p.s.ctx().Err() != nil:
			return // the node after this one hears of the exit again
		case err == nil:
			p.keepReport(report)
		case errors.Is(err, errViolation):
			p.s.strike(err)
		default:
			p.s.cfg.Log.Warn("report of a program not received", "process", p.id, "error", err)
		}
		p.finish(e)
	})
	return nil
}

func (p *Process) keepReport(b []byte) {
	if err := p.log.KeepReport(b); err != nil {
		p.s.cfg.Log.Error("report not kept", "process", p.id, "error", err)
	}
}

// lostReport stands for the report of a program that left none, or a bad one.
func lostReport(inContext bool) []byte {
	b, _ := proto.Marshal(&guestv1.CodeReport{ContextLost: inContext, FilesTruncated: true, ResultsTruncated: true}) // nothing in it can fail
	return b
}

// fetchReport gets a report that was too long for its exit. It tries again as long as an answer may take; a frozen sandbox has no time.
func (s *Session) fetchReport(p *Process, size int64) ([]byte, error) {
	file, err := p.log.Scratch()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	for left := s.timing.Answer; ; {
		s.mu.Lock()
		thawed := s.thawed
		s.mu.Unlock()
		select {
		case <-thawed:
		case <-s.closed:
			return nil, errClosed()
		}
		began := time.Now()
		err := s.readReport(p, size, file, left)
		if err == nil {
			return readSanitized(file, size)
		}
		if s.frozen() {
			continue
		}
		if left -= time.Since(began); left <= 0 || errors.Is(err, errViolation) || cay.ReasonOf(err) != cay.Unavailable {
			return nil, err
		}
		rest(s.ctx(), min(left, 50*time.Millisecond))
	}
}

// readReport writes a report to file, on a connection of its own.
func (s *Session) readReport(p *Process, size int64, file *os.File, within time.Duration) error {
	ctx, cancel := context.WithTimeout(s.ctx(), within)
	defer cancel()
	t, err := s.dialBulk(ctx, &guestv1.Bulk{Transfer: &guestv1.Bulk_ReadReport{ReadReport: &guestv1.ReadReport{ProcessId: string(p.id)}}})
	if err != nil {
		return err
	}
	defer t.close()
	f, err := t.reader.Read()
	if err != nil {
		return t.broken(err)
	}
	var h guestv1.BulkHeader
	switch {
	case f.Type != wire.FrameHeader || proto.Unmarshal(f.Payload, &h) != nil:
		return violation("a report without a header")
	case h.Problem != nil:
		return guestError(h.Problem)
	}
	for at := int64(0); ; {
		f, err := t.reader.Read()
		switch {
		case err != nil:
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return t.broken(err)
		case f.Type == wire.FrameEnd && at == size:
			return nil
		case f.Type != wire.FrameData || at+int64(len(f.Payload)) > size:
			return violation("a report of %d bytes that is longer or shorter", size)
		}
		if _, err := file.WriteAt(f.Payload, at); err != nil {
			return fmt.Errorf("keep a report: %w", err)
		}
		at += int64(len(f.Payload))
	}
}

// sanitizing bounds the memory for long reports, of all sandboxes: each takes a few times MaxReport while it is looked at.
var sanitizing = make(chan struct{}, 2)

func readSanitized(file *os.File, size int64) ([]byte, error) {
	sanitizing <- struct{}{}
	defer func() { <-sanitizing }()
	b := make([]byte, size)
	if _, err := file.ReadAt(b, 0); err != nil {
		return nil, fmt.Errorf("read a report: %w", err)
	}
	return sanitize(b)
}

// sanitize takes from an encoded report what may be told. What breaks the form is a violation; what only a program can be blamed for,
// such as JSON that is none, is left out and the report says so. Fields are taken one by one, so that no number of them costs more
// memory than is allowed.
func sanitize(b []byte) ([]byte, error) {
	out := &guestv1.CodeReport{}
	files := 0
	err := fields(b, func(number protowire.Number, value uint64, body []byte) error {
		switch number {
		case 1:
			if files++; files > maxFileChanges {
				return violation("a report of more than %d files", maxFileChanges)
			}
			change := &guestv1.CodeReport_FileChange{}
			if err := unmarshal(body, change); err != nil {
				return err
			}
			if !tellable(change) {
				out.FilesTruncated = true
				return nil
			}
			out.FilesChanged = append(out.FilesChanged, change)
		case 2:
			out.FilesTruncated = out.FilesTruncated || value != 0
		case 3:
			if len(out.Results) == maxResults {
				out.ResultsTruncated = true
				return nil
			}
			result, whole, err := sanitizeResult(body)
			if err != nil {
				return err
			}
			out.ResultsTruncated = out.ResultsTruncated || !whole
			if len(result.Data) > 0 {
				out.Results = append(out.Results, result)
			}
		case 4:
			out.ResultsTruncated = out.ResultsTruncated || value != 0
		case 5:
			e := &guestv1.CodeReport_Error{}
			if err := unmarshal(body, e); err != nil {
				return err
			}
			e.Name, e.Value, e.Traceback = cut(e.Name, maxErrorName), cut(e.Value, maxErrorValue), cut(e.Traceback, maxTraceback)
			out.Error = e
		case 6:
			out.ExecutionCount = max(int64(value), 0)
		case 7:
			out.ContextLost = value != 0
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	clean, err := proto.Marshal(out)
	if err != nil || len(clean) > spool.MaxReport {
		return nil, violation("a report that cannot be kept: %v", err)
	}
	return clean, nil
}

// fields goes through the fields of an encoded message: value is that of a number, body that of everything else.
func fields(b []byte, each func(number protowire.Number, value uint64, body []byte) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return violation("a malformed report")
		}
		b = b[n:]
		var value uint64
		var body []byte
		switch kind {
		case protowire.VarintType:
			value, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			body, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(number, kind, b)
		}
		if n < 0 {
			return violation("a malformed report")
		}
		b = b[n:]
		if err := each(number, value, body); err != nil {
			return err
		}
	}
	return nil
}

func unmarshal(b []byte, m proto.Message) error {
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, m); err != nil {
		return violation("a malformed report: %v", err)
	}
	return nil
}

func tellable(c *guestv1.CodeReport_FileChange) bool {
	path, ok := cay.ParseWirePath(c.Path)
	op := c.Op == "create" || c.Op == "write" || c.Op == "remove"
	return ok && op && c.Size >= 0 && strings.HasPrefix(path, "/") && strings.IndexByte(path, 0) < 0 && len(c.Path) <= maxChangedPath
}

var mimeType = regexp.MustCompile(`^[a-zA-Z0-9!#$&^_.+-]{1,127}/[a-zA-Z0-9!#$&^_.+-]{1,127}$`)

// sanitizeResult takes one result. whole: nothing of it was left out.
func sanitizeResult(b []byte) (result *guestv1.CodeReport_Result, whole bool, err error) {
	result, whole = &guestv1.CodeReport_Result{}, true
	seen := map[string]bool{}
	err = fields(b, func(number protowire.Number, value uint64, body []byte) error {
		switch number {
		case 1:
			data := &guestv1.CodeReport_Data{}
			if len(seen) == maxParts {
				whole = false
				return nil
			}
			if err := unmarshal(body, data); err != nil {
				return err
			}
			kind := strings.ToLower(data.Mime)
			data.Json = kind == "application/json" || strings.HasSuffix(kind, "+json")
			if !mimeType.MatchString(data.Mime) || seen[data.Mime] || data.Json && !validJSON(data.Data) {
				whole = false
				return nil
			}
			seen[data.Mime] = true
			result.Data = append(result.Data, data)
		case 2:
			result.IsMain = value != 0
		}
		return nil
	})
	return result, whole, err
}

// validJSON accepts one value, not too deep, whose names are unique and whose text is UTF-8.
func validJSON(b []byte) bool {
	depth, inString := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case inString:
			if c == '\\' {
				i++
			} else if c == '"' {
				inString = false
			}
		case c == '"':
			inString = true
		case c == '[' || c == '{':
			if depth++; depth > maxDepth {
				return false
			}
		case c == ']' || c == '}':
			depth--
		}
	}
	return jsontext.Value(b).IsValid()
}

func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}
