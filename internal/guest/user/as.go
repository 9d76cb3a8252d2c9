package user

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// As runs f with a's identity as far as the kernel's checks of file access go: effective uid, gid and supplementary groups of one
// thread. f must stay on its goroutine and must not start another that is meant to have the identity. A process that is not root
// can only be itself, so there f simply runs.
func (a Account) As(f func() error) error {
	if a.Root() && a.GID == 0 && len(a.Groups) == 0 || os.Geteuid() != 0 {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		// The thread is given back only when it is the agent's again; else it ends with its goroutine.
		runtime.LockOSThread()
		if err := a.assume(); err != nil {
			done <- fmt.Errorf("act as uid %d: %w", a.UID, err)
			return
		}
		err := f()
		if restore() == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// assume changes the calling thread alone: package syscall's Setresuid and friends change all threads.
func (a Account) assume() error {
	if err := setgroups(a.Groups); err != nil {
		return err
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, ^uintptr(0), uintptr(a.GID), ^uintptr(0)); errno != 0 {
		return errno
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(a.UID), ^uintptr(0)); errno != 0 {
		return errno
	}
	return nil
}

func restore() error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), 0, ^uintptr(0)); errno != 0 {
		return errno
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, ^uintptr(0), 0, ^uintptr(0)); errno != 0 {
		return errno
	}
	return setgroups(nil)
}

func setgroups(gids []uint32) error {
	var first unsafe.Pointer
	if len(gids) > 0 {
		first = unsafe.Pointer(&gids[0])
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(gids)), uintptr(first), 0); errno != 0 {
		return errno
	}
	return nil
}
