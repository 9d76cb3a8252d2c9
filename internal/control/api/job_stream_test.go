package api

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cayhq/cay"
)

// shortFrame is a frame as a line: its type, its seq, and what it says.
func shortFrame(m map[string]any) string {
	s := fmt.Sprintf("%s %v", m["type"], m["seq"])
	for _, name := range []string{"data", "data_base64", "attempt", "stream", "bytes", "exit_code", "exitCode", "signal", "timed_out", "duration_ms", "durationMs", "reason"} {
		if v, ok := m[name]; ok {
			s += fmt.Sprintf(" %s=%v", name, v)
		}
	}
	return s
}

// frames reads a job's events to their end.
func (r *rig) frames(path string, opts ...with) []string {
	r.Helper()
	next, leave := r.follow(path, opts...)
	defer leave()
	var all []string
	for {
		e, err := next()
		if err == io.EOF {
			return all
		}
		if err != nil {
			r.Fatal(err)
		}
		if e.name != e.data["type"] || e.id != fmt.Sprint(e.data["seq"]) || e.data["ts"] != "2023-11-14T22:13:20.000Z" {
			r.Errorf("got %+v", e)
		}
		all = append(all, shortFrame(e.data))
	}
}

// talker is a job whose program has said something and ended.
func (r *rig) talker() (cay.ID, []string) {
	id := r.job()
	r.jobs.runs(id)
	r.jobs.writes(id, "stdout", "a\xe2\x82")
	r.jobs.writes(id, "stdout", "\xacb")
	r.jobs.writes(id, "stderr", "\xff")
	r.jobs.add(id, cay.JobFrame{Type: "gap", Stream: "stdout", Bytes: 100})
	r.jobs.writes(id, "stdout", "end\n")
	r.jobs.finishes(id, 3)
	return id, []string{
		"status 1 data=queued attempt=0", "status 2 data=running attempt=1", "stdout 3 data=a", "stdout 7 data=€b", "stderr 8 data_base64=/w==",
		"gap 108 stream=stdout bytes=100", "stdout 112 data=end\n", "exit 113 data=failed exit_code=3 signal=<nil> timed_out=false duration_ms=1500",
	}
}

func expect(t *testing.T, got, want []string) {
	t.Helper()
	if strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestAStreamTellsAJobFromItsFirstByteToItsEnd(t *testing.T) {
	r := newRig(t)
	id, want := r.talker()
	path := "/v1/jobs/" + string(id) + "/stream"
	expect(t, r.frames(path), want)
	for n := range want { // behind each frame comes exactly the rest
		seq := strings.Fields(want[n])[1]
		expect(t, r.frames(path+"?seq="+seq), want[n+1:])
		expect(t, r.frames(path+"?seq=1", header("Last-Event-ID", seq)), want[n+1:])
	}
	// In the middle of a character comes what is left of it.
	expect(t, r.frames(path + "?seq=4")[:3], []string{"stdout 5 data_base64=gg==", "stdout 6 data_base64=rA==", "stdout 7 data=b"})
}

func TestAStreamGoesOnLiveWhileTheJobRuns(t *testing.T) {
	r := newRig(t)
	id := r.job()
	next, leave := r.follow("/v1/jobs/" + string(id) + "/stream")
	defer leave()
	want := func(line string) {
		t.Helper()
		e, err := next()
		if err != nil || shortFrame(e.data) != line {
			t.Fatalf("got %s, %v, want %s", shortFrame(e.data), err, line)
		}
	}
	want("status 1 data=queued attempt=0")
	r.jobs.runs(id)
	want("status 2 data=running attempt=1")
	r.jobs.writes(id, "stdout", "1")
	want("stdout 3 data=1")
	r.jobs.writes(id, "stdout", "2")
	want("stdout 4 data=2")
	r.jobs.ends(id, "exit", func(j *cay.Job) { j.Status, j.Signal = cay.JobCanceled, "KILL" })
	want("exit 5 data=canceled exit_code=<nil> signal=KILL timed_out=false duration_ms=<nil>")
	if _, err := next(); err != io.EOF {
		t.Errorf("then %v", err)
	}
}

func TestAJobThatNeverRanEndsItsStreamWithAnError(t *testing.T) {
	r := newRig(t)
	id := r.job()
	r.jobs.ends(id, "error", func(j *cay.Job) {
		j.Status, j.Fault = cay.JobError, &cay.JobFault{Reason: "no_capacity", Detail: "no room"}
	})
	expect(t, r.frames("/v1/jobs/" + string(id) + "/stream")[1:], []string{"error 2 data=error reason=no_capacity"})
	id = r.job()
	r.jobs.ends(id, "error", func(j *cay.Job) { j.Status = cay.JobCanceled })
	expect(t, r.frames("/v1/jobs/" + string(id) + "/stream")[1:], []string{"error 2 data=canceled reason=canceled"})
}

// socket opens a WebSocket without a subprotocol.
func (r *rig) socket(path string) *peer {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	r.Cleanup(cancel)
	conn, res, err := websocket.Dial(ctx, r.srv.URL+path, &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + adminKey}}})
	if err != nil {
		r.Fatalf("dial %s: %v (%v)", path, err, res)
	}
	conn.SetReadLimit(2 << 20)
	r.Cleanup(func() { _ = conn.CloseNow() })
	return &peer{r, ctx, conn}
}

// rest are the frames to the close.
func (p *peer) rest() (lines []string, code websocket.StatusCode) {
	p.Helper()
	for {
		kind, data, err := p.conn.Read(p.ctx)
		if err != nil {
			return lines, websocket.CloseStatus(err)
		}
		var m map[string]any
		if err := json.Unmarshal(data, &m); err != nil || kind != websocket.MessageText {
			p.Fatalf("got %v %q", kind, data)
		}
		lines = append(lines, shortFrame(m))
	}
}

func TestAWebSocketHasTheFramesAndClosesBehindTheLast(t *testing.T) {
	r := newRig(t)
	id, want := r.talker()
	got, code := r.socket("/v1/jobs/" + string(id) + "/stream").rest()
	expect(t, got, want)
	if code != websocket.StatusNormalClosure {
		t.Errorf("closed with %v", code)
	}
	got, _ = r.socket("/v1/jobs/" + string(id) + "/stream?seq=8").rest()
	expect(t, got, want[5:])
}

func TestWhatAClientSaysToAStreamIsIgnoredWithinBounds(t *testing.T) {
	r := newRig(t)
	id := r.job()
	p := r.socket("/v1/jobs/" + string(id) + "/stream")
	p.text("status")
	p.say(`{"type":"stdin"}`)
	p.say("nonsense")
	if err := p.conn.Write(p.ctx, websocket.MessageBinary, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	r.jobs.runs(id)
	p.text("status")
	big := r.socket("/v1/jobs/" + string(id) + "/stream")
	_ = big.conn.Write(big.ctx, websocket.MessageBinary, make([]byte, 2<<20))
	if _, code := big.rest(); code != websocket.StatusMessageTooBig {
		t.Errorf("too large a message closes with %v", code)
	}
}

func TestARestartClosesStreamsSoThatTheyGoOnElsewhere(t *testing.T) {
	r := newRig(t)
	id := r.job()
	path := "/v1/jobs/" + string(id) + "/stream"
	p := r.socket(path)
	p.text("status")
	next, leave := r.follow(path)
	defer leave()
	if _, err := next(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	closed := make(chan error, 1)
	go func() { closed <- r.api.Close(ctx) }()
	if got, code := p.rest(); code != websocket.StatusServiceRestart || len(got) > 0 {
		t.Errorf("closed with %v after %v", code, got)
	}
	if e, err := next(); err != io.EOF {
		t.Errorf("the events end with %+v, %v", e, err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

func TestAFaultEndsAStreamWithoutALastFrame(t *testing.T) {
	r := newRig(t)
	id := r.job()
	path := "/v1/jobs/" + string(id) + "/stream"
	p := r.socket(path)
	p.text("status")
	r.jobs.mu.Lock()
	r.jobs.fault = cay.Errorf(cay.Unavailable, "the worker is away")
	r.jobs.wake()
	r.jobs.mu.Unlock()
	if got, code := p.rest(); code != 4503 || len(got) > 0 {
		t.Errorf("closed with %v after %v", code, got)
	}
	expect(t, r.frames(path), []string{"status 1 data=queued attempt=0"})
}

func TestAStreamIsRefusedBeforeItBegins(t *testing.T) {
	r := newRig(t)
	path := "/v1/jobs/" + string(r.job()) + "/stream"
	upgrade := []with{header("Connection", "Upgrade"), header("Upgrade", "websocket"), header("Sec-WebSocket-Version", "13"), header("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")}
	none := "/v1/jobs/" + string(cay.NewID(cay.PrefixJob)) + "/stream"
	r.refused(r.do("GET", none, ""), cay.NotFound)
	r.refused(r.do("GET", none, "", upgrade...), cay.NotFound)
	r.status(r.do("HEAD", path, ""), 405)
	for field, opts := range map[string][]with{
		"Last-Event-ID":         {header("Last-Event-ID", "x")},
		"Sec-WebSocket-Version": append(upgrade[:3:3], header("Sec-WebSocket-Key", "short")),
	} {
		if a := r.refused(r.do("GET", path, "", opts...), cay.InvalidRequest); a.member(t, "field") != field {
			t.Errorf("the field is %v, want %s", a.member(t, "field"), field)
		}
	}
	for _, seq := range []string{"-1", "x", "1.5", "9223372036854775807", "99999999999999999999"} {
		if a := r.refused(r.do("GET", path+"?seq="+seq, ""), cay.InvalidRequest); a.member(t, "field") != "seq" {
			t.Errorf("%s: the field is %v", seq, a.member(t, "field"))
		}
	}
}

func TestATicketOpensAStream(t *testing.T) {
	r := newRig(t)
	id, _ := r.talker()
	for _, path := range []string{"/v1/jobs/" + string(id) + "/stream?seq=113", "/job/" + string(id) + "/stream?seq=113", "/stream?jobId=" + string(id) + "&seq=113"} {
		ticket := r.status(r.do("POST", "/v1/tickets", fmt.Sprintf(`{"method":"GET","url":%q}`, path)), 200).member(t, "ticket").(string)
		expect(t, r.frames(path+"&ticket="+ticket, noKey, header("Accept", eventStream)), nil)
		r.refused(r.do("GET", path+"&ticket="+ticket, "", noKey, header("Accept", eventStream)), cay.Unauthorized)
	}
}

func TestASilentStreamIsKeptAlive(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Keepalive = time.Millisecond })
	id := r.job()
	res, err := http.DefaultClient.Do(r.request("GET", "/v1/jobs/"+string(id)+"/stream?seq=1", ""))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b := make([]byte, len(": keep-alive\n\n"))
	if _, err := io.ReadFull(res.Body, b); err != nil || string(b) != ": keep-alive\n\n" {
		t.Errorf("got %q, %v", b, err)
	}
	pings := make(chan struct{}, 100)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, r.srv.URL+"/v1/jobs/"+string(id)+"/stream?seq=1", &websocket.DialOptions{
		HTTPHeader: http.Header{"Authorization": {"Bearer " + adminKey}},
		OnPingReceived: func(context.Context, []byte) bool {
			select {
			case pings <- struct{}{}:
			default:
			}
			return true
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	reading := conn.CloseRead(ctx)
	for range 3 {
		select {
		case <-pings:
		case <-reading.Done():
			t.Fatal("the connection ended")
		}
	}
}

// deaf opens a connection whose client reads nothing, with buffers that are soon full.
func (r *rig) deaf(path string, headers ...string) net.Conn {
	r.Helper()
	conn, err := net.Dial("tcp", r.srv.Listener.Addr().String())
	if err != nil {
		r.Fatal(err)
	}
	if err := conn.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		r.Fatal(err)
	}
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n%s\r\n\r\n", path, adminKey, strings.Join(headers, "\r\n"))
	return conn
}

func TestAReaderThatTakesNothingIsCutAndHoldsUpNobody(t *testing.T) {
	r := newRig(t, func(c *Config) { c.WriteTimeout = 3 * time.Second })
	id := r.job()
	r.jobs.runs(id)
	piece := strings.Repeat("x", 64<<10)
	for range 400 { // more than the kernel's buffers hold
		r.jobs.writes(id, "stdout", piece)
	}
	path := "/v1/jobs/" + string(id) + "/stream"
	upgrade := []string{"Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: " + base64.StdEncoding.EncodeToString(make([]byte, 16))}
	for _, headers := range [][]string{{"Accept: text/event-stream"}, upgrade} {
		defer r.deaf(path, headers...).Close()
	}
	// Another reader gets everything meanwhile.
	r.jobs.finishes(id, 0)
	if got, code := r.socket(path).rest(); code != websocket.StatusNormalClosure || len(got) < 400 {
		t.Errorf("%d frames, closed with %v", len(got), code)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.api.streams.Wait()
	}()
	select {
	case <-done:
	case <-ctx.Done():
		t.Error("the streams of readers that take nothing do not end")
	}
}

func TestAReaderThatWakesUpTooLateIsToldWhy(t *testing.T) {
	r := newRig(t, func(c *Config) { c.WriteTimeout = time.Minute })
	id := r.job()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f := r.api.follow(ctx, projectA, id, 0, inSnake)
	defer f.wait()
	defer cancel()
	f.patience = time.Millisecond
	for range 2 * frameWindow {
		r.jobs.writes(id, "stdout", "x")
	}
	r.eventually(func() bool { return len(f.frames) == frameWindow })
	f.wait()
	for range f.frames {
	}
	if cay.ReasonOf(f.err) != cay.SlowConsumer {
		t.Errorf("got %v", f.err)
	}
}
