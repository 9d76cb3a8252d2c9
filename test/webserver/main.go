// Command webserver is what the tests of ports run inside a sandbox: a small HTTP server that tells what it was asked, streams, and
// misbehaves on request. It is static, so that it runs in any image.
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/coder/websocket"
)

func main() {
	if len(os.Args) < 2 {
		log.Fatal("usage: webserver HOST:PORT…")
	}
	failed := make(chan error)
	for _, address := range os.Args[1:] {
		go func() { failed <- http.ListenAndServe(address, counted(handler())) }()
	}
	log.Fatal(<-failed)
}

var (
	open atomic.Int64
	deaf sync.Map // of net.Conn, kept so that nothing closes them
)

func counted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		open.Add(1)
		defer open.Add(-1)
		next.ServeHTTP(w, r)
	})
}

func handler() http.Handler {
	mux := http.NewServeMux()
	// What the request looks like from inside; not by the mux, which cleans paths.
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		_ = json.NewEncoder(w).Encode(map[string]any{
			"method": r.Method, "uri": r.RequestURI, "host": r.Host, "headers": r.Header, "local": local.String(), "length": r.ContentLength,
		})
	})
	mux.HandleFunc("/small", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "small") })
	mux.HandleFunc("/count", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, open.Load()-1) })
	// The digest of what was uploaded.
	mux.HandleFunc("/upload", func(w http.ResponseWriter, r *http.Request) {
		digest := sha256.New()
		n, err := io.Copy(digest, r.Body)
		if err != nil {
			return
		}
		fmt.Fprintf(w, "%d %s", n, hex.EncodeToString(digest.Sum(nil)))
	})
	mux.HandleFunc("/download", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.ParseInt(r.FormValue("bytes"), 10, 64)
		_, _ = io.CopyN(w, zeros{}, n)
	})
	// One event for each line that is posted to /tell; the answer stays open.
	lines := make(chan string)
	mux.HandleFunc("/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		flush := http.NewResponseController(w).Flush
		_ = flush()
		for {
			select {
			case line := <-lines:
				fmt.Fprintf(w, "data: %s\n\n", line)
				_ = flush()
			case <-r.Context().Done():
				return
			}
		}
	})
	mux.HandleFunc("/tell", func(_ http.ResponseWriter, r *http.Request) {
		line, _ := io.ReadAll(r.Body)
		select {
		case lines <- string(line):
		case <-r.Context().Done():
		}
	})
	mux.HandleFunc("/ws", func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			return
		}
		defer conn.CloseNow()
		conn.SetReadLimit(4 << 20)
		if r.FormValue("headers") != "" {
			_ = conn.Write(r.Context(), websocket.MessageText, fmt.Appendf(nil, "%q %v", r.RequestURI, r.Header))
		}
		for {
			kind, data, err := conn.Read(r.Context())
			if err != nil || conn.Write(r.Context(), kind, data) != nil {
				return
			}
		}
	})
	// Whatever the query says, as headers and status; cookies above all.
	mux.HandleFunc("/answer", func(w http.ResponseWriter, r *http.Request) {
		status := http.StatusOK
		for name, values := range r.URL.Query() {
			if name == "status" {
				status, _ = strconv.Atoi(values[0])
				continue
			}
			for _, v := range values {
				w.Header().Add(name, v)
			}
		}
		if status == http.StatusEarlyHints {
			w.WriteHeader(status)
			status = http.StatusOK
		}
		w.WriteHeader(status)
	})
	// Bytes as they are given, instead of an answer.
	mux.HandleFunc("/raw", func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = conn.Write(raw)
	})
	mux.HandleFunc("/header", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.FormValue("bytes"))
		w.Header().Set("X-Large", strings.Repeat("x", n))
	})
	// Takes a connection over and forgets it.
	mux.HandleFunc("/deaf", func(w http.ResponseWriter, _ *http.Request) {
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			deaf.Store(conn, true)
		}
	})
	mux.HandleFunc("/hang", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/echo/") {
			echo(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
