package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

func TestTheURLThatExposePrintsOpensInABrowser(t *testing.T) {
	t.Parallel()
	id, want := box(t)
	want(0, "inside", "cp", "-", id+":page")
	want(0, "", "process", "start", id, "python3", "-m", "http.server", "--bind", "127.0.0.1", "8000")
	printed := strings.TrimSpace(want(0, "", "port", "expose", id, "8000"))
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	loopback := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		_, port, err := net.SplitHostPort(address) // as browsers do with names below localhost
		if err != nil {
			return nil, err
		}
		return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort("127.0.0.1", port))
	}}
	defer loopback.CloseIdleConnections()
	browser, stranger := &http.Client{Jar: jar, Transport: loopback}, &http.Client{Transport: loopback}
	get := func(c *http.Client, url string) (int, string) {
		res, err := c.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(body)
	}
	testkit.Eventually(t, time.Minute, "the server inside answers", func() error {
		if code, body := get(browser, printed); code != http.StatusOK {
			return &unexpected{code, body}
		}
		return nil
	})
	address, _, _ := strings.Cut(printed, "?")
	if code, body := get(browser, address+"page"); code != http.StatusOK || body != "inside" {
		t.Errorf("a page by the cookie: %d %q", code, body)
	}
	if code, _ := get(stranger, address+"page"); code != http.StatusUnauthorized {
		t.Errorf("a page without the token: %d", code)
	}
	want(0, "", "port", "expose", "--public", id, "8000")
	if code, body := get(stranger, address+"page"); code != http.StatusOK || body != "inside" {
		t.Errorf("a page of a public port: %d %q", code, body)
	}
	if out := want(0, "", "port", "ls", id); !strings.Contains(out, "8000") || !strings.Contains(out, "public") {
		t.Errorf("ls: %q", out)
	}
	want(0, "", "port", "rm", id, "8000")
	if code, _ := get(stranger, address+"page"); code != http.StatusNotFound {
		t.Errorf("a page of a port that was taken away: %d", code)
	}
}

type unexpected struct {
	status int
	body   string
}

func (e *unexpected) Error() string { return http.StatusText(e.status) + ": " + e.body }

func TestTheCommandLineWatchesFilesAndShowsUse(t *testing.T) {
	t.Parallel()
	id, want := box(t)
	watch := testkit.Server(t).CLI("watch", "-r", "-o", "json", id)
	out, err := watch.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	stop := time.AfterFunc(3*time.Minute, func() { _ = watch.Process.Kill() })
	defer stop.Stop()
	seen := ""
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var ev struct{ Type, Path string }
		if err := json.Unmarshal(lines.Bytes(), &ev); err != nil {
			t.Fatalf("%s: %v", lines.Bytes(), err)
		}
		if seen += ev.Type + " "; ev.Type == "ready" {
			want(0, "", "exec", id, "mkdir", "/workspace/new")
			continue
		}
		if ev.Path != "/workspace/new" || ev.Type != "create" {
			t.Errorf("told of %+v", ev)
		}
		break
	}
	if err := watch.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = watch.Wait() // its code is looked at below
	if code := watch.ProcessState.ExitCode(); code != 130 || seen != "ready create " {
		t.Errorf("saw %q, code %d", seen, code)
	}
	testkit.Eventually(t, time.Minute, "there is a sample", func() error {
		if out := want(0, "", "stats", id); strings.Count(out, "\n") != 2 {
			return &unexpected{0, out}
		}
		return nil
	})
	if out := want(0, "", "logs", "--system", id); !strings.Contains(out, "boot") {
		t.Errorf("logs --system: %q", out)
	}
}
