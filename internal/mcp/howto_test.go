package mcp_test

import (
	"bufio"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
)

var codeBlock = regexp.MustCompile("(?s)```(json|toml)\n(.*?)```")

func TestTheSnippetsOfTheHowToAreWellFormed(t *testing.T) {
	doc, err := os.ReadFile("../../docs/how-to/mcp.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, block := range codeBlock.FindAllSubmatch(doc, -1) {
		found++
		entry := map[string]any{}
		if string(block[1]) == "toml" {
			entry = tables(t, string(block[2]))["mcp_servers.cay"]
		} else {
			var whole struct {
				Inputs              []map[string]any
				MCPServers, Servers map[string]map[string]any
			}
			d := json.NewDecoder(strings.NewReader(string(block[2])))
			d.DisallowUnknownFields()
			if err := d.Decode(&whole); err != nil {
				t.Errorf("%v:\n%s", err, block[2])
				continue
			}
			for _, servers := range []map[string]map[string]any{whole.MCPServers, whole.Servers} {
				if e, ok := servers["cay"]; ok {
					entry = e
				}
			}
		}
		address := ""
		for _, name := range []string{"url", "httpUrl", "serverUrl", "command"} {
			if s, ok := entry[name].(string); ok {
				address += s
			}
		}
		if address != "http://127.0.0.1:8080/mcp" && address != "cay" {
			t.Errorf("this leads to %q:\n%s", address, block[2])
		}
	}
	if found != 7 {
		t.Errorf("there are %d snippets", found)
	}
}

// tables reads the part of TOML that the how-to needs: tables of strings and numbers.
func tables(t *testing.T, text string) map[string]map[string]any {
	t.Helper()
	out, current := map[string]map[string]any{}, map[string]any{}
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		if name, ok := strings.CutPrefix(line, "["); ok {
			current = map[string]any{}
			out[strings.TrimSuffix(name, "]")] = current
			continue
		}
		name, value, ok := strings.Cut(line, " = ")
		var v any
		if err := json.Unmarshal([]byte(value), &v); !ok || err != nil {
			t.Errorf("%q is no line of TOML that this test knows", line)
		}
		current[name] = v
	}
	return out
}

func TestTheHowToNamesEveryTool(t *testing.T) {
	doc, err := os.ReadFile("../../docs/how-to/mcp.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range allTools {
		if !strings.Contains(string(doc), "`"+tool+"`") {
			t.Errorf("the how-to does not name %s", tool)
		}
	}
}
