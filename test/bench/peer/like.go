package peer

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Like is a sandbox of Cay whose way of booting is to be repeated: the same root file system, mounts, limits inside and flags of
// runsc. So the bare parts are measured under what Cay gives them, and keep being so when that changes.
type Like struct {
	Config string   // its OCI bundle's config.json
	Flags  []string // what its runsc was called with before the command
}

// agentSockets is, inside a sandbox, the directory that the agent finds its socket in.
const agentSockets = "/.cay/s"

// spec is a bundle's config.json that boots like the sandbox did, with a directory of sockets of its own. argv takes the agent's
// place, unless it is empty.
func (l Like) spec(argv []string, sockets string) ([]byte, error) {
	raw, err := os.ReadFile(l.Config)
	if err != nil {
		return nil, fmt.Errorf("read a sandbox's bundle: %w", err)
	}
	var config specs.Spec
	if err := json.Unmarshal(raw, &config); err != nil {
		return nil, fmt.Errorf("read a sandbox's bundle: %w", err)
	}
	if config.Process == nil || config.Linux == nil {
		return nil, fmt.Errorf("%s is not of a Linux process", l.Config)
	}
	if len(argv) > 0 {
		config.Process.Args = argv
	}
	theirs := ""
	for i := range config.Mounts {
		if m := &config.Mounts[i]; m.Destination == agentSockets {
			theirs, m.Source = m.Source, sockets
		}
	}
	for key, value := range config.Annotations { // hints for the mount name its source
		if theirs != "" && value == theirs {
			config.Annotations[key] = sockets
		}
	}
	config.Linux.CgroupsPath = ""
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

var overlayDir = regexp.MustCompile(`dir=[^,]*`)

// flags are the sandbox's flags, with a directory of one's own for what is written.
func (l Like) flags(disk string) []string {
	flags := make([]string, 0, len(l.Flags))
	for _, flag := range l.Flags {
		if strings.HasPrefix(strings.TrimLeft(flag, "-"), "overlay2=") {
			flag = overlayDir.ReplaceAllLiteralString(flag, "dir="+disk)
		}
		flags = append(flags, flag)
	}
	return flags
}
