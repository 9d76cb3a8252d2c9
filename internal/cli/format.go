package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/cayhq/cay/client"
)

// printable shows control characters as escapes: names and targets come from sandboxes, and could otherwise drive the terminal.
func printable(s string) string {
	clean := true
	for _, r := range s {
		if !unicode.IsPrint(r) {
			clean = false
			break
		}
	}
	if clean {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

// formatBytes writes a size with units of 1024, as 512M or 1.5G.
func formatBytes(n int64) string {
	const units = "KMGTP"
	if n < 1024 {
		return strconv.FormatInt(n, 10) + "B"
	}
	v, unit := float64(n)/1024, 0
	for v >= 1023.95 && unit < len(units)-1 {
		v, unit = v/1024, unit+1
	}
	return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0") + units[unit:unit+1]
}

func ago(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return shortDuration(time.Since(t))
}

// until says when a sandbox ends; nothing where its clock stands still or has run out.
func until(sb *client.Sandbox) string {
	if sb.Status != client.Ready || sb.ExpiresAt.IsZero() {
		return ""
	}
	return "in " + shortDuration(time.Until(sb.ExpiresAt))
}

// shortDuration writes the largest unit, and the next where it counts: 45s, 12m, 3h20m, 5d.
func shortDuration(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(d.Hours())/24)
}

func statusText(sb *client.Sandbox) string {
	if sb.StatusReason != "" {
		return fmt.Sprintf("%s (%s)", sb.Status, sb.StatusReason)
	}
	return string(sb.Status)
}

func imageText(sb *client.Sandbox) string {
	if sb.Runtime != "" {
		return sb.Runtime
	}
	return sb.Image
}
