package contract

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// bound is within which every answer must have begun and, but for streams, ended. The machine may be busy.
const bound = 45 * time.Second

// listen is how long a stream is listened to that has no end of its own.
const listen = 1500 * time.Millisecond

// request is written to the connection as it stands, so that it may be what no HTTP library would send.
type request struct {
	method, target string
	header         []string // names and values in turn; Host and Content-Length are added unless they are among them
	body           []byte
	until          string // name of the event that ends a stream for the test
	hasty          bool   // a stream is listened to for a moment, whatever comes
}

func (r request) has(name string) bool {
	for i := 0; i < len(r.header); i += 2 {
		if strings.EqualFold(r.header[i], name) {
			return true
		}
	}
	return false
}

// String is what a failure says of it.
func (r request) String() string {
	var header []string
	for i := 0; i+1 < len(r.header); i += 2 {
		if !strings.EqualFold(r.header[i], "Authorization") {
			header = append(header, r.header[i]+": "+short(r.header[i+1], 60))
		}
	}
	return fmt.Sprintf("%s %s %q %s", r.method, short(r.target, 200), header, short(string(r.body), 200))
}

func short(s string, n int) string {
	if len(s) <= n {
		return strconv.Quote(s)
	}
	return fmt.Sprintf("%q… (%d bytes)", s[:n], len(s))
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   []byte
	events []event
	bare   bool // made by net/http itself, of what is no HTTP
	cut    error
}

type event struct {
	name, id string
	data     []byte
}

func (a answer) String() string {
	return fmt.Sprintf("%d %s %s %v", a.status, a.header.Get("Content-Type"), short(string(a.body), 400), a.cut)
}

// send makes the exchange on a connection of its own. The error is that of an answer that did not come.
func send(addr string, r request) (answer, error) {
	conn, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	deadline := time.Now().Add(bound)
	if err := conn.SetDeadline(deadline); err != nil {
		return answer{}, err
	}
	var head bytes.Buffer
	fmt.Fprintf(&head, "%s %s HTTP/1.1\r\n", r.method, r.target)
	if !r.has("Host") {
		fmt.Fprintf(&head, "Host: %s\r\n", addr)
	}
	if !r.has("Content-Length") && !r.has("Transfer-Encoding") && (len(r.body) > 0 || r.method == "POST" || r.method == "PUT" || r.method == "PATCH") {
		fmt.Fprintf(&head, "Content-Length: %d\r\n", len(r.body))
	}
	for i := 0; i+1 < len(r.header); i += 2 {
		fmt.Fprintf(&head, "%s: %s\r\n", r.header[i], r.header[i+1])
	}
	head.WriteString("\r\n")
	sent := make(chan struct{})
	go func() { // ends with the connection at the latest
		defer close(sent)
		_, _ = conn.Write(append(head.Bytes(), r.body...)) // a server that has read enough may hang up
		if r.has("Content-Length") || r.has("Transfer-Encoding") {
			_ = conn.(*net.TCPConn).CloseWrite() // there is no more, whatever was said
		}
	}()
	defer func() {
		conn.Close()
		<-sent
	}()
	in := bufio.NewReader(conn)
	var resp *http.Response
	for {
		if resp, err = http.ReadResponse(in, &http.Request{Method: r.method}); err != nil {
			return answer{}, fmt.Errorf("no answer: %w", err)
		}
		if resp.StatusCode >= 200 || resp.StatusCode == http.StatusSwitchingProtocols {
			break
		}
	}
	// The body is left to the connection: Close would read it to its end, which a stream may not have.
	a := answer{status: resp.StatusCode, header: resp.Header}
	a.bare = a.header.Get("X-Request-Id") == "" && resp.Close
	if a.status == http.StatusSwitchingProtocols {
		return a, nil
	}
	if strings.HasPrefix(a.header.Get("Content-Type"), eventType) {
		if r.until == "" || r.hasty {
			_ = conn.SetDeadline(time.Now().Add(listen)) // events that do not come are missed below
		}
		a.events, a.cut = readEvents(resp.Body, r.until)
		if r.until == "" && errors.Is(a.cut, errTimeout) {
			a.cut = nil
		}
		return a, nil
	}
	a.body, a.cut = io.ReadAll(resp.Body)
	if errors.Is(a.cut, errTimeout) {
		return a, fmt.Errorf("the answer has no end: %w", a.cut)
	}
	return a, nil
}

var errTimeout = errors.New("no more within the time")

// readEvents reads server-sent events to the end, or to the one that is waited for.
func readEvents(r io.Reader, until string) ([]event, error) {
	var events []event
	var now event
	for in := bufio.NewReader(r); ; {
		line, err := in.ReadString('\n')
		var timeout net.Error
		switch {
		case errors.As(err, &timeout) && timeout.Timeout():
			return events, errTimeout
		case errors.Is(err, io.EOF) && line == "":
			return events, nil
		case err != nil:
			return events, err
		}
		line = strings.TrimSuffix(line, "\n")
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "event":
			now.name = value
		case "id":
			now.id = value
		case "data":
			now.data = append(now.data, value...)
		}
		if line == "" && now.name != "" {
			events = append(events, now)
			if now.name == until {
				return events, nil
			}
			now = event{}
		}
	}
}

// faults holds an answer against the document.
func (d *document) faults(op *operation, r request, a answer) []error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if a.bare && a.status >= 400 {
		return nil // net/http could not read a request in it
	}
	if a.header.Get("X-Request-Id") == "" {
		fault("it has no X-Request-Id")
	}
	contents, named := op.responses[a.status]
	if !named {
		fault("the document does not name the status %d", a.status)
	}
	if a.status >= 400 {
		return append(faults, d.problemFaults(op, r, a)...)
	}
	if !bodies(r.method, a.status) {
		if len(a.body) > 0 {
			fault("an answer %d with a body", a.status)
		}
		return faults
	}
	kind, _, err := mime.ParseMediaType(a.header.Get("Content-Type"))
	if err != nil {
		fault("its content type: %v", err)
	}
	schema, ok := contents[kind]
	if _, any := contents["*/*"]; named && !ok && !any {
		fault("the document does not name %s for the status %d", kind, a.status)
	}
	if a.cut != nil {
		fault("it was cut: %w", a.cut)
		return faults
	}
	if kind == eventType {
		return append(faults, op.eventFaults(a.events)...)
	}
	if schema != nil {
		if err := validate(schema, a.body); err != nil {
			fault("its body: %w", err)
		}
	}
	return faults
}

// may lists the faults of a server that bad input and a busy machine may meet, where the document names them.
var may = []int{http.StatusNotImplemented, http.StatusServiceUnavailable, http.StatusInsufficientStorage}

func (d *document) problemFaults(op *operation, r request, a answer) []error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if a.status >= 500 && !slices.Contains(may, a.status) {
		fault("a fault of the server")
	}
	if r.method == http.MethodHead {
		return faults
	}
	if kind := a.header.Get("Content-Type"); kind != problemType {
		fault("an error as %q", kind)
		return faults
	}
	if err := validate(d.problem, a.body); err != nil {
		fault("its problem: %w", err)
	}
	var p struct {
		Type, Reason, Detail string
		Status               int
		RequestID            string `json:"request_id"`
	}
	if err := json.Unmarshal(a.body, &p); err != nil {
		return append(faults, err)
	}
	switch {
	case p.Status != a.status:
		fault("its problem says %d", p.Status)
	case p.RequestID != a.header.Get("X-Request-Id"):
		fault("its problem has another request id than its header")
	case p.Type != "urn:cay:problem:"+p.Reason || !slices.Contains(d.reasons, p.Reason):
		fault("its problem's type is %s, its reason %s", p.Type, p.Reason)
	case p.Detail == "":
		fault("its problem says nothing")
	case op != nil && !slices.Contains(op.reasons[a.status], p.Reason):
		fault("the document does not name the reason %s for the status %d", p.Reason, a.status)
	case a.header.Get("Retry-After") == "" && (a.status == 429 || a.status == 503 || p.Reason == "not_ready"):
		fault("it does not say Retry-After")
	}
	return faults
}

func (op *operation) eventFaults(events []event) []error {
	if op.events == nil {
		return []error{errors.New("the document does not describe its events")}
	}
	var faults []error
	for _, e := range events {
		whole := map[string]any{"event": e.name}
		if e.id != "" {
			whole["id"] = e.id
		}
		var err error
		if whole["data"], err = jsonschema.UnmarshalJSON(bytes.NewReader(e.data)); err == nil {
			err = op.events.Validate(whole)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("its event %s %s: %w", e.name, short(string(e.data), 200), err))
		}
	}
	return faults
}

// validate checks one JSON value and that nothing follows it.
func validate(schema *jsonschema.Schema, body []byte) error {
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return err
	}
	return schema.Validate(value)
}
