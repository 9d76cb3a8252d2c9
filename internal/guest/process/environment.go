package process

import (
	"maps"
	"slices"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/guest/user"
)

// DefaultPath is PATH where nobody sets another.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// tagVariable names the started process to a look-up of its tree, where there are no control groups.
const tagVariable = "CAY_PROCESS_ID"

// CheckEnv refuses what no environment can hold.
func CheckEnv(env map[string]string) error {
	size := 0
	for name, value := range env {
		size += len(name) + len(value) + 2
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return cay.Errorf(cay.Unprocessable, "the variable %q is not possible: names are not empty and hold no '=', and nothing holds a NUL", name).On("env")
		}
	}
	if size > cay.MaxEnvBytes {
		return cay.Errorf(cay.Unprocessable, "the environment has %d bytes, at most %d are possible", size, cay.MaxEnvBytes).On("env")
	}
	return nil
}

// environment merges what every process gets, the sandbox's and the caller's.
func environment(account user.Account, shell, cwd string, tty bool, layers ...map[string]string) map[string]string {
	env := map[string]string{
		"PATH": DefaultPath, "HOME": account.Home, "SHELL": shell, "PWD": cwd, "LANG": "C.UTF-8",
	}
	if account.Name != "" {
		env["USER"], env["LOGNAME"] = account.Name, account.Name
	}
	if account.Home == "" {
		env["HOME"] = "/"
	}
	if tty {
		env["TERM"] = "xterm-256color"
	}
	for _, layer := range layers {
		maps.Copy(env, layer)
	}
	return env
}

// flatten is env as exec takes it, sorted.
func flatten(env map[string]string) []string {
	list := make([]string, 0, len(env))
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	slices.Sort(list)
	return list
}
