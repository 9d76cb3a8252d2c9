package agent

import (
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/guest/user"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

// volumesDir is where the node's driver shows the volumes.
const volumesDir = "/.cay/v"

// hidden are places that a volume must not lie on or in: the sandbox would not work any more.
var hidden = []string{"/", "/.cay", "/proc", "/sys", "/dev"}

// mount shows a volume at its path, which is made as needed. What is mounted already stays. It needs a.mu.
func (a *Agent) mount(m *guestv1.Mount, account user.Account) error {
	target := path.Clean(m.GetPath())
	fault := func(format string, args ...any) error {
		return cay.Errorf(cay.Unprocessable, "volume %s at %q: "+format, append([]any{m.GetName(), m.GetPath()}, args...)...).On("volumes")
	}
	if !strings.HasPrefix(target, "/") || strings.Contains(target, "\x00") {
		return fault("the path is not absolute")
	}
	for _, h := range hidden {
		if target == h || h != "/" && strings.HasPrefix(target, h+"/") {
			return fault("nothing can be mounted there")
		}
	}
	if name := m.GetName(); name == "" || strings.ContainsAny(name, "/\x00") || name == "." || name == ".." {
		return fault("the name is none of a volume")
	}
	if a.mounted[target] {
		return nil
	}
	if err := ensureDirectory(target, account); err != nil {
		return fault("%w", err)
	}
	source := volumesDir + "/" + m.GetName()
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount volume %s: %w", m.GetName(), err)
	}
	flags := uintptr(unix.MS_REMOUNT | unix.MS_BIND | unix.MS_NOSUID | unix.MS_NODEV)
	if m.GetReadOnly() { // the host's mount is read-only too; here it is for programs that ask
		flags |= unix.MS_RDONLY
	}
	if err := unix.Mount("", target, "", flags, ""); err != nil {
		return fmt.Errorf("mount volume %s: set it up: %w", m.GetName(), err)
	}
	a.mounted[target] = true
	return nil
}
