// Command fakeagent stands in for the agent in the suite of drivers. It dials as the agent does, and does what the suite asks of it
// over its control connection: lines of JSON there and back. It trusts everybody and is part of no product.
package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"flag"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/cayhq/cay/internal/wire"
)

// Request is what the suite asks.
type Request struct {
	Op    string // echo, sh, bulk, alloc, free, flood, garbage, bind, dial, drop
	Text  string // of echo; the command of sh; the path of bind and dial
	Token string // of bulk, hex
	N     int    // megabytes of alloc, connections of flood
}

// Answer is what it gets.
type Answer struct {
	Text  string
	Error string
	N     int
}

var (
	socket = flag.String("socket", "", "where to dial")
	held   [][]byte
	conns  []net.Conn
)

func main() {
	flag.Parse()
	signal.Ignore(syscall.SIGPIPE)
	for {
		if conn, err := net.Dial("unix", *socket); err == nil {
			serve(conn)
			conn.Close()
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func serve(conn net.Conn) {
	if wire.WritePreamble(conn, wire.Preamble{Kind: wire.ConnControl}) != nil {
		return
	}
	in := bufio.NewScanner(conn)
	in.Buffer(nil, 1<<20)
	out := json.NewEncoder(conn)
	for in.Scan() {
		var r Request
		a := Answer{}
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			a.Error = err.Error()
		} else {
			a = do(r)
		}
		if r.Op == "drop" || out.Encode(a) != nil {
			return
		}
	}
}

func do(r Request) (a Answer) {
	switch r.Op {
	case "echo":
		a.Text = r.Text
	case "sh":
		cmd := exec.Command("/bin/sh", "-c", r.Text)
		cmd.Env = os.Environ()
		out, err := cmd.CombinedOutput()
		a.Text = string(out)
		if err != nil {
			a.Error = err.Error()
		}
	case "bulk":
		var p wire.Preamble
		p.Kind = wire.ConnBulk
		if b, err := hex.DecodeString(r.Token); err != nil || copy(p.Token[:], b) != len(p.Token) {
			return Answer{Error: "token"}
		}
		conn, err := net.Dial("unix", *socket)
		if err == nil {
			err = wire.WritePreamble(conn, p)
		}
		if err != nil {
			return Answer{Error: err.Error()}
		}
		go func() {
			_, _ = io.Copy(conn, conn)
			conn.Close()
		}()
	case "alloc":
		for range r.N {
			b := make([]byte, 1<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			held = append(held, b)
		}
	case "free":
		held = nil
	case "flood":
		for range r.N {
			conn, err := net.DialTimeout("unix", *socket, 100*time.Millisecond)
			if err != nil {
				a.Error = err.Error()
				break
			}
			conns = append(conns, conn)
			a.N++
		}
	case "bind": // listen there, and hear from itself
		ln, err := net.Listen("unix", r.Text)
		if err != nil {
			return Answer{Error: err.Error()}
		}
		conn, err := net.Dial("unix", r.Text)
		if err != nil {
			return Answer{Error: err.Error()}
		}
		conns = append(conns, conn)
		far, err := ln.Accept()
		if err != nil {
			return Answer{Error: err.Error()}
		}
		conns = append(conns, far)
		_, _ = conn.Write([]byte("hello"))
		b := make([]byte, 5)
		n, _ := io.ReadFull(far, b)
		a.Text = string(b[:n])
	case "dial":
		conn, err := net.DialTimeout("unix", r.Text, time.Second)
		if err != nil {
			return Answer{Error: err.Error()}
		}
		conns = append(conns, conn)
	case "garbage":
		conn, err := net.Dial("unix", *socket)
		if err != nil {
			return Answer{Error: err.Error()}
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		n, _ := conn.Write(make([]byte, 8<<20))
		a.N = n
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			a.Error = "the host answered"
		}
	default:
		a.Error = "unknown"
	}
	return a
}
