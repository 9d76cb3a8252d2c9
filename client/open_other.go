//go:build !unix

package client

const openNonblock = 0
