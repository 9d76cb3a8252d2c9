package process

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cayhq/cay/internal/wire/guestv1"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

const (
	maxListed     = 4096     // processes looked at; more cannot be where a limit holds
	maxListBytes  = 60 << 10 // of an encoded list: it must fit into one frame
	maxCommand    = 1 << 10  // bytes of one process's command line
	ticksPerSec   = 100      // USER_HZ
	processFolder = "/proc/"
)

// status is one process as /proc shows it.
type status struct {
	pid, ppid, session int
	name, state        string
	cpuTicks           int64
	childTicks         int64 // of children that were waited for
	startTicks         int64
	rss                int64 // bytes
}

// scan reads all processes but this one. Where this is not PID 1, those that descend from it.
func scan() []status {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	self := os.Getpid()
	var list []status
	for len(list) < maxListed {
		names, err := dir.Readdirnames(256)
		if err != nil {
			break
		}
		for _, name := range names {
			pid, err := strconv.Atoi(name)
			if err != nil || pid == self {
				continue
			}
			if s, ok := readStatus(pid); ok {
				list = append(list, s)
			}
		}
	}
	slices.SortFunc(list, func(a, b status) int { return a.pid - b.pid })
	if self != 1 {
		list = descendants(list, self)
	}
	return list
}

// descendants keeps what has root among its ancestors.
func descendants(list []status, root int) []status {
	inside := map[int]bool{root: true}
	for grown := true; grown; {
		grown = false
		for _, s := range list {
			if inside[s.ppid] && !inside[s.pid] {
				inside[s.pid], grown = true, true
			}
		}
	}
	return slices.DeleteFunc(list, func(s status) bool { return !inside[s.pid] })
}

func readStatus(pid int) (status, bool) {
	b, err := os.ReadFile(processFolder + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return status{}, false
	}
	return parseStatus(b)
}

// parseStatus reads a line of /proc/PID/stat. The name in it may hold anything, parentheses and line ends included.
func parseStatus(line []byte) (status, bool) {
	open, shut := bytes.IndexByte(line, '('), bytes.LastIndexByte(line, ')')
	if open < 1 || shut < open {
		return status{}, false
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(line[:open])))
	f := strings.Fields(string(line[shut+1:]))
	if err != nil || len(f) < 22 {
		return status{}, false
	}
	number := func(i int) int64 { n, _ := strconv.ParseInt(f[i], 10, 64); return n }
	return status{
		pid: pid, name: strings.ToValidUTF8(string(line[open+1:shut]), "\uFFFD"), state: strings.ToValidUTF8(f[0], "?"),
		ppid: int(number(1)), session: int(number(3)), cpuTicks: number(11) + number(12), childTicks: number(13) + number(14), startTicks: number(19),
		rss: number(21) * int64(os.Getpagesize()),
	}, true
}

// owners maps the pids of every started process's descendants to its id.
func (t *Table) owners(list []status) map[int]string {
	owners := map[int]string{}
	if t.groups == nil {
		for _, p := range t.all() {
			for _, pid := range t.tree(p.id, list) {
				owners[pid] = p.id
			}
		}
		return owners
	}
	note := func(l lingerer) {
		pids, _ := l.group.Pids()
		for _, pid := range pids {
			owners[pid] = l.id
		}
	}
	for _, p := range t.all() {
		if group := p.owned(); group != nil {
			note(lingerer{p.id, group})
		}
	}
	t.mu.Lock()
	lingering := slices.Clone(t.lingering)
	t.mu.Unlock()
	for _, l := range lingering {
		note(l)
	}
	return owners
}

// List describes every process in the sandbox but the agent.
func (t *Table) List() *guestv1.ProcessList {
	list := scan()
	owners := t.owners(list)
	boot := bootTime()
	out := &guestv1.ProcessList{}
	for _, s := range list {
		dir := processFolder + strconv.Itoa(s.pid)
		p := &guestv1.Process{
			ProcessId: owners[s.pid], Pid: int64(s.pid), Ppid: int64(s.ppid), State: s.state, RssBytes: s.rss,
			CpuSeconds: float64(s.cpuTicks) / ticksPerSec, StartedUnixMs: boot.Add(time.Duration(s.startTicks) * time.Second / ticksPerSec).UnixMilli(),
			Command: commandLine(dir),
		}
		if len(p.Command) == 0 {
			p.Command = []string{"[" + s.name + "]"}
		}
		if cwd, err := os.Readlink(dir + "/cwd"); err == nil {
			p.Cwd = strings.ToValidUTF8(cwd, "\uFFFD")
		}
		var st unix.Stat_t
		if unix.Stat(dir, &st) == nil {
			if p.User = t.users.Name(st.Uid); p.User == "" {
				p.User = strconv.FormatUint(uint64(st.Uid), 10)
			}
		}
		out.Processes = append(out.Processes, p)
	}
	shrink(out)
	return out
}

// shrink makes the list fit into a frame: first at the price of long command lines, then of the newest processes.
func shrink(list *guestv1.ProcessList) {
	if proto.Size(list) <= maxListBytes {
		return
	}
	for _, p := range list.Processes {
		if len(p.Command) > 0 {
			p.Command = []string{cut(p.Command[0], 24)}
		}
		p.Cwd = cut(p.Cwd, 16)
	}
	for size := proto.Size(list); size > maxListBytes; {
		last := len(list.Processes) - 1
		size -= proto.Size(list.Processes[last]) + 4
		list.Processes = list.Processes[:last]
	}
}

func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}

func commandLine(dir string) []string {
	f, err := os.Open(dir + "/cmdline")
	if err != nil {
		return nil
	}
	defer f.Close()
	var buf [maxCommand]byte
	n, _ := f.Read(buf[:])
	line := strings.TrimRight(string(buf[:n]), "\x00")
	if line == "" {
		return nil
	}
	return strings.Split(strings.ToValidUTF8(line, "\uFFFD"), "\x00")
}

func bootTime() time.Time {
	var since unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &since) != nil {
		return time.Now()
	}
	return time.Now().Add(-time.Duration(since.Nano()))
}

// Count is how many processes and threads the sandbox has beside the agent; processes alone without control groups.
func (t *Table) Count() int64 {
	if t.groups != nil {
		if n, err := t.groups.Current(); err == nil {
			return n
		}
	}
	return int64(len(scan()))
}
