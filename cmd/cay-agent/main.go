// Command cay-agent is PID 1 of a sandbox. It has no settings of its own: the node tells it what to do over the socket it dials.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/cayhq/cay/internal/guest/agent"
	"github.com/cayhq/cay/internal/guest/cgroup"
	"github.com/cayhq/cay/internal/guest/user"
)

var version = "dev" // set by the linker

const (
	passwd = "/etc/passwd"
	group  = "/etc/group"
	// memory is where the garbage collector begins to work harder, in bytes.
	memory = 64 << 20
)

func main() {
	socket := flag.String("socket", "/.cay/s/a.sock", "the node's socket")
	groups := flag.String("cgroup", "/.cay/cg", "where to mount control groups for a moment; empty: use none")
	sandbox := flag.Bool("sandbox", os.Getpid() == 1, "set up the root file system and the host name: never outside of a sandbox")
	scratch := flag.String("scratch", "/.cay/code", "a directory for programs that come as source, made when needed")
	flag.Parse()
	debug.SetMemoryLimit(memory)
	if err := run(*socket, *groups, *scratch, *sandbox); err != nil {
		fmt.Fprintln(os.Stderr, "cay-agent:", err)
		os.Exit(1)
	}
}

func run(socket, groups, scratch string, sandbox bool) error {
	journal := agent.NewJournal(slog.NewTextHandler(os.Stderr, nil))
	log := slog.New(journal)
	if err := agent.Harden(); err != nil {
		return err
	}
	config := agent.Config{
		Socket: socket, Version: version, Users: user.Open(passwd, group), Sandbox: sandbox, Scratch: scratch, Log: journal,
	}
	if sandbox {
		if err := agent.PrepareRoot(passwd, group); err != nil {
			return err
		}
	}
	if groups != "" {
		tree, err := cgroup.Mount(groups)
		if err != nil {
			log.Warn("no control groups: processes that hide from their tree are not found", "error", err)
		} else {
			config.Groups = tree
		}
	}
	a, err := agent.New(config)
	if err != nil {
		return err
	}
	return a.Run(context.Background())
}
