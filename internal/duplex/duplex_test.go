package duplex_test

import (
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cayhq/cay/internal/duplex"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair is two ends of a unix socket.
func pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	addr := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"}
	l, err := net.ListenUnix("unix", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = net.DialUnix("unix", nil, addr); err != nil {
		t.Fatal(err)
	}
	if b, err = l.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// joined is a client and a server with a Join between them; over is closed when it has returned.
func joined(t *testing.T) (client, server *net.UnixConn, over <-chan struct{}) {
	t.Helper()
	client, left := pair(t)
	right, server := pair(t)
	done := make(chan struct{})
	go func() {
		duplex.Join(left, left, right)
		left.Close()
		right.Close()
		close(done)
	}()
	return client, server, done
}

func awaited(t *testing.T, over <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-over:
	case <-time.After(time.Minute):
		t.Fatal(what)
	}
}

func TestEachDirectionEndsByItself(t *testing.T) {
	client, server, over := joined(t)
	go func() {
		io.WriteString(client, "question")
		client.CloseWrite()
	}()
	if asked, err := io.ReadAll(server); string(asked) != "question" || err != nil {
		t.Fatalf("%q, %v", asked, err)
	}
	go func() {
		io.WriteString(server, "answer")
		server.CloseWrite()
	}()
	if told, err := io.ReadAll(client); string(told) != "answer" || err != nil {
		t.Fatalf("%q, %v", told, err)
	}
	awaited(t, over, "it goes on although both directions have ended")
}

func TestAClientThatLeavesADeafServerEndsIt(t *testing.T) {
	client, server, over := joined(t)
	client.Close()
	if all, err := io.ReadAll(server); len(all) != 0 || err != nil { // it hears of the end, and says nothing
		t.Fatalf("%q, %v", all, err)
	}
	awaited(t, over, "the connection to the server is kept")
}

func TestAServerThatBreaksOffEndsTheClientsConnection(t *testing.T) {
	client, server, over := joined(t)
	server.Close()
	if told, err := io.ReadAll(client); len(told) != 0 || err != nil {
		t.Fatalf("%q, %v", told, err)
	}
	client.Close()
	awaited(t, over, "it goes on without a server")
}
