package interpreter

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/guest/process"
	"github.com/cayhq/cay/internal/guest/user"
)

//go:embed drivers
var drivers embed.FS

// language says how an interpreter becomes a kernel.
type language struct {
	driver string   // the file in drivers; "" for a shell, which reads commands from its control socket instead
	flags  []string // before the driver, or the shell's
	// control is the descriptor of the socket. A shell's is far from those that scripts use; not every shell knows two digits.
	control int
	env     map[string]string // where the user sets nothing else
	// deaf says that an interrupt may be lost on the interpreter: on a shell or php that is about to fork, on node where it leaves or
	// enters synchronous code. It is repeated then until the run is over.
	deaf bool
}

var languages = map[string]language{
	"python":     {driver: "python.py", flags: []string{"-u"}, control: 3, env: map[string]string{"MPLBACKEND": "Agg"}},
	"javascript": {driver: "node.js", flags: []string{"--expose-internals", "--no-warnings"}, control: 3, deaf: true},
	"typescript": {driver: "node.js", flags: []string{"--expose-internals", "--no-warnings"}, control: 3, deaf: true},
	"php":        {driver: "php.php", flags: []string{"-d", "display_errors=stderr", "-d", "html_errors=0", "-d", "max_execution_time=0"}, control: 3, deaf: true},
	"ruby":       {driver: "ruby.rb", control: 3},
	// Interactive, because only such a shell returns to its next command when it is interrupted, instead of ending.
	"bash": {flags: []string{"--noprofile", "--norc", "--noediting", "-i", "+m", "+H"}, control: 63, deaf: true, env: map[string]string{"PS1": "", "PS2": ""}},
	"sh":   {flags: []string{"-i"}, control: 9, deaf: true, env: map[string]string{"PS1": "", "PS2": ""}},
}

// Languages that have contexts, where the sandbox has their interpreters.
func Languages() []string {
	names := make([]string, 0, len(languages))
	for name := range languages {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (l language) shell() bool { return l.driver == "" }

// startKernel starts the interpreter of a context. It expects x.mu.
func (x *codeContext) startKernel(ended func(*process.Kernel, process.Fate)) (*process.Kernel, error) {
	l := languages[x.language]
	file := ""
	if !l.shell() {
		var err error
		if file, err = x.contexts.driverFile(l.driver); err != nil {
			return nil, err
		}
	}
	return x.contexts.config.Processes.StartKernel(process.KernelConfig{
		User: x.user, Cwd: x.cwd, Env: x.env, Control: l.control, Stdin: l.shell(), Ended: ended,
		Prepare: func(account user.Account, cwd string, env map[string]string) ([]string, error) {
			for name, value := range l.env {
				if _, set := env[name]; !set {
					env[name] = value
				}
			}
			x.account = account
			argv := slices.Concat(x.argv, l.flags)
			if file != "" {
				argv = append(argv, file, x.language)
			}
			return argv, nil
		},
	})
}

// driverFile is the path of a driver that everybody may read, written when it is needed first.
func (c *Contexts) driverFile(name string) (string, error) {
	content, err := drivers.ReadFile("drivers/" + name)
	if err != nil {
		return "", fmt.Errorf("read the embedded driver %s: %w", name, err)
	}
	if err := c.scratch(); err != nil {
		return "", err
	}
	digest := sha256.Sum256(content)
	file := path.Join(c.config.Scratch, "driver-"+hex.EncodeToString(digest[:6])+path.Ext(name))
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	fresh := fmt.Sprintf("%s.%d", file, c.files.Add(1))
	if err = os.WriteFile(fresh, content, 0o444); err == nil {
		err = os.Rename(fresh, file)
	}
	if err != nil {
		return "", cay.Errorf(cay.Unprocessable, "keep the driver of the interpreter: %w", err)
	}
	return file, nil
}

// A shell is told what to do in lines. An interrupt may cost it what it has read of one, and it takes the rest for another command:
// that does no harm, since no line has quotes that could stay open.

// shellCommands run file, in which the control socket and the commands that follow are out of reach, and report its status.
func shellCommands(run int64, file string, control int) string {
	return fmt.Sprintf("command printf begin\\ %d\\ 0\\\\n >&%d; command . %s </dev/null %d>&-\n", run, control, shellWord(file), control) + shellDone(run, control)
}

// shellReady reports, for a run to come, that a shell takes commands.
func shellReady(run int64, control int) string {
	return fmt.Sprintf("command printf ready\\ %d\\ 0\\\\n >&%d\n", run, control)
}

// shellDone reports the status of the command before it.
func shellDone(run int64, control int) string {
	return fmt.Sprintf("command printf done\\ %d\\ 3\\\\n%%03d $? >&%d\n", run, control)
}

// shellWord escapes what is not plain in a path.
func shellWord(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '/' || c == '.' || c == '-' || c == '_') {
			b.WriteByte('\\')
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
