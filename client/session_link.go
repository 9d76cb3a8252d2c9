package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/coder/websocket"
)

// started is the server's first message of a connection.
type started struct {
	ProcessID   string `json:"process_id"`
	Offset      int64  `json:"offset"`
	StdinOffset int64  `json:"stdin_offset"`
}

// link is one connection that has said started.
type link struct {
	conn    *websocket.Conn
	watch   *watchdog // closes conn when it falls silent
	started started
}

func (l *link) end() {
	l.watch.stop()
	l.conn.CloseNow()
}

func (s *Session) attach(ctx context.Context) (*link, error) {
	query := url.Values{"process_id": {s.ProcessID()}, "offset": {strconv.FormatInt(s.offset, 10)}}
	return s.dial(ctx, query, nil)
}

// dial connects, sends start if there is one, and reads up to the server's started.
func (s *Session) dial(ctx context.Context, query url.Values, start map[string]any) (_ *link, err error) {
	c := s.c
	l := new(link)
	header := http.Header{}
	c.authorize(header)
	target := c.endpoint(query, sandboxPath(s.sandbox, s.route)...)
	handshake, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel() // it bounds the handshake alone
	conn, res, err := websocket.Dial(handshake, target, &websocket.DialOptions{
		HTTPClient: c.http, HTTPHeader: header, Subprotocols: []string{subprotocol},
		OnPingReceived: func(context.Context, []byte) bool { l.watch.feed(); return true },
	})
	if err != nil {
		if res != nil && res.StatusCode >= 400 {
			var body []byte
			if res.Body != nil {
				body, _ = io.ReadAll(io.LimitReader(res.Body, maxErrorBytes))
				res.Body.Close()
			}
			return nil, problemOf(res.StatusCode, res.Header, body)
		}
		return nil, fmt.Errorf("connect to %s: %w", c.endpoint(nil, sandboxPath(s.sandbox, s.route)...), err)
	}
	l.conn, l.watch = conn, newWatchdog(c.silence, func() { conn.CloseNow() })
	defer func() {
		if err != nil {
			l.end()
		}
	}()
	conn.SetReadLimit(s.readLimit())
	if conn.Subprotocol() != subprotocol {
		return nil, fmt.Errorf("%w: it does not speak %s", errProtocol, subprotocol)
	}
	if start != nil {
		if err := writeJSON(ctx, conn, start); err != nil {
			return nil, &startSentError{err}
		}
	}
	for {
		kind, data, err := conn.Read(ctx)
		if err != nil {
			if start != nil {
				return nil, &startSentError{closeError(err)}
			}
			return nil, closeError(err)
		}
		l.watch.feed()
		if kind != websocket.MessageText {
			return nil, fmt.Errorf("%w: data before started", errProtocol)
		}
		m, err := parseMessage(data)
		if err != nil {
			return nil, err
		}
		switch m.Type {
		case "started":
			l.started = started{ProcessID: m.ProcessID, Offset: m.Offset, StdinOffset: m.StdinOffset}
			return l, nil
		case "error":
			err := m.problem(data)
			if start != nil {
				return nil, &startSentError{err}
			}
			return nil, err
		}
	}
}

// message is any text message of the server.
type message struct {
	Type        string `json:"type"`
	ProcessID   string `json:"process_id"`
	Offset      int64  `json:"offset"`
	StdinOffset int64  `json:"stdin_offset"`
	Stream      string `json:"stream"`
	Bytes       int64  `json:"bytes"`
	Reason      string `json:"reason"`
	Detail      string `json:"detail"`
}

func parseMessage(data []byte) (message, error) {
	var m message
	if err := json.Unmarshal(data, &m); err != nil {
		return m, fmt.Errorf("%w: %w", errProtocol, err)
	}
	if m.Offset < 0 || m.Bytes < 0 || m.StdinOffset < 0 {
		return m, fmt.Errorf("%w: a negative offset", errProtocol)
	}
	return m, nil
}

func (m message) problem(data []byte) *Error {
	return &Error{Reason: m.Reason, Detail: m.Detail, Body: data}
}

// closeError turns the server's close codes 4000 + HTTP status into an [*Error].
func closeError(err error) error {
	var ce websocket.CloseError
	if errors.As(err, &ce) && ce.Code >= 4400 && ce.Code < 4600 {
		status := int(ce.Code) - 4000
		return &Error{Status: status, Detail: strings.TrimSpace(ce.Reason)}
	}
	return err
}

func writeJSON(ctx context.Context, conn *websocket.Conn, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return conn.Write(ctx, websocket.MessageText, data)
}
