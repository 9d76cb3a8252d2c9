package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay/internal/testkit"
	"github.com/cayhq/cay/test/bench/harness"
)

const (
	byURL     = "Cay, a port's URL"
	byAPI     = "Cay, below the API's path"
	byNode    = "the node's connection to the port, without the proxy"
	portsPort = 3000

	portClients = 16 // connections that ask one request after another
	portSample  = time.Second
)

// ports measures small requests to a small server in a sandbox, with and without the proxy: what is between the two is the proxy's.
func (b *bench) ports(ctx context.Context, budget time.Duration) harness.Group {
	group := harness.Group{Name: "ports", Title: fmt.Sprintf("Small requests to a server in a sandbox, by %d clients", portClients), Unit: "requests/s", Base: byURL}
	site, err := b.serveSite(ctx)
	if err != nil {
		group.Series = []harness.Series{harness.Absent(byURL, err.Error())}
		return group
	}
	rate := func(name string, transport *http.Transport, ask func(context.Context) (*http.Request, error)) harness.Contender {
		return harness.Contender{Name: name, Sample: func(ctx context.Context) (float64, error) {
			defer transport.CloseIdleConnections()
			return requestRate(ctx, &http.Client{Transport: transport}, ask)
		}}
	}
	plain := func() *http.Transport { return &http.Transport{MaxIdleConnsPerHost: portClients} }
	raw := plain()
	raw.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return b.dialPort(ctx) }
	group.Series = harness.Interleave(ctx, b.plan(5, budget), []harness.Contender{
		rate(byURL, plain(), func(ctx context.Context) (*http.Request, error) {
			return b.cold.Request(ctx, "GET", "/small", nil, "Authorization", "", "Host", site.host, "Cay-Port-Token", site.token)
		}),
		rate(byAPI, plain(), func(ctx context.Context) (*http.Request, error) {
			return b.cold.Request(ctx, "GET", fmt.Sprintf("/v1/sandboxes/%s/ports/%d/small", b.box, portsPort), nil)
		}),
		rate(byNode, raw, func(ctx context.Context) (*http.Request, error) {
			return http.NewRequestWithContext(ctx, "GET", "http://localhost/small", nil)
		}),
	})
	return group
}

// site is a server in the bench's sandbox.
type site struct{ host, token string }

func (b *bench) serveSite(ctx context.Context) (site, error) {
	dir, err := os.MkdirTemp("", "webserver")
	if err != nil {
		return site{}, err
	}
	defer os.RemoveAll(dir)
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", filepath.Join(dir, "webserver"), "./test/webserver")
	build.Dir, build.Env = testkit.ModuleRoot(), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return site{}, fmt.Errorf("build the web server: %w: %s", err, out)
	}
	program, err := os.ReadFile(filepath.Join(dir, "webserver"))
	if err != nil {
		return site{}, err
	}
	path := "/v1/sandboxes/" + b.box
	if resp, err := b.cold.Do(ctx, "PUT", path+testkit.FilePath("/tmp/webserver", "mode", "0755"), program); err != nil || resp.Status != 200 {
		return site{}, fmt.Errorf("upload the web server: %v: %w", resp, err)
	}
	if _, err := b.cold.Exec(ctx, b.box, fmt.Sprintf("setsid /tmp/webserver 127.0.0.1:%d </dev/null >/dev/null 2>&1 &", portsPort)); err != nil {
		return site{}, err
	}
	err = testkit.Until(time.Minute, func() error {
		resp, err := b.cold.Do(ctx, "GET", fmt.Sprintf("%s/ports/%d/small", path, portsPort), nil)
		if err == nil && resp.Status != 200 {
			err = fmt.Errorf("%v", resp)
		}
		return err
	})
	if err != nil {
		return site{}, fmt.Errorf("the web server does not answer: %w", err)
	}
	var exposed struct{ URL, Token string }
	resp, err := b.cold.Do(ctx, "POST", path+"/ports", testkit.Fields{"port": portsPort})
	if err != nil {
		return site{}, err
	}
	if err := json.Unmarshal(resp.Body, &exposed); err != nil {
		return site{}, fmt.Errorf("expose the port: %v: %w", resp, err)
	}
	u, err := url.Parse(exposed.URL)
	if err != nil {
		return site{}, err
	}
	return site{u.Host, exposed.Token}, nil
}

// dialPort is what the proxy asks of a node.
func (b *bench) dialPort(ctx context.Context) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", filepath.Join(b.cold.RunDir(), "node.sock"))
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(conn, "GET /ports/%s/%d HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\nUpgrade: cay-port\r\n\r\n", b.box, portsPort); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	in := bufio.NewReader(conn)
	answer, err := http.ReadResponse(in, nil)
	if err == nil && answer.StatusCode != http.StatusSwitchingProtocols {
		err = fmt.Errorf("the node answered %s", answer.Status)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return bufferedConn{conn, in}, nil
}

type bufferedConn struct {
	net.Conn
	in *bufio.Reader
}

func (c bufferedConn) Read(p []byte) (int, error) { return c.in.Read(p) }

// requestRate is how many requests a second are answered while portClients ask.
func requestRate(ctx context.Context, client *http.Client, ask func(context.Context) (*http.Request, error)) (float64, error) {
	var answered atomic.Int64
	failed := make(chan error, portClients)
	begin := time.Now()
	var clients sync.WaitGroup
	for range portClients {
		clients.Go(func() {
			for time.Since(begin) < portSample {
				if err := askOnce(ctx, client, ask); err != nil {
					failed <- err
					return
				}
				answered.Add(1)
			}
		})
	}
	clients.Wait()
	took := time.Since(begin)
	select {
	case err := <-failed:
		return 0, err
	default:
		return float64(answered.Load()) / took.Seconds(), nil
	}
}

func askOnce(ctx context.Context, client *http.Client, ask func(context.Context) (*http.Request, error)) error {
	req, err := ask(ctx)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && (resp.StatusCode != 200 || !strings.Contains(string(body), "small")) {
		err = fmt.Errorf("answered %s: %.200s", resp.Status, body)
	}
	return err
}
