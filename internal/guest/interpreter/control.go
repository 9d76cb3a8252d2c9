package interpreter

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"github.com/cayhq/cay/internal/wire/guestv1"
)

// What a driver says on its control socket is a line `KIND RUN LENGTH`, then LENGTH bytes:
//
//	ready   run 0: the interpreter has started and takes programs; what it printed until then is nobody's
//	begin   the run has begun and may be interrupted
//	main    the value of the last expression: a line `MIME SIZE FORM` for each part, an empty line, then the parts; FORM is "json" or "data"
//	display another result, in the same form
//	drop    a result was left out by the driver
//	error   an uncaught exception: name, value and traceback, with a NUL between them
//	done    the run is over: its code, in decimal
//
// The agent says `run RUN LENGTH` with the source, or `file RUN LENGTH` with the path of a file that holds it; to a shell it says
// commands. Everything that a driver says may have been written by the program it runs.
const (
	maxLine  = 256      // bytes of a line
	maxParts = 32       // of one result
	maxBody  = 16 << 20 // bytes of one message
)

// errControl is a driver that breaks the protocol.
var errControl = errors.New("broke the control protocol")

// part is one representation of a result.
type part struct {
	mime string
	size int
	json bool
}

// message is the head of what a driver said.
type message struct {
	kind string
	run  int64
	size int
}

var mimeType = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9!#$&^_.+-]{0,62}/[a-zA-Z0-9][a-zA-Z0-9!#$&^_.+-]{0,62}$`)

func newControlReader(r io.Reader) *bufio.Reader { return bufio.NewReaderSize(r, 4096) }

// readLine reads a line of at most maxLine bytes, without its end.
func readLine(r *bufio.Reader) (string, error) {
	var line []byte
	for {
		c, err := r.ReadByte()
		if err != nil {
			if err == io.EOF && len(line) > 0 {
				err = io.ErrUnexpectedEOF
			}
			return "", err
		}
		if c == '\n' {
			return string(line), nil
		}
		if len(line) == maxLine {
			return "", fmt.Errorf("%w: a line above %d bytes", errControl, maxLine)
		}
		line = append(line, c)
	}
}

// number reads a size or run; nothing signed, nothing padded, nothing above a fixed bound.
func number(s string, most int64) (int64, bool) {
	n, err := strconv.ParseUint(s, 10, 63)
	return int64(n), err == nil && int64(n) <= most && (s == "0" || s[0] != '0')
}

// readMessage reads the head of a message. Its body follows and has to be read before the next one.
func readMessage(r *bufio.Reader) (message, error) {
	line, err := readLine(r)
	if err != nil {
		return message{}, err
	}
	f := strings.Split(line, " ")
	if len(f) != 3 {
		return message{}, fmt.Errorf("%w: a head of %d fields", errControl, len(f))
	}
	run, ok := number(f[1], 1<<62)
	size, ok2 := number(f[2], maxBody)
	if !ok || !ok2 {
		return message{}, fmt.Errorf("%w: numbers of a head", errControl)
	}
	most := int64(maxBody)
	switch f[0] {
	case "ready", "begin", "drop":
		most = 0
	case "done":
		most = 3
	case "error":
		most = maxErrorName + maxErrorValue + maxTraceback + 2
	case "main", "display":
	default:
		return message{}, fmt.Errorf("%w: an unknown kind", errControl)
	}
	if size > most {
		return message{}, fmt.Errorf("%w: %d bytes of kind %s", errControl, size, f[0])
	}
	return message{kind: f[0], run: run, size: int(size)}, nil
}

// readParts reads the head of a result's body and checks that the parts fill the body.
func readParts(r *bufio.Reader, size int) ([]part, error) {
	var parts []part
	for {
		line, err := readLine(r)
		if err != nil {
			return nil, err
		}
		size -= len(line) + 1
		if line == "" {
			break
		}
		f := strings.Split(line, " ")
		if len(f) != 3 || len(parts) == maxParts || !mimeType.MatchString(f[0]) || f[2] != "json" && f[2] != "data" {
			return nil, fmt.Errorf("%w: a part of a result", errControl)
		}
		n, ok := number(f[1], maxBody)
		if !ok {
			return nil, fmt.Errorf("%w: the size of a part", errControl)
		}
		parts = append(parts, part{mime: f[0], size: int(n), json: f[2] == "json"})
	}
	for _, p := range parts {
		size -= p.size
	}
	if size != 0 || len(parts) == 0 {
		return nil, fmt.Errorf("%w: a result of another length", errControl)
	}
	return parts, nil
}

// readError reads the body of an error.
func readError(r *bufio.Reader, size int) (*guestv1.CodeReport_Error, error) {
	b := make([]byte, size)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	f := bytes.SplitN(b, []byte{0}, 3)
	if len(f) != 3 {
		return nil, fmt.Errorf("%w: an error of %d fields", errControl, len(f))
	}
	text := func(b []byte, most int) string {
		return strings.ToValidUTF8(string(b[:min(len(b), most)]), "\uFFFD")
	}
	return &guestv1.CodeReport_Error{Name: text(f[0], maxErrorName), Value: text(f[1], maxErrorValue), Traceback: text(f[2], maxTraceback)}, nil
}

// readCode reads the body of a done.
func readCode(r *bufio.Reader, size int) (int32, error) {
	b := make([]byte, size)
	if _, err := io.ReadFull(r, b); err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(string(b), 10, 8) // a shell pads it
	if err != nil {
		return 0, fmt.Errorf("%w: the code of a run", errControl)
	}
	return int32(n), nil
}
