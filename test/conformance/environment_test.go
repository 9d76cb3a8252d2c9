package conformance

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/testkit"
)

func TestE1NoProcessInsideHasAPlatformSecret(t *testing.T) {
	t.Parallel()
	sb := box(t)
	for _, user := range []string{"sandbox", "root"} {
		out := sb.X(`cat /proc/*/environ 2>/dev/null | tr '\0' '\n'; tr '\0' '\n' </proc/*/cmdline 2>/dev/null; cat /proc/cmdline`, fields{"user": user})
		all := out.Stdout + out.Stderr
		if strings.Contains(all, sb.Key) || strings.Contains(all, sb.Key[4:]) {
			t.Errorf("%s sees the API key", user)
		}
		if m := regexp.MustCompile(`(?m)^CAY_(BOOTSTRAP_KEY|API_KEY|DATA_DIR|LISTEN|CONFIG)=.*`).FindString(all); m != "" {
			t.Errorf("%s sees %s", user, m)
		}
		if strings.Contains(all, testkit.Server(t).DataDir) {
			t.Errorf("%s sees the data directory's path", user)
		}
	}
}

func TestE2ASecretOfTheGuestIsInvisibleOnTheHost(t *testing.T) {
	t.Parallel()
	testkit.RequireRoot(t)
	inst := testkit.Server(t)
	secrets := map[string]string{"sandbox": testkit.NewKey(), "exec": testkit.NewKey(), "stdin": testkit.NewKey(), "command": testkit.NewKey()}
	sb := box(t, fields{"env": fields{"OF_SANDBOX": secrets["sandbox"]}})
	stream, _ := sb.Open(t.Context(), `cat >/dev/null; echo "$OF_SANDBOX $OF_EXEC" | wc -c; sleep 3010; : `+secrets["command"],
		fields{"env": fields{"OF_EXEC": secrets["exec"]}, "stdin": secrets["stdin"], "kill_on_disconnect": true})
	if ev, err := stream.Next(); err != nil || !strings.Contains(string(ev.Data), "138") {
		t.Fatalf("the guest lacks its secrets: %s %v", ev.Data, err)
	}
	var seen strings.Builder
	for _, p := range testkit.Processes() {
		fmt.Fprintln(&seen, p.PID, p.Name, strings.Join(p.Cmdline, " "))
		env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.PID))
		seen.Write(env)
	}
	seen.WriteString(inst.Logs())
	for where, secret := range secrets {
		if strings.Contains(seen.String(), secret) {
			t.Errorf("the secret from %s is visible among the host's processes or in the log", where)
		}
	}
}

func TestE3TheServersEnvironmentIsNotTheGuests(t *testing.T) {
	inst := testkit.StartServer(t, testkit.Options{Env: []string{"FOO_SECRET=platform-secret-of-the-server", "AWS_SECRET_ACCESS_KEY=platform-secret-of-the-server"}})
	sb := inst.Create(t)
	for _, user := range []string{"sandbox", "root"} {
		out := sb.X("env; cat /proc/*/environ", fields{"user": user})
		if strings.Contains(out.Stdout, "FOO_SECRET") || strings.Contains(out.Stdout, "platform-secret") {
			t.Errorf("%s sees the server's environment: %q", user, out.Stdout)
		}
	}
}

func TestE4EnvironmentIsExactOrRefused(t *testing.T) {
	t.Parallel()
	values := map[string]string{
		"NEWLINES": "a\nb\n\nc\n", "EQUALS": "a=b==c=", "WIDE": "ü日本😀", "EMPTY": "", "SPACES": "  lead and trail  ",
		"QUOTES": `"'` + "`$HOME`" + `\n`, "lower_case": "x", "_": "underscore", "CONTROL": "\x01\x1b[31m\x7f",
	}
	delete(values, "_") // the shell sets it itself
	check := func(t *testing.T, sb *testkit.Sandbox, more ...fields) {
		t.Helper()
		for name, want := range values {
			out := sb.X(fmt.Sprintf(`printf %%s "$%s" | od -An -tx1 | tr -d ' \n'; test "${%s+set}" && echo .`, name, name), more...)
			if out.Stdout != fmt.Sprintf("%x.\n", want) {
				t.Errorf("%s: %q, want %x", name, out.Stdout, want)
			}
		}
	}
	t.Run("of an exec", func(t *testing.T) { check(t, box(t), fields{"env": values}) })
	t.Run("of the sandbox", func(t *testing.T) { check(t, box(t, fields{"env": values})) })
	t.Run("an exec's goes over the sandbox's", func(t *testing.T) {
		sb := box(t, fields{"env": fields{"A": "sandbox", "B": "sandbox"}})
		sb.MustSay("exec sandbox\n", `echo $A $B`, fields{"env": fields{"A": "exec"}})
		sb.MustSay("sandbox sandbox\n", `echo $A $B`)
	})
	t.Run("512 KiB in pieces", func(t *testing.T) {
		sb := box(t)
		big := fields{}
		for i := range 8 {
			big[fmt.Sprintf("BIG%d", i)] = strings.Repeat(string(rune('a'+i)), 64<<10)
		}
		sb.MustSay("524288\n", `printf %s "$BIG0$BIG1$BIG2$BIG3$BIG4$BIG5$BIG6$BIG7" | wc -c`, fields{"env": big})
	})
	t.Run("512 KiB in one", func(t *testing.T) {
		sb := box(t)
		resp := sb.Call("POST", "/exec", fields{"command": `printf %s "$BIG" | wc -c`, "env": fields{"BIG": strings.Repeat("x", 512<<10)}})
		var out testkit.ExecResult
		if resp.Status/100 == 4 {
			return // refused, as Linux does
		}
		if err := resp.Decode(200, &out); err != nil || out.Stdout != "524288\n" && out.Reason != "start_failed" {
			t.Errorf("neither exact nor refused: %v", resp)
		}
	})
	t.Run("names that are none", func(t *testing.T) {
		sb := box(t)
		for _, name := range []string{"", "A=B", "A\x00B"} {
			if resp := sb.Call("POST", "/exec", fields{"command": "true", "env": fields{name: "x"}}); resp.Status/100 != 4 {
				t.Errorf("name %q: %v", name, resp)
			}
		}
		if resp := sb.Call("POST", "/exec", fields{"command": "true", "env": fields{"A": "x\x00y"}}); resp.Status/100 != 4 {
			t.Errorf("a zero byte in a value: %v", resp)
		}
	})
	t.Run("more than is allowed", func(t *testing.T) {
		sb := box(t)
		big := fields{}
		for i := range 20 {
			big[fmt.Sprintf("BIG%d", i)] = strings.Repeat("x", 64<<10)
		}
		if resp := sb.Call("POST", "/exec", fields{"command": "true", "env": big}); resp.Status/100 != 4 {
			t.Errorf("1.25 MiB: %v", resp)
		}
	})
}
