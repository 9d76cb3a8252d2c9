package cay

import (
	"net/url"
	"unicode/utf8"
)

// WirePath writes the path of a file in a sandbox so that it fits a protobuf string, which must be UTF-8: a path that is UTF-8 stays as
// it is; another becomes '%' and its percent-encoding. As paths are absolute, the first byte tells which it is.
func WirePath(path string) string {
	if utf8.ValidString(path) {
		return path
	}
	return "%" + (&url.URL{Path: path}).EscapedPath()
}

// ParseWirePath reads what [WirePath] wrote. ok is false for a malformed one.
func ParseWirePath(s string) (path string, ok bool) {
	if s == "" || s[0] != '%' {
		return s, true
	}
	path, err := url.PathUnescape(s[1:])
	return path, err == nil
}
