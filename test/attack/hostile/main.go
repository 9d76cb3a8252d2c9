// Command hostile is what an attacker would run in the place of the agent, or beside it: it dials the agent's socket and breaks the
// protocol in every way that the attack tests know of. It is no part of the product.
package main

import (
	"bufio"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

var (
	socket = flag.String("socket", "/.cay/s/a.sock", "the agent's socket")
	count  = flag.Int("n", 5000, "how many connections, frames or guesses")
	hold   = flag.Duration("hold", 5*time.Second, "how long to go on")
)

// attacks are the ways to break the hop, each run again and again until its time is over. An error is the node's defence at work.
var attacks = map[string]func() error{
	"connect":   connect,
	"silent":    silent,
	"slow":      slow,
	"garbage":   garbage,
	"oversized": oversized,
	"reserved":  reserved,
	"early":     early,
	"hellos":    hellos,
	"forge":     forge,
	"replay":    replay,
	"reorder":   reorder,
	"tokens":    tokens,
	"agent":     falseAgent,
	"bigagent":  bigAgent,
}

func main() {
	flag.Parse()
	name := flag.Arg(0)
	if name == "flood" {
		flood()
		return
	}
	attack, ok := attacks[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "no attack named %q\n", name)
		os.Exit(2)
	}
	var last error
	rounds := 0
	for end := time.Now().Add(*hold); time.Now().Before(end); rounds++ {
		if last = attack(); name == "connect" {
			break
		}
	}
	fmt.Printf("%s: %d rounds, last: %v\n", name, rounds, last)
	if name == "connect" && last != nil {
		os.Exit(1)
	}
}

func dial() (net.Conn, error) {
	c, err := net.DialTimeout("unix", *socket, 2*time.Second)
	if err != nil {
		return nil, err
	}
	if err := c.SetDeadline(time.Now().Add(*hold)); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func connect() error {
	c, err := dial()
	if err != nil {
		return err
	}
	return c.Close()
}

// flood opens as many connections as it can and keeps them without a word.
func flood() {
	var mu sync.Mutex
	var held []net.Conn
	var refused atomic.Int64
	var wg sync.WaitGroup
	end := time.Now().Add(*hold) // inside gVisor a connect waits for room in the queue
	for range 16 {
		wg.Go(func() {
			for range *count / 16 {
				if time.Now().After(end) {
					return
				}
				c, err := net.DialTimeout("unix", *socket, time.Second)
				if err != nil {
					refused.Add(1)
					continue
				}
				mu.Lock()
				held = append(held, c)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	fmt.Printf("flood: %d held, %d refused\n", len(held), refused.Load())
	<-time.After(time.Until(end))
	for _, c := range held {
		_ = c.Close()
	}
}

// silent says what it is and nothing more.
func silent() error {
	c, err := control()
	if err != nil {
		return err
	}
	defer c.Close()
	return drain(c)
}

// slow sends a preamble byte by byte.
func slow() error {
	c, err := dial()
	if err != nil {
		return err
	}
	defer c.Close()
	for _, b := range []byte("cay\x01\x01") {
		if _, err := c.Write([]byte{b}); err != nil {
			return err
		}
		<-time.After(300 * time.Millisecond)
	}
	return drain(c)
}

func garbage() error {
	c, err := dial()
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := io.CopyN(c, rand.Reader, 1<<20); err != nil {
		return err
	}
	return drain(c)
}

// drain reads until the node ends the connection.
func drain(c net.Conn) error {
	_, err := io.Copy(io.Discard, bufio.NewReader(c))
	return err
}
