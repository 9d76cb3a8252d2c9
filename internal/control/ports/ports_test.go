package ports

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cayhq/cay"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	project = cay.NewID(cay.PrefixProject)
	box     = cay.NewID(cay.PrefixSandbox)
)

// fakeStore keeps ports in memory and counts what is looked up.
type fakeStore struct {
	mu      sync.Mutex
	rows    map[key]cay.Port
	lookups int
}

func (s *fakeStore) PutPort(_ context.Context, p cay.Port, _ int64) (cay.Port, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := key{p.SandboxID, p.Number}
	old, there := s.rows[k]
	if there {
		old.Public = p.Public
		p = old
	}
	s.rows[k] = p
	return p, !there, nil
}

func (s *fakeStore) Port(_ context.Context, sandbox cay.ID, number int) (cay.Port, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lookups++
	p, ok := s.rows[key{sandbox, number}]
	if !ok {
		return p, cay.Errorf(cay.NotFound, "there is no port %d", number)
	}
	return p, nil
}

func (s *fakeStore) Ports(_ context.Context, sandbox cay.ID) ([]cay.Port, error) { return nil, nil }

func (s *fakeStore) DeletePort(_ context.Context, sandbox cay.ID, number int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.rows, key{sandbox, number})
	return nil
}

// fakeLife has one sandbox.
type fakeLife struct {
	mu     sync.Mutex
	status cay.Status
	enters int
}

func (l *fakeLife) Get(_ context.Context, p, id cay.ID) (*cay.Sandbox, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p != project || id != box {
		return nil, cay.Errorf(cay.NotFound, "there is no sandbox %s", id)
	}
	return &cay.Sandbox{ID: id, ProjectID: p, Status: l.status, WorkerID: "wrk_1"}, nil
}

func (l *fakeLife) Enter(ctx context.Context, p, id cay.ID) (*cay.Sandbox, error) {
	sb, err := l.Get(ctx, p, id)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.enters++
	return sb, sb.Usable()
}

type fakeTokens struct{}

func (fakeTokens) PortToken(_ context.Context, p cay.Port) (string, error) {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %x", p.SandboxID, p.Number, p.Nonce))
	return hex.EncodeToString(sum[:]), nil
}

// fakeNodes has a server on port 3000 of the sandbox; whatever a test lets it be.
type fakeNodes struct {
	mu    sync.Mutex
	serve func(net.Conn)
	work  sync.WaitGroup
	dials int
}

func (n *fakeNodes) DialPort(_ context.Context, worker, sandbox cay.ID, port int) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dials++
	if worker != "wrk_1" || sandbox != box || port != 3000 {
		return nil, cay.Errorf(cay.Unavailable, "nothing listens on port %d of the sandbox", port).After(time.Second)
	}
	ours, theirs := net.Pipe()
	n.work.Go(func() {
		defer theirs.Close()
		n.serve(theirs)
	})
	return ours, nil
}

type rig struct {
	*testing.T
	ports *Ports
	store *fakeStore
	life  *fakeLife
	nodes *fakeNodes
	token string
	host  string
}

// newRig exposes port 3000, at which serve answers each connection.
func newRig(t *testing.T, serve func(net.Conn)) *rig {
	t.Helper()
	r := &rig{T: t, store: &fakeStore{rows: map[key]cay.Port{}}, life: &fakeLife{status: cay.Ready}, nodes: &fakeNodes{serve: serve}}
	r.ports = New(Config{Domain: "localhost:8080", Scheme: "http"}, r.store, r.life, r.nodes, fakeTokens{})
	exposed, created, err := r.ports.Expose(t.Context(), project, box, 3000, false)
	if err != nil || !created {
		t.Fatal(created, err)
	}
	r.token, r.host = exposed.Token, strings.Trim(strings.TrimPrefix(exposed.URL, "http:"), "/")
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := r.ports.Close(ctx); err != nil {
			t.Error(err)
		}
		r.nodes.work.Wait()
	})
	return r
}

func (r *rig) ask(path string) (*httptest.ResponseRecorder, error) {
	req := httptest.NewRequest("GET", path, nil)
	req.Host = r.host
	req.Header.Set("Cay-Port-Token", r.token)
	w := httptest.NewRecorder()
	return w, r.ports.ServeHost(w, req)
}

// answers serves every request of a connection with the same bytes.
func answers(raw string) func(net.Conn) {
	return func(c net.Conn) {
		in := bufio.NewReader(c)
		for {
			req, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, req.Body)
			if _, err := io.WriteString(c, raw); err != nil {
				return
			}
		}
	}
}

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

func TestConnectionsAreUsedAgainAndRowsRememberedForAMoment(t *testing.T) {
	r := newRig(t, answers(ok))
	for range 20 {
		if w, err := r.ask("/"); err != nil || w.Code != 200 || w.Body.String() != "ok" {
			t.Fatalf("%v %v", w, err)
		}
	}
	if r.nodes.dials != 1 || r.store.lookups != 1 || r.life.enters != 20 {
		t.Errorf("20 requests made %d connections, %d looks at the store and %d uses", r.nodes.dials, r.store.lookups, r.life.enters)
	}
}

func TestWhatAnotherServerRemovedIsSeenSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, answers(ok))
		if w, err := r.ask("/"); err != nil || w.Code != 200 {
			t.Fatalf("%v %v", w, err)
		}
		_ = r.store.DeletePort(t.Context(), box, 3000)
		time.Sleep(rowPeriod)
		if _, err := r.ask("/"); cay.ReasonOf(err) != cay.NotFound {
			t.Errorf("got %v", err)
		}
	})
}

func TestAStrangerWakesNobody(t *testing.T) {
	r := newRig(t, answers(ok))
	r.token = "wrong"
	for range 3 {
		if _, err := r.ask("/"); cay.ReasonOf(err) != cay.Unauthorized {
			t.Fatalf("got %v", err)
		}
	}
	if r.life.enters != 0 || r.nodes.dials != 0 {
		t.Errorf("%d uses, %d connections", r.life.enters, r.nodes.dials)
	}
}

func TestAnEndedSandboxIsGoneWithOrWithoutAToken(t *testing.T) {
	for _, status := range []cay.Status{cay.Terminating, cay.Terminated, cay.Failed} {
		r := newRig(t, answers(ok))
		r.life.status = status
		for _, token := range []string{r.token, "wrong"} {
			r.token = token
			if _, err := r.ask("/"); cay.ReasonOf(err) != cay.Gone {
				t.Errorf("%s: %v", status, err)
			}
		}
		if _, _, err := r.ports.Expose(t.Context(), project, box, 1, false); cay.ReasonOf(err) != cay.Gone {
			t.Errorf("expose, %s: %v", status, err)
		}
	}
}

func TestAServerThatBreaksHTTPIsUnavailable(t *testing.T) {
	for name, raw := range map[string]string{
		"nothing":              "",
		"no HTTP":              "220 mail.example ESMTP\r\n",
		"an endless header":    "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 2*maxHeader),
		"two lengths":          "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
		"an unasked switch":    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
		"a header that is bad": "HTTP/1.1 200 OK\r\nX\x00: y\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(c net.Conn) {
				_, _ = http.ReadRequest(bufio.NewReader(c))
				_, _ = io.WriteString(c, raw)
			})
			w, err := r.ask("/")
			if cay.ReasonOf(err) != cay.Unavailable || w.Body.Len() > 0 {
				t.Errorf("%v, %q", err, w.Body)
			}
		})
	}
}

func TestRequestsAreBoundedAndComeBack(t *testing.T) {
	r := newRig(t, answers(ok))
	var leaves []func()
	for {
		leave, err := r.ports.enter(box)
		if err != nil {
			break
		}
		leaves = append(leaves, leave)
	}
	if len(leaves) != maxRequestsOfOne {
		t.Errorf("%d requests of one sandbox", len(leaves))
	}
	if _, err := r.ask("/"); cay.ReasonOf(err) != cay.Unavailable {
		t.Errorf("one more: %v", err)
	}
	other, err := r.ports.enter(cay.NewID(cay.PrefixSandbox))
	if err != nil {
		t.Errorf("another sandbox's: %v", err)
	} else {
		other()
	}
	for _, leave := range leaves {
		leave()
	}
	if w, err := r.ask("/"); err != nil || w.Code != 200 {
		t.Errorf("afterwards: %v %v", w, err)
	}
}

func TestAConnectionOnWhichNothingMovesEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }) // takes everything and says nothing
		begun := time.Now()
		_, err := r.ask("/")
		if cay.ReasonOf(err) != cay.Unavailable || time.Since(begun) < idle || time.Since(begun) > idle+2*time.Minute {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
	})
}

func TestRemoveCutsWhatCameByTheURLAndNothingElse(t *testing.T) {
	begun := make(chan struct{}, 2)
	r := newRig(t, func(c net.Conn) {
		in := bufio.NewReader(c)
		_, _ = http.ReadRequest(in)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
		begun <- struct{}{}
		_, _ = io.Copy(io.Discard, in)
	})
	cut, whole := make(chan any, 1), make(chan any, 1)
	var asking sync.WaitGroup
	defer asking.Wait()
	outcome := func(to chan any, serve func() error) {
		defer func() { to <- recover() }() // a cut answer ends in http.ErrAbortHandler, or as this says in an error
		if err := serve(); err != nil {
			panic(err)
		}
	}
	server := context.WithValue(t.Context(), http.ServerContextKey, &http.Server{}) // as a real one: a broken answer is aborted
	ctx, leave := context.WithCancel(server)
	defer leave()
	asking.Go(func() {
		outcome(cut, func() error {
			req := httptest.NewRequest("GET", "/", nil).WithContext(server)
			req.Host = r.host
			req.Header.Set("Cay-Port-Token", r.token)
			return r.ports.ServeHost(httptest.NewRecorder(), req)
		})
	})
	asking.Go(func() {
		outcome(whole, func() error {
			return r.ports.ServePath(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil).WithContext(ctx), project, box, 3000, "/")
		})
	})
	<-begun
	<-begun
	if err := r.ports.Remove(t.Context(), project, box, 3000); err != nil {
		t.Fatal(err)
	}
	if p := <-cut; p == nil {
		t.Error("the answer by the URL went on to its end")
	}
	select {
	case p := <-whole:
		t.Errorf("the answer below the path was cut: %v", p)
	default:
	}
	leave()
	<-whole
}

func TestCloseEndsStreamsAndRefusesWhatComesLater(t *testing.T) {
	begun := make(chan struct{})
	r := newRig(t, func(c net.Conn) {
		_, _ = http.ReadRequest(bufio.NewReader(c))
		close(begun)
		_, _ = io.Copy(io.Discard, c)
	})
	ended := make(chan error, 1)
	go func() {
		_, err := r.ask("/")
		ended <- err
	}()
	<-begun
	if err := r.ports.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("the request went on to its end")
	}
	if _, err := r.ask("/"); cay.ReasonOf(err) != cay.Unavailable {
		t.Errorf("a later one: %v", err)
	}
}

func TestAClientThatGoesAwayIsNoFaultOfTheSandbox(t *testing.T) {
	r := newRig(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := r.ports.ServePath(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil).WithContext(ctx), project, box, 3000, "/")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
