package interpreter

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/guest/user"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"golang.org/x/sys/unix"
)

// maxSource bounds a program, in bytes.
const maxSource = 64 << 20

// extensions of the files that hold a program, by language.
var extensions = map[string]string{
	"python": ".py", "javascript": ".js", "typescript": ".ts", "bash": ".sh", "sh": ".sh", "php": ".php", "ruby": ".rb", "go": ".go",
}

// esModule recognizes JavaScript that only a module may hold: node reads a file of another name than .mjs as CommonJS.
var esModule = regexp.MustCompile(`(?m)^\s*(import\s*["'{*]|import\s+[\w$]+[\s,]|export\s+(default|const|let|var|function|class|async|\{|\*)|await\s|(const|let|var)\s[^=;]*=\s*await\s)`)

// commonJS recognizes what a module may not hold.
var commonJS = regexp.MustCompile(`\brequire\s*\(|\bmodule\.exports\b`)

// extension is the one that a program's file gets.
func extension(language string, source []byte) string {
	if language == "javascript" && esModule.Match(source) && !commonJS.Match(source) {
		return ".mjs"
	}
	return extensions[language]
}

// complete is source as the language's interpreter takes it: PHP without any opening tag would only be printed.
func complete(language string, source []byte) []byte {
	if language == "php" && !bytes.Contains(source, []byte("<?")) {
		return append([]byte("<?php "), source...)
	}
	return source
}

// load is the program itself: what came with the request, or in a file, which is removed.
func load(code *guestv1.Code) ([]byte, error) {
	if code.SourcePath == "" {
		return code.Source, nil
	}
	fd, err := unix.Open(code.SourcePath, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, cay.Errorf(cay.Unprocessable, "the program's file %s: %w", code.SourcePath, err).On("code")
	}
	file := os.NewFile(uintptr(fd), code.SourcePath)
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, cay.Errorf(cay.Unprocessable, "the program's file %s is no regular file", code.SourcePath).On("code")
	}
	source, err := io.ReadAll(io.LimitReader(file, maxSource+1))
	if err != nil {
		return nil, cay.Errorf(cay.Unprocessable, "read the program's file %s: %w", code.SourcePath, err).On("code")
	}
	if len(source) > maxSource {
		return nil, cay.Errorf(cay.Unprocessable, "a program has at most %d bytes", maxSource).On("code")
	}
	_ = os.Remove(code.SourcePath)
	return source, nil
}

// store writes a file that account alone may read, and returns its path. Whoever gets it removes it.
func (c *Contexts) store(source []byte, extension string, account user.Account) (string, error) {
	if err := c.scratch(); err != nil {
		return "", err
	}
	name := path.Join(c.config.Scratch, fmt.Sprintf("code-%d%s", c.files.Add(1), extension))
	err := os.WriteFile(name, source, 0o400)
	if err == nil && os.Geteuid() == 0 {
		err = os.Chown(name, int(account.UID), int(account.GID))
	}
	if err != nil {
		_ = os.Remove(name)
		return "", cay.Errorf(cay.Unprocessable, "keep the program for its interpreter: %w", err)
	}
	return name, nil
}

// publish writes a program to directory, which everybody may enter and read and nobody but root may change, and returns its path.
// Whoever gets it removes it. One program at a time can lie there.
func publish(source []byte, extension, directory string) (string, error) {
	if err := openToAll(directory); err != nil {
		return "", err
	}
	name := path.Join(directory, "main"+extension)
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o444)
	if os.IsExist(err) {
		return "", cay.Errorf(cay.Conflict, "there is a program at %s already", name).On("directory")
	}
	if err == nil {
		_, err = file.Write(source)
		if err = errors.Join(err, file.Close()); err != nil {
			_ = os.Remove(name)
		}
	}
	if err != nil {
		return "", cay.Errorf(cay.Unprocessable, "keep the program in its directory: %w", err).On("directory")
	}
	return name, nil
}

// openToAll makes a directory and those above it. They have to be the agent's own, changeable by nobody else: only then what lies below
// cannot be exchanged by those who read it.
func openToAll(directory string) error {
	at := "/"
	for _, part := range strings.Split(directory[1:], "/") {
		at = path.Join(at, part)
		if err := os.Mkdir(at, 0o755); err != nil && !os.IsExist(err) {
			return cay.Errorf(cay.Unprocessable, "make the program's directory: %w", err).On("directory")
		}
		var st unix.Stat_t
		if err := unix.Lstat(at, &st); err != nil {
			return cay.Errorf(cay.Unprocessable, "make the program's directory: %s: %w", at, err).On("directory")
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Uid != uint32(os.Geteuid()) || st.Mode&0o022 != 0 {
			return cay.Errorf(cay.Unprocessable, "a program cannot lie below %s, which others than root can change", at).On("directory")
		}
	}
	return nil
}

// cleanDirectory reports whether a program may ask for the directory; "" is none.
func cleanDirectory(directory string) bool {
	return directory == "" || path.IsAbs(directory) && path.Clean(directory) == directory && directory != "/" && !strings.ContainsRune(directory, 0)
}

// scratch makes the directory of programs' files: others may enter it but not list it.
func (c *Contexts) scratch() error {
	err := os.Mkdir(c.config.Scratch, 0o711)
	if os.IsExist(err) {
		return nil
	}
	if err != nil {
		return cay.Errorf(cay.Unprocessable, "make the directory for programs: %w", err)
	}
	return nil
}
