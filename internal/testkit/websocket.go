package testkit

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/coder/websocket"
)

// Subprotocol is what exec and terminal sockets speak.
const Subprotocol = "cay.exec.v1"

// Socket is a WebSocket of an exec or a terminal.
type Socket struct {
	Conn *websocket.Conn
}

// DialSocket opens a WebSocket. A refusal is returned as the answer, without a socket.
func (c *Client) DialSocket(ctx context.Context, path string) (*Socket, Response, error) {
	header := http.Header{}
	if c.Key != "" {
		header.Set("Authorization", "Bearer "+c.Key)
	}
	conn, resp, err := websocket.Dial(ctx, strings.Replace(c.URL, "http", "ws", 1)+path, &websocket.DialOptions{
		HTTPHeader: header, HTTPClient: c.HTTP, Subprotocols: []string{Subprotocol},
	})
	if err != nil {
		if resp != nil {
			return nil, Response{Status: resp.StatusCode, Header: resp.Header}, nil
		}
		return nil, Response{}, err
	}
	if conn.Subprotocol() != Subprotocol {
		conn.CloseNow()
		return nil, Response{}, fmt.Errorf("the server chose subprotocol %q", conn.Subprotocol())
	}
	conn.SetReadLimit(4 << 20)
	return &Socket{conn}, Response{Status: 101}, nil
}

// Dial opens a WebSocket of the sandbox that is dropped at the end of the test.
func (s *Sandbox) Dial(ctx context.Context, rest string) *Socket {
	s.t.Helper()
	socket, resp, err := s.DialSocket(ctx, s.Path(rest))
	if err != nil || socket == nil {
		s.t.Fatalf("open a WebSocket at %s: %v %v", rest, err, resp)
	}
	s.t.Cleanup(func() { socket.Drop() })
	return socket
}

// Send sends a control message.
func (w *Socket) Send(ctx context.Context, message Fields) error {
	raw, err := json.Marshal(message)
	if err != nil {
		return err
	}
	return w.Conn.Write(ctx, websocket.MessageText, raw)
}

// Start sends the first message of an exec.
func (w *Socket) Start(ctx context.Context, command any, more ...Fields) error {
	return w.Send(ctx, Fields{"type": "start", "command": command}.With(more...))
}

// Stdin sends input, split as the limit of a message asks.
func (w *Socket) Stdin(ctx context.Context, data []byte) error {
	const run = 256 << 10
	for len(data) > 0 {
		n := min(run, len(data))
		if err := w.Conn.Write(ctx, websocket.MessageBinary, data[:n]); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// Drop cuts the connection without a closing handshake, as a lost network does.
func (w *Socket) Drop() { _ = w.Conn.CloseNow() }

// Leave closes with 1000, as a client does that has had enough.
func (w *Socket) Leave() error { return w.Conn.Close(websocket.StatusNormalClosure, "") }

// SocketMessage is a control message of the server.
type SocketMessage struct {
	Type        string `json:"type"`
	ProcessID   string `json:"process_id"`
	Offset      int64  `json:"offset"`
	StdinOffset int64  `json:"stdin_offset"`
	Stream      string `json:"stream"`
	Bytes       int64  `json:"bytes"`
	Reason      string `json:"reason"`
	Detail      string `json:"detail"`
}

// Next reads one message: a control message, or a run of output with its channel.
func (w *Socket) Next(ctx context.Context) (msg SocketMessage, raw []byte, channel byte, err error) {
	kind, data, err := w.Conn.Read(ctx)
	if err != nil {
		return msg, nil, 0, err
	}
	if kind == websocket.MessageBinary {
		if len(data) == 0 {
			return msg, nil, 0, fmt.Errorf("an empty binary message")
		}
		return msg, data[1:], data[0], nil
	}
	if err := json.Unmarshal(data, &msg); err != nil {
		return msg, nil, 0, fmt.Errorf("control message %q: %w", data, err)
	}
	return msg, data, 0, nil
}

// Collect reads into tr until stop says so or the connection ends. After an exit or error message the close of the server is awaited
// and its code returned; otherwise the code is -1 and the error says how it broke.
func (w *Socket) Collect(ctx context.Context, tr *Transcript, stop func(*Transcript) bool) (websocket.StatusCode, error) {
	for stop == nil || !stop(tr) {
		msg, raw, channel, err := w.Next(ctx)
		if err != nil {
			if tr.Exit != nil || tr.Error != nil {
				return websocket.CloseStatus(err), nil
			}
			return websocket.CloseStatus(err), fmt.Errorf("the socket ended without an exit: %w", err)
		}
		tr.Events++
		switch channel {
		case 1:
			tr.Stdout = append(tr.Stdout, raw...)
		case 2:
			tr.Stderr = append(tr.Stderr, raw...)
		case 0:
			switch msg.Type {
			case "started":
				tr.ProcessID, tr.StartOffset = msg.ProcessID, msg.Offset
			case "gap":
				tr.Gaps = append(tr.Gaps, Gap{msg.Stream, msg.Offset, msg.Bytes})
			case "error":
				tr.Error = &Problem{Reason: msg.Reason, Detail: msg.Detail}
			case "exit":
				tr.Exit = new(ExecResult)
				if err := json.Unmarshal(raw, tr.Exit); err != nil {
					return -1, err
				}
			}
		default:
			return -1, fmt.Errorf("output on channel %d", channel)
		}
	}
	return -1, nil
}
