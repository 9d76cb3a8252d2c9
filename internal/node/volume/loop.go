package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const loopControl = "/dev/loop-control"

// attachLoop makes f a block device. The device is free again when its last user has closed it.
func attachLoop(f *os.File) (*os.File, error) {
	control, err := os.OpenFile(loopControl, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("attach a loop device: %w", err)
	}
	defer control.Close()
	// Somebody else may take the device that is free between the question and the answer.
	for range 100 {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		device, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("attach a loop device: %w", err)
		}
		// Direct: what a volume holds is cached once, by its own file system; the kernel falls back where the host's cannot.
		err = unix.IoctlLoopConfigure(int(device.Fd()), &unix.LoopConfig{
			Fd: uint32(f.Fd()), Size: blockSize,
			Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO},
		})
		if err == nil {
			return device, nil
		}
		device.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("attach %s: %w", device.Name(), err)
		}
	}
	return nil, errors.New("attach a loop device: others were always quicker")
}

// loopOf finds the loop device that stands for f, and keeps it for as long as it is open; nil when there is none.
func loopOf(f *os.File) (*os.File, error) {
	var image unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &image); err != nil {
		return nil, fmt.Errorf("look for its loop device: %w", err)
	}
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	// What lies above may have another name for the kernel, as the mount that it was opened through may be gone.
	suffix := "/" + filepath.Base(filepath.Dir(f.Name())) + "/" + filepath.Base(f.Name())
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || !strings.HasSuffix(strings.TrimSuffix(string(text), "\n"), suffix) {
			continue // another's, or detached meanwhile
		}
		device, err := os.OpenFile("/dev/"+filepath.Base(filepath.Dir(filepath.Dir(file))), os.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open its loop device: %w", err)
		}
		// The name is a hint: only an open device stays what it is.
		if info, err := unix.IoctlLoopGetStatus64(int(device.Fd())); err == nil && info.Inode == image.Ino && info.Device == image.Dev {
			return device, nil
		}
		device.Close()
	}
	return nil, nil
}
