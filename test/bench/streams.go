package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/coder/websocket"

	"github.com/cayhq/cay/internal/testkit"
	"github.com/cayhq/cay/test/bench/harness"
	"github.com/cayhq/cay/test/bench/peer"
)

const (
	cayWebSocket = "Cay, WebSocket"
	caySSE       = "Cay, SSE (base64)"
)

// streamed are the peers whose streams are measured: those that targets and readers ask about, as each sample takes seconds.
var streamed = map[string]bool{peer.AgentName: true, "runsc": true, "docker": true}

// runBytes is the size of the writes of the streamed program.
const runBytes = 128 << 10

// streams measures how fast the output of a program arrives, and what the server's processes grow by meanwhile.
func (b *bench) streams(ctx context.Context, total int64, budget time.Duration) (throughput, growth harness.Group) {
	argv := []string{"/bin/dd", "if=/dev/zero", "bs=" + strconv.Itoa(runBytes), "count=" + strconv.FormatInt(total/runBytes, 10), "status=none"}
	total = total / runBytes * runBytes
	watch := newWatch(b.cold)
	rate := func(ctx context.Context, stream func(context.Context) (int64, error)) (float64, error) {
		begin := time.Now()
		n, err := stream(ctx)
		if err == nil && n != total {
			err = fmt.Errorf("%d bytes arrived of %d", n, total)
		}
		return float64(n) / 1e6 / time.Since(begin).Seconds(), err
	}
	var contenders []harness.Contender
	for _, way := range []struct {
		name   string
		stream func(context.Context, []string) (int64, error)
	}{{cayWebSocket, b.overWebSocket}, {caySSE, b.overSSE}} {
		contenders = append(contenders, harness.Contender{Name: way.name, Sample: func(ctx context.Context) (float64, error) {
			defer watch.during()()
			return rate(ctx, func(ctx context.Context) (int64, error) { return way.stream(ctx, argv) })
		}})
	}
	throughput = harness.Group{Name: "stream", Title: fmt.Sprintf("Exec stream of %d MiB", total>>20), Unit: "MB/s", Base: cayWebSocket}
	for _, p := range b.peers {
		execer, ok := p.Peer.(peer.Execer)
		if !ok || !streamed[p.Name()] {
			continue
		}
		if p.absent != "" {
			throughput.Series = append(throughput.Series, harness.Absent(execName(p.Name()), p.absent))
			continue
		}
		contenders = append(contenders, harness.Contender{Name: execName(p.Name()), Sample: func(ctx context.Context) (float64, error) {
			return rate(ctx, func(ctx context.Context) (int64, error) {
				var n counter
				err := execer.Exec(ctx, &n, argv...)
				return int64(n), err
			})
		}})
	}
	plan := b.plan(5, budget)
	plan.Warmup = false // the first bytes are a small part of a sample
	plan.Least = min(plan.Least, 2)
	throughput.Series = append(harness.Interleave(ctx, plan, contenders), throughput.Series...)
	return throughput, watch.group()
}

// counter counts what is written to it.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// overWebSocket streams a program's output in binary messages and returns how much arrived.
func (b *bench) overWebSocket(ctx context.Context, argv []string) (int64, error) {
	socket, resp, err := b.cold.DialSocket(ctx, "/v1/sandboxes/"+b.box+"/exec")
	if err != nil {
		return 0, err
	}
	if socket == nil {
		return 0, fmt.Errorf("open a WebSocket: %v", resp)
	}
	defer socket.Drop()
	if err := socket.Start(ctx, argv); err != nil {
		return 0, err
	}
	var arrived int64
	for {
		kind, message, err := socket.Conn.Reader(ctx)
		if err != nil {
			return arrived, err
		}
		if kind == websocket.MessageBinary {
			n, err := io.Copy(io.Discard, message)
			arrived += n - 1 // the byte that names the channel
			if err != nil {
				return arrived, err
			}
			continue
		}
		text, err := io.ReadAll(message)
		if err != nil {
			return arrived, err
		}
		if done, err := ended(text); done || err != nil {
			return arrived, err
		}
	}
}

// ended reads a control message: an exit ends the stream, an error fails it, a gap is no way to be fast.
func ended(text []byte) (bool, error) {
	var message struct {
		Type   string
		Reason string
		Detail string
		OK     bool
	}
	if err := json.Unmarshal(text, &message); err != nil {
		return false, fmt.Errorf("control message %q: %w", text, err)
	}
	switch message.Type {
	case "exit":
		if !message.OK {
			return true, fmt.Errorf("the command failed: %s", text)
		}
		return true, nil
	case "error", "gap":
		return false, fmt.Errorf("the stream said %s", text)
	}
	return false, nil
}

// overSSE streams a program's output as events and returns how much arrived.
func (b *bench) overSSE(ctx context.Context, argv []string) (int64, error) {
	req, err := b.cold.Request(ctx, "POST", "/v1/sandboxes/"+b.box+"/exec", testkit.Fields{"command": argv, "encoding": "base64"}, "Accept", "text/event-stream")
	if err != nil {
		return 0, err
	}
	resp, err := b.cold.HTTP.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		return 0, fmt.Errorf("exec as events: status %d", resp.StatusCode)
	}
	return countEvents(bufio.NewReaderSize(resp.Body, 1<<20))
}

// countEvents reads an exec's events and adds up the bytes that their data_base64 stands for. It counts and does not decode: a
// client's decoder is not what is measured.
func countEvents(r *bufio.Reader) (int64, error) {
	var (
		event   string
		arrived int64
	)
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return arrived, fmt.Errorf("the stream ended without an exit: %w", err)
		}
		line = bytes.TrimRight(line, "\r\n")
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			event = string(value)
		case "data":
			switch event {
			case "stdout":
				n, err := base64Size(value)
				if err != nil {
					return arrived, err
				}
				arrived += n
			case "exit":
				return arrived, nil
			case "error", "gap":
				return arrived, fmt.Errorf("the stream said %s %s", event, value)
			}
		}
	}
}

var errNoData = errors.New("a stdout event without data_base64")

// base64Size is the size of what the data_base64 member of a JSON object stands for.
func base64Size(object []byte) (int64, error) {
	_, rest, ok := bytes.Cut(object, []byte(`"data_base64":`))
	if !ok {
		return 0, errNoData
	}
	_, rest, ok = bytes.Cut(rest, []byte(`"`))
	if !ok {
		return 0, errNoData
	}
	text, _, ok := bytes.Cut(rest, []byte(`"`))
	if !ok || len(text)%4 != 0 {
		return 0, errNoData
	}
	padding := len(text) - len(bytes.TrimRight(text, "="))
	return int64(len(text)/4*3 - padding), nil
}
