package image

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// layout changes whenever this package builds another root from the same host.
const layout = "2"

// witnesses change when packages are installed, upgraded or removed: the package managers' records, and the directories that
// are shown.
var witnesses = []string{
	"/var/lib/dpkg/status", "/usr/lib/sysimage/rpm", "/var/lib/rpm", "/var/lib/rpm/rpmdb.sqlite", "/lib/apk/db/installed", "/var/lib/pacman/local",
	"/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib64", "/usr/libexec", "/usr/share", "/bin", "/lib",
	"/usr/local/bin/node", "/usr/local/lib/node_modules/npm", "/usr/local/go", "/usr/local/go/bin/go",
	"/etc/ld.so.cache", "/etc/alternatives", "/etc/ssl/certs", "/etc/ssl/certs/ca-certificates.crt", "/etc/localtime",
}

// HostFingerprint changes when the host's programs do, for example by an upgrade: sandboxes that were prepared before are
// not to be given out any more. It costs some stats.
func HostFingerprint() (string, error) { return fingerprint("/") }

func fingerprint(host string) (string, error) {
	sum := sha256.New()
	fmt.Fprintf(sum, "layout %s uid %d\n", layout, os.Geteuid())
	seen := 0
	for _, p := range witnesses {
		st, err := os.Lstat(filepath.Join(host, p))
		if err != nil {
			fmt.Fprintf(sum, "%s none\n", p)
			continue
		}
		seen++
		inode := uint64(0)
		if sys, ok := st.Sys().(*syscall.Stat_t); ok {
			inode = sys.Ino
		}
		fmt.Fprintf(sum, "%s %d %d %d\n", p, inode, st.Size(), st.ModTime().UnixNano())
	}
	if seen == 0 {
		return "", fmt.Errorf("%s holds none of the places where programs are", host)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
