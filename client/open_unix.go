//go:build unix

package client

import "syscall"

const openNonblock = syscall.O_NONBLOCK
