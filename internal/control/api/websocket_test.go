package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// peer is a client's end of a WebSocket.
type peer struct {
	*rig
	ctx  context.Context
	conn *websocket.Conn
}

func (r *rig) dial(path string) *peer {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	r.Cleanup(cancel)
	conn, res, err := websocket.Dial(ctx, r.srv.URL+path, &websocket.DialOptions{
		Subprotocols: []string{"cay.exec.v1"}, HTTPHeader: http.Header{"Authorization": {"Bearer " + adminKey}},
	})
	if err != nil {
		r.Fatalf("dial %s: %v (%v)", path, err, res)
	}
	conn.SetReadLimit(2 << 20)
	r.Cleanup(func() { _ = conn.CloseNow() })
	return &peer{r, ctx, conn}
}

func (p *peer) say(text string) {
	p.Helper()
	if err := p.conn.Write(p.ctx, websocket.MessageText, []byte(text)); err != nil {
		p.Fatal(err)
	}
}

func (p *peer) next() (websocket.MessageType, []byte) {
	p.Helper()
	kind, data, err := p.conn.Read(p.ctx)
	if err != nil {
		p.Fatal(err)
	}
	return kind, data
}

func (p *peer) text(kind string) map[string]any {
	p.Helper()
	mt, data := p.next()
	var m map[string]any
	if err := json.Unmarshal(data, &m); mt != websocket.MessageText || err != nil || m["type"] != kind {
		p.Fatalf("got %v %.300q, want %s", mt, data, kind)
	}
	return m
}

// closed reads to the end and returns the close code, and the last text message before.
func (p *peer) closed() (code websocket.StatusCode, last map[string]any) {
	p.Helper()
	for {
		_, data, err := p.conn.Read(p.ctx)
		if err != nil {
			return websocket.CloseStatus(err), last
		}
		last = nil
		_ = json.Unmarshal(data, &last)
	}
}

// cat gives back on stdout what it gets on stdin, and notes the rest.
func cat(notes chan<- string) func(context.Context, *nodev1.ProcessInput, *processStream) error {
	return func(_ context.Context, first *nodev1.ProcessInput, s *processStream) error {
		_ = s.Send(startedMsg(idOf(first), first.GetAttach().GetOffset()))
		at := int64(0)
		for {
			in, err := s.Receive()
			switch {
			case err != nil:
				notes <- "end"
				return err
			case in.GetCloseStdin():
				return s.Send(exitMsg(&nodev1.Exit{StdoutSize: at}))
			case in.GetResize() != nil:
				notes <- "resize"
			case in.GetDetach():
				notes <- "detach"
			default:
				_ = s.Send(dataMsg(cay.Stdout, at, string(in.GetStdin())))
				at += int64(len(in.GetStdin()))
			}
		}
	}
}

func TestAWebSocketRunsACommand(t *testing.T) {
	r := newRig(t)
	notes := make(chan string, 8)
	r.node.process = cat(notes)
	p := r.dial(r.box() + "/exec")
	p.say(`{"type":"start","command":"cat","tty":true,"cols":100,"rows":30}`)
	if m := p.text("started"); !strings.HasPrefix(m["process_id"].(string), "prc_") || m["offset"] != 0.0 || m["stdin_offset"] != 0.0 {
		t.Errorf("got %v", m)
	}
	p.say(`{"type":"ping"}`)
	p.text("pong")
	big := strings.Repeat("x", 300<<10)
	for _, s := range []string{"hello", big} {
		if err := p.conn.Write(p.ctx, websocket.MessageBinary, []byte(s)); err != nil {
			t.Fatal(err)
		}
		got := ""
		for len(got) < len(s) {
			kind, data := p.next()
			if kind != websocket.MessageBinary || data[0] != 1 {
				t.Fatalf("got %v %.20q", kind, data)
			}
			got += string(data[1:])
		}
		if got != s {
			t.Error("the echo differs")
		}
	}
	p.say(`{"type":"resize","cols":10,"rows":5}`)
	if n := <-notes; n != "resize" {
		t.Errorf("got %s", n)
	}
	p.say(`{"type":"signal","signal":"SIGINT","tree":true}`)
	p.say(`{"type":"close_stdin"}`)
	if m := p.text("exit"); m["ok"] != true || m["stdout_size"] != float64(5+len(big)) {
		t.Errorf("got %v", m)
	}
	if code, _ := p.closed(); code != websocket.StatusNormalClosure {
		t.Errorf("closed with %d", code)
	}
	if got := r.node.sentSignals(); len(got) != 1 || got[0] != "INT" {
		t.Errorf("got %v", got)
	}
}

func TestMalformedMessagesAre4400(t *testing.T) {
	r := newRig(t)
	r.node.process = cat(make(chan string, 8))
	for _, first := range []string{``, `{`, `[]`, `{"type":"resize","cols":1,"rows":1}`, `{"type":"start"}`, `{"type":"start","command":"x","nope":1}`, `{"type":"start","command":"x","command":"y"}`, `{"type":"start","command":"x","cols":5}`, `{"type":5}`} {
		p := r.dial(r.box() + "/exec")
		p.say(first)
		if code, last := p.closed(); code != 4400 || last["type"] != "error" || last["reason"] != "invalid_request" {
			t.Errorf("%q: closed with %d after %v", first, code, last)
		}
	}
	for _, later := range []string{`{`, `{"type":"nope"}`, `{"type":"resize"}`, `{"type":"resize","cols":70000,"rows":1}`, `{"type":"signal"}`, `{"type":"ping","cols":1}`, `{"type":"start","command":"x"}`, "\xff"} {
		p := r.dial(r.box() + "/exec")
		p.say(`{"type":"start","command":"x"}`)
		p.text("started")
		p.say(later)
		if code, last := p.closed(); code != 4400 || last["type"] != "error" {
			t.Errorf("%q: closed with %d after %v", later, code, last)
		}
	}
}

func TestAMessageThatIsTooLargeIs1009(t *testing.T) {
	r := newRig(t)
	r.node.process = cat(make(chan string, 8))
	p := r.dial(r.box() + "/exec")
	p.say(`{"type":"start","command":"x"}`)
	p.text("started")
	_ = p.conn.Write(p.ctx, websocket.MessageBinary, make([]byte, 1<<20+1))
	if code, _ := p.closed(); code != websocket.StatusMessageTooBig {
		t.Errorf("closed with %d", code)
	}
}

func TestNodeErrorsBecomeCloseCodes(t *testing.T) {
	r := newRig(t)
	for want, process := range map[websocket.StatusCode]func(context.Context, *nodev1.ProcessInput, *processStream) error{
		4422: func(context.Context, *nodev1.ProcessInput, *processStream) error {
			return cay.Errorf(cay.Unprocessable, "no /nope")
		},
		4503: says(dataMsg(cay.Stdout, 0, "x"), errorMsg(cay.SlowConsumer)),
		4410: func(ctx context.Context, first *nodev1.ProcessInput, s *processStream) error {
			_ = says(gapMsg(cay.Stdout, 0, 5))(ctx, first, s)
			return cay.Errorf(cay.Gone, "ended")
		},
		1011: func(context.Context, *nodev1.ProcessInput, *processStream) error { return errors.New("the inside") },
	} {
		r.node.process = process
		p := r.dial(r.box() + "/exec")
		p.say(`{"type":"start","command":"x"}`)
		if code, last := p.closed(); code != want || last["type"] != "error" || strings.Contains(last["detail"].(string), "inside") {
			t.Errorf("closed with %d after %v, want %d", code, last, want)
		}
	}
}

func TestAWebSocketAttaches(t *testing.T) {
	r := newRig(t)
	attached := make(chan *nodev1.AttachProcess, 1)
	r.node.process = func(ctx context.Context, first *nodev1.ProcessInput, s *processStream) error {
		attached <- first.GetAttach()
		return says(dataMsg(cay.Stderr, 5, "more"), exitMsg(&nodev1.Exit{}))(ctx, first, s)
	}
	id := string(cay.NewID(cay.PrefixProcess))
	for path, stdin := range map[string]bool{"/exec?process_id=" + id + "&offset=5": true, "/terminal?process_id=" + id + "&offset=5": true, "/processes/" + id + "/stream?offset=5": false} {
		p := r.dial(r.box() + path)
		if m := p.text("started"); m["process_id"] != id || m["offset"] != 5.0 {
			t.Errorf("got %v", m)
		}
		if kind, data := p.next(); kind != websocket.MessageBinary || string(data) != "\x02more" {
			t.Errorf("got %v %q", kind, data)
		}
		if a := <-attached; a.GetOffset() != 5 || a.GetTakeStdin() != stdin {
			t.Errorf("%s: got %v", path, a)
		}
		p.text("exit")
	}
}

func TestATerminalIsALoginShellThatHangsUp(t *testing.T) {
	r := newRig(t)
	starts := make(chan *nodev1.StartProcess, 1)
	notes := make(chan string, 8)
	inner := cat(notes)
	r.node.process = func(ctx context.Context, first *nodev1.ProcessInput, s *processStream) error {
		starts <- first.GetStart()
		return inner(ctx, first, s)
	}
	p := r.dial(r.box() + "/terminal?cols=120&rows=40&user=root&cwd=%2Ftmp")
	p.text("started")
	if st := <-starts; !st.Spec.Tty || !st.Spec.Login || st.Spec.Cols != 120 || st.Spec.Rows != 40 || st.Spec.User != "root" || st.Spec.Cwd != "/tmp" || !st.HangupOnDisconnect || st.Foreground {
		t.Errorf("got %v", st)
	}
	_ = p.conn.Close(websocket.StatusNormalClosure, "")
	deadline := time.Now().Add(time.Minute)
	for len(r.node.sentSignals()) < 2 && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	if got := strings.Join(r.node.sentSignals(), " "); got != "HUP KILL" {
		t.Errorf("got %s", got)
	}
}

func TestALostConnectionOnlyDetaches(t *testing.T) {
	r := newRig(t)
	notes := make(chan string, 8)
	r.node.process = cat(notes)
	p := r.dial(r.box() + "/terminal")
	p.text("started")
	_ = p.conn.CloseNow()
	if n := <-notes; n != "end" {
		t.Errorf("got %s", n)
	}
	if got := r.node.sentSignals(); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}

func TestCloseEndsWebSocketsWith1012(t *testing.T) {
	r := newRig(t)
	notes := make(chan string, 8)
	r.node.process = cat(notes)
	running := r.dial(r.box() + "/exec")
	running.say(`{"type":"start","command":"x","kill_on_disconnect":true}`)
	running.text("started")
	waiting := r.dial(r.box() + "/exec")
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = r.api.Close(ctx)
	}()
	for _, p := range []*peer{running, waiting} {
		if code, last := p.closed(); code != websocket.StatusServiceRestart || last["reason"] != "unavailable" {
			t.Errorf("closed with %d after %v", code, last)
		}
	}
	if n := <-notes; n != "detach" {
		t.Errorf("the node was told %s", n)
	}
}

func TestPingsComeWhileNothingDoes(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Keepalive = 10 * time.Millisecond })
	r.node.process = cat(make(chan string, 8))
	pinged := make(chan struct{}, 1)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, r.srv.URL+r.box()+"/terminal", &websocket.DialOptions{
		Subprotocols: []string{"cay.exec.v1"}, HTTPHeader: http.Header{"X-API-Key": {adminKey}},
		OnPingReceived: func(context.Context, []byte) bool {
			select {
			case pinged <- struct{}{}:
			default:
			}
			return true
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			if _, _, err := conn.Read(ctx); err != nil {
				return
			}
		}
	}()
	select {
	case <-pinged:
	case <-ctx.Done():
		t.Error("no ping came")
	}
	_ = conn.CloseNow()
	<-done
}

func TestAHandshakeThatIsNoneIsAProblem(t *testing.T) {
	r := newRig(t)
	box := r.box()
	a := r.refused(r.do("GET", box+"/exec", ""), cay.InvalidRequest)
	if a.Header.Get("Upgrade") != "websocket" {
		t.Errorf("got %v", a.Header)
	}
	up := []with{header("Connection", "Upgrade"), header("Upgrade", "websocket")}
	r.refused(r.do("GET", box+"/exec", "", up...), cay.InvalidRequest)
	r.refused(r.do("GET", box+"/terminal?cols=0", "", up...), cay.InvalidRequest)
	r.refused(r.do("GET", "/v1/sandboxes/"+string(r.boxes.add(projectA, cay.Creating))+"/terminal", "", append(up, header("Sec-WebSocket-Protocol", "cay.exec.v1"), header("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="), header("Sec-WebSocket-Version", "13"))...), cay.NotReady)
}

func TestABrowserOpensATerminalWithATicket(t *testing.T) {
	r := newRig(t)
	r.node.process = cat(make(chan string, 8))
	box := r.box()
	a := r.status(r.do("POST", "/v1/tickets", `{"method":"GET","url":"`+box+`/terminal?rows=24&cols=80"}`), 200)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	url := r.srv.URL + box + "/terminal?cols=80&rows=24&ticket=" + a.member(t, "ticket").(string)
	conn, _, err := websocket.Dial(ctx, url, &websocket.DialOptions{Subprotocols: []string{"cay.exec.v1"}})
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.CloseNow()
	if _, res, err := websocket.Dial(ctx, url, &websocket.DialOptions{Subprotocols: []string{"cay.exec.v1"}}); err == nil || res.StatusCode != 401 {
		t.Errorf("the ticket was good twice: %v", err)
	}
}
