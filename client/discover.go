package client

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// DefaultURL is where a local server listens unless it is told otherwise.
const DefaultURL = "http://127.0.0.1:8080"

// Settings is where a client's address and key were found.
type Settings struct {
	URL     string
	URLFrom string // "CAY_URL", a file's path, or "default"
	Key     string
	KeyFrom string // "CAY_API_KEY", a file's path, or "" when there is none
	DataDir string // of the local server
	KeyErr  error  // why KeyFrom could not be read
}

// FromEnv makes a client for CAY_URL with CAY_API_KEY; without them for the local server, see [Discover].
func FromEnv() (*Client, error) {
	s, err := Discover(os.Getenv)
	if err != nil {
		return nil, err
	}
	return New(Options{URL: s.URL, Key: s.Key})
}

// Discover finds the server and the key. The address is CAY_URL, else what the local server wrote into its data directory's file
// url, else [DefaultURL]. The key is CAY_API_KEY, else the local server's file key; that file's key is offered to addresses of
// this machine alone, never to another host. The data directory is CAY_DATA_DIR, else /var/lib/cay for root and
// ~/.local/share/cay (XDG_DATA_HOME counts) for others.
func Discover(getenv func(string) string) (Settings, error) {
	s := Settings{DataDir: dataDir(getenv)}
	local, localErr := readSmall(filepath.Join(s.DataDir, "url"))
	switch {
	case getenv("CAY_URL") != "":
		s.URL, s.URLFrom = getenv("CAY_URL"), "CAY_URL"
	case localErr == nil && local != "":
		s.URL, s.URLFrom = local, filepath.Join(s.DataDir, "url")
	default:
		s.URL, s.URLFrom = DefaultURL, "default"
	}
	u, err := parseBase(s.URL)
	if err != nil {
		return s, fmt.Errorf("%w (from %s)", err, s.URLFrom)
	}
	if key := getenv("CAY_API_KEY"); key != "" {
		s.Key, s.KeyFrom = strings.TrimSpace(key), "CAY_API_KEY"
		return s, nil
	}
	if s.URLFrom == "CAY_URL" && !loopback(u) && strings.TrimRight(s.URL, "/") != local {
		return s, nil
	}
	path := filepath.Join(s.DataDir, "key")
	key, err := readSmall(path)
	if err == nil {
		s.Key, s.KeyFrom = key, path
	} else if !errors.Is(err, fs.ErrNotExist) {
		s.KeyErr = err
	}
	return s, nil
}

func dataDir(getenv func(string) string) string {
	if dir := getenv("CAY_DATA_DIR"); dir != "" {
		return dir
	}
	if os.Geteuid() == 0 {
		return "/var/lib/cay"
	}
	if dir := getenv("XDG_DATA_HOME"); dir != "" {
		return filepath.Join(dir, "cay")
	}
	return filepath.Join(getenv("HOME"), ".local", "share", "cay")
}

func loopback(u *url.URL) bool {
	host := u.Hostname()
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// readSmall reads the one line of a file of at most 4 KiB.
func readSmall(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, 4<<10))
	return strings.TrimSpace(string(data)), err
}
