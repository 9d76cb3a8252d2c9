package peer

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// Like is a sandbox of Cay whose way of booting is to be repeated: the same root file system, mounts, limits inside and flags of
// runsc. So the bare parts are measured under what Cay gives them, and keep being so when that changes.
type Like struct {
	Config string   // its OCI bundle's config.json
	Flags  []string // what its runsc was called with before the command
}

// agentDir holds, inside a sandbox, what belongs to the agent; its socket is in agentSockets.
const (
	agentDir     = "/.cay"
	agentSockets = "/.cay/s"
)

// spec is a bundle's config.json that boots like the sandbox did. argv takes the agent's place, unless it is empty. sockets is the
// directory that the agent finds its socket in; with "" none is bound.
func (l Like) spec(argv []string, sockets string) ([]byte, error) {
	raw, err := os.ReadFile(l.Config)
	if err != nil {
		return nil, fmt.Errorf("read a sandbox's bundle: %w", err)
	}
	var config map[string]any
	if err := json.Unmarshal(raw, &config); err != nil {
		return nil, fmt.Errorf("read a sandbox's bundle: %w", err)
	}
	if len(argv) > 0 {
		process, ok := config["process"].(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%s has no process", l.Config)
		}
		process["args"] = argv
	}
	mounts, _ := config["mounts"].([]any)
	kept := make([]any, 0, len(mounts))
	for _, m := range mounts {
		m, ok := m.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%s has a mount that is no object", l.Config)
		}
		if m["destination"] == agentSockets {
			if sockets == "" {
				continue
			}
			m["source"] = sockets
		}
		kept = append(kept, m)
	}
	config["mounts"] = kept
	if linux, ok := config["linux"].(map[string]any); ok {
		delete(linux, "cgroupsPath")
	}
	return json.Marshal(config)
}

// RunscFlags are the flags of runsc itself in the command line of a process of it: those before its command, without where it keeps
// state and logs and without what its parent hands down to it.
func RunscFlags(cmdline []string) []string {
	var flags []string
	for _, arg := range cmdline[min(1, len(cmdline)):] {
		if !strings.HasPrefix(arg, "-") {
			break
		}
		name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		switch {
		case name == "root", strings.HasPrefix(name, "log"), strings.HasPrefix(name, "debug"), strings.HasPrefix(name, "panic-log"),
			strings.HasSuffix(name, "-fd"), strings.HasSuffix(name, "-fds"):
			continue
		}
		flags = append(flags, arg)
	}
	return flags
}
