// Package router is the host's end of the guest hop: one Session for each sandbox owns the connections to its agent, asks it to run
// processes and touch files, and moves their output into the spool. It believes nothing an agent says: what arrives is bounded in
// size, number and order, and three violations within a minute give the sandbox up. It knows neither the RPC of the control plane
// nor how a sandbox is booted.
//
// Locks: a Session's mu is taken before a Process's mu, never after it.
package router

import (
	"context"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/node/spool"
	"github.com/cayhq/cay/internal/wire"
)

const (
	holdWindow   = 1 << 20   // bytes that a process may produce beyond what its holder has passed on
	stdinWindow  = 256 << 10 // bytes of stdin that the agent may hold without having given them to the process
	ackEvery     = 32 << 10  // bytes of output after which an acknowledgement is sent at once
	maxQueued    = 8 << 20   // bytes of requests that wait for an agent that does not read
	maxPending   = 1024      // requests without an answer
	maxRunning   = 4096      // processes
	maxBulk      = 32        // transfers at a time
	maxPorts     = 256       // connections to ports at a time
	maxWatches   = 64        // of files, at a time
	maxContexts  = 64
	inlineSource = 2 << 20 // bytes of a program that travel in its start; with 1 MiB of environment it stays below wire.MaxMessage
	maxViolation = 3       // within a minute
)

// MaxLag is how far a holder can lag behind its process, in bytes: the window, what the agent may send unacknowledged, and a frame.
// A spool that keeps less loses output that a live reader was promised.
const MaxLag = holdWindow + 256<<10 + wire.MaxFrame

// Timing holds every period of a Session. Zero values take the defaults, which are the product's; tests shorten them.
type Timing struct {
	Hello      time.Duration // for the first message of a connection; 2 s
	Ping       time.Duration // of silence, after which a connection is tested; 5 s
	PingAnswer time.Duration // for the answer; 5 s
	Connected  time.Duration // that a request waits for a connection; 5 s
	Answer     time.Duration // that a request waits for its answer; 30 s
	Long       time.Duration // the same for one whose work grows with the files; 10 min
	Write      time.Duration // that an agent may take to read what it was sent; 10 s
	HoldStall  time.Duration // without progress, after which a reader no longer holds its process; 60 s
	Hangup     time.Duration // that a terminal waits for a reader; 60 s
	HangupKill time.Duration // between HUP and KILL; 5 s
	KillReport time.Duration // between a timeout's KILL and its report although the agent is silent; 2 s
	Lost       time.Duration // for the exit of a process that a hello does not name; 5 s
	LazyAck    time.Duration // that small output waits for its acknowledgement; 100 ms
	BulkIdle   time.Duration // without progress of a transfer; 60 s
	Commit     time.Duration // from the end of what is written to the agent's word that it is in its place; 10 min
	Interrupt  time.Duration // between a timeout's INT to a program in a context and KILL; 5 s
}

func (t Timing) withDefaults() Timing {
	for _, d := range []struct {
		p *time.Duration
		d time.Duration
	}{
		{&t.Hello, 2 * time.Second}, {&t.Ping, 5 * time.Second}, {&t.PingAnswer, 5 * time.Second}, {&t.Connected, 5 * time.Second},
		{&t.Answer, 30 * time.Second}, {&t.Write, 10 * time.Second}, {&t.HoldStall, time.Minute}, {&t.Hangup, time.Minute},
		{&t.HangupKill, 5 * time.Second}, {&t.KillReport, 2 * time.Second}, {&t.Lost, 5 * time.Second},
		{&t.LazyAck, 100 * time.Millisecond}, {&t.BulkIdle, time.Minute}, {&t.Long, 10 * time.Minute}, {&t.Commit, 10 * time.Minute},
		{&t.Interrupt, 5 * time.Second},
	} {
		if *d.p <= 0 {
			*d.p = d.d
		}
	}
	return t
}

// Config is what a Session needs.
type Config struct {
	// Dial returns the agent's next connection of a purpose; see driver.Driver.Dial.
	Dial  func(ctx context.Context, purpose driver.Purpose) (net.Conn, error)
	Spool *spool.Spool
	Log   *slog.Logger
	// GiveUp is called once when the agent broke the protocol too often. It must not block, nor wait for the Session to close.
	GiveUp func(why string)
	// Said takes what the agent has to say: a level, one of debug, info, warn and error, and a message, which is bounded but otherwise as it
	// came. It must not block. Nil: nobody listens.
	Said func(level, message string)
	// Ended is told of each process that has ended, once, after its readers were. It must not block. Nil: nobody asks.
	Ended func(spool.Process)
	// Limits are the sandbox's as they are now; they bound what its agent may say that a process used. Nil: nothing of that is believed.
	Limits func() Limits
	// Counters are added to; several Sessions may share them. Nil: nobody counts.
	Counters *Counters
	// Frozen says that the sandbox is frozen as the Session begins.
	Frozen bool
	Timing Timing
}

// Limits are what a sandbox may use.
type Limits struct {
	CPU      float64 // cores
	MemoryMB int64
}

// Counters count what happens in Sessions.
type Counters struct {
	Reconnects atomic.Int64 // connections of an agent beyond its first
	Violations atomic.Int64 // of the protocol, by agents
	Stored     atomic.Int64 // bytes of output that spools took
}

// StartSpec is a process to start, and what its first reader is to it.
type StartSpec struct {
	ID     cay.ID // chosen by the caller: a repeated start attaches to the first
	Spec   cay.ProcessSpec
	Origin *spool.Origin // kept with the process

	Hold               bool // the reader holds the process back
	Foreground         bool // counts as activity while the reader is there
	KillOnDisconnect   bool
	HangupOnDisconnect bool
}

// AttachSpec is a reader of a process that runs or has ended.
type AttachSpec struct {
	Ref        string // an id, the name of a running process, or a pid
	Offset     int64  // combined; negative: from the end
	Foreground bool
	TakeStdin  bool
}
