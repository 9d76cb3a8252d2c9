package client

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strings"
)

// maxEventBytes bounds one server-sent event. Output comes in far smaller pieces; the result of code holds 20 MiB of files in base64.
const maxEventBytes = 64 << 20

var errEventTooLarge = fmt.Errorf("server-sent event of more than %d bytes", maxEventBytes)

// sseEvent is one event as the HTML standard's "server-sent events" defines it.
type sseEvent struct {
	id    string // the last id seen, which holds on
	hasID bool   // this event named it
	name  string // "message" when not given
	data  []byte
}

// sseReader parses a text/event-stream. Its memory is bounded by maxEventBytes.
type sseReader struct {
	r      *bufio.Reader
	lastID string
	skipLF bool // the line before ended with a CR: an LF that follows belongs to it
	began  bool
}

func newSSEReader(r io.Reader) *sseReader { return &sseReader{r: bufio.NewReaderSize(r, 64<<10)} }

// next answers the next event that has data. Comments and events without data are passed over; an event that the stream's end cuts
// off is dropped, and io.EOF answered.
func (s *sseReader) next() (sseEvent, error) {
	var (
		ev      sseEvent
		data    bytes.Buffer
		hasData bool
	)
	for {
		line, err := s.line(maxEventBytes - data.Len())
		if err != nil {
			return sseEvent{}, err
		}
		if len(line) == 0 {
			if !hasData {
				ev = sseEvent{}
				continue
			}
			ev.id, ev.data = s.lastID, data.Bytes()
			if ev.name == "" {
				ev.name = "message"
			}
			return ev, nil
		}
		field, value, _ := strings.Cut(string(line), ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "event":
			ev.name = value
		case "data":
			if hasData {
				data.WriteByte('\n')
			}
			data.WriteString(value)
			hasData = true
		case "id":
			if !strings.ContainsRune(value, 0) {
				s.lastID, ev.hasID = value, true
			}
		}
	}
}

// line reads up to CR, LF or CRLF, which it drops. A CR at the end of what has arrived must not wait for an LF, so that the LF is
// looked for at the beginning of the next line.
func (s *sseReader) line(limit int) ([]byte, error) {
	var line []byte
	for {
		if _, err := s.r.Peek(1); err != nil {
			return nil, err
		}
		have, _ := s.r.Peek(s.r.Buffered()) // what is buffered can always be peeked at
		if s.skipLF {
			s.skipLF = false
			if have[0] == '\n' {
				s.r.Discard(1)
				continue
			}
		}
		end := bytes.IndexByte(have, '\n')
		if cr := bytes.IndexByte(have[:max(end, 0)], '\r'); end >= 0 && cr >= 0 {
			end = cr
		} else if end < 0 {
			end = bytes.IndexByte(have, '\r')
		}
		piece := have
		if end >= 0 {
			piece = have[:end]
		}
		if len(line)+len(piece) > limit {
			return nil, errEventTooLarge
		}
		line = append(line, piece...)
		if end < 0 {
			s.r.Discard(len(have))
			continue
		}
		s.skipLF = have[end] == '\r'
		s.r.Discard(end + 1)
		return s.trimBOM(line), nil
	}
}

func (s *sseReader) trimBOM(line []byte) []byte {
	if !s.began {
		s.began = true
		line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
	}
	return line
}
