package cli

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Reference writes every command of root with its flags as one Markdown document.
func Reference(root *cobra.Command) []byte {
	var b bytes.Buffer
	b.WriteString("# Command line\n\n<!-- Generated from the commands themselves; go test ./internal/cli -update writes it anew. -->\n\n")
	b.WriteString(fenceIndented(root.Long) + "\n\n")
	b.WriteString("Every command takes `-h, --help` and `-o, --output FORM` (table or json).\n")
	for _, c := range root.Commands() {
		if !c.IsAvailableCommand() || c.Name() == "help" || c.Name() == "completion" {
			continue
		}
		describeCommand(&b, c)
	}
	b.WriteString("\n## cay completion\n\nPrints a completion script for bash, zsh, fish or powershell: `source <(cay completion bash)`.\n")
	return b.Bytes()
}

func describeCommand(b *bytes.Buffer, c *cobra.Command) {
	fmt.Fprintf(b, "\n## %s\n\n%s.\n\n```\n%s\n```\n", c.CommandPath(), c.Short, c.UseLine())
	if c.Long != "" {
		long, _, _ := strings.Cut(c.Long, "\n\n"+exitCodes) // said once, at the top
		fmt.Fprintf(b, "\n%s\n", fenceIndented(long))
	}
	if c.Example != "" {
		fmt.Fprintf(b, "\n```sh\n%s\n```\n", unindent(c.Example))
	}
	if c.HasAvailableLocalFlags() {
		fmt.Fprintf(b, "\n```\n%s```\n", c.LocalFlags().FlagUsages())
	}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			describeCommand(b, sub)
		}
	}
}

func unindent(s string) string {
	return strings.TrimPrefix(strings.ReplaceAll("\n"+s, "\n  ", "\n"), "\n")
}

// fenceIndented puts runs of indented lines into code fences.
func fenceIndented(s string) string {
	var out []string
	fenced := false
	for line := range strings.Lines(s) {
		line = strings.TrimSuffix(line, "\n")
		if in := strings.HasPrefix(line, "  "); in != fenced {
			if in {
				out = append(out, "", "```")
			} else {
				out = append(out, "```")
			}
			fenced = in
		}
		out = append(out, strings.TrimPrefix(line, "  "))
	}
	if fenced {
		out = append(out, "```")
	}
	return strings.Join(out, "\n")
}
