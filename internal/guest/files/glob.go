package files

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"

	"github.com/cayhq/cay"
)

const (
	// maxPattern bounds a glob or a regular expression, in bytes.
	maxPattern = 1024
	// maxProgram bounds what it is compiled to, in instructions: the time to match is proportional to it.
	maxProgram = 4096
)

// glob is a pattern for paths: * and ? and [a-z] within a name, {a,b} for one or the other, ** for any number of directories.
type glob struct {
	re   *regexp.Regexp
	base bool // matched with the base name
}

// compileGlob reads a pattern. One without a slash is matched with base names; "" matches everything.
func compileGlob(pattern string) (*glob, error) {
	if pattern == "" {
		return &glob{}, nil
	}
	if len(pattern) > maxPattern {
		return nil, errPattern("pattern", fmt.Errorf("it has %d bytes, at most %d are possible", len(pattern), maxPattern))
	}
	source, err := translateGlob(strings.TrimPrefix(pattern, "/"))
	if err != nil {
		return nil, errPattern("pattern", err)
	}
	re, err := compileBounded(`(?s)\A(?:` + source + `)\z`)
	if err != nil {
		return nil, errPattern("pattern", err)
	}
	return &glob{re: re, base: !strings.Contains(pattern, "/")}, nil
}

func (g *glob) match(rel, name string) bool {
	switch {
	case g.re == nil:
		return true
	case g.base:
		return g.re.MatchString(name)
	}
	return g.re.MatchString(rel)
}

func errPattern(field string, err error) error {
	return cay.Errorf(cay.Unprocessable, "the %s cannot be used: %v", field, err).On(field)
}

// compileBounded compiles a regular expression of RE2's syntax whose matching takes bounded time for each byte.
func compileBounded(source string) (*regexp.Regexp, error) {
	parsed, err := syntax.Parse(source, syntax.Perl)
	if err != nil {
		return nil, err
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return nil, err
	}
	if len(program.Inst) > maxProgram {
		return nil, fmt.Errorf("it is too complex")
	}
	return regexp.Compile(source)
}

// translateGlob makes a regular expression of a pattern.
func translateGlob(p string) (string, error) {
	var out strings.Builder
	braces := 0
	for i := 0; i < len(p); i++ {
		switch c := p[i]; c {
		case '*':
			if !strings.HasPrefix(p[i:], "**") {
				out.WriteString(`[^/]*`)
				continue
			}
			// ** is a whole part of the path; next to anything else it is two stars.
			begins := i == 0 || p[i-1] == '/'
			switch rest := p[i+2:]; {
			case begins && strings.HasPrefix(rest, "/"):
				out.WriteString(`(?:[^/]+/)*`)
				i += 2
			case begins && rest == "":
				out.WriteString(`.+`)
				i++
			default:
				out.WriteString(`[^/]*`)
				i++
			}
		case '?':
			out.WriteString(`[^/]`)
		case '[':
			class, length, err := translateClass(p[i:])
			if err != nil {
				return "", err
			}
			out.WriteString(class)
			i += length - 1
		case '{':
			braces++
			out.WriteString(`(?:`)
		case '}':
			if braces == 0 {
				out.WriteString(`\}`)
				continue
			}
			braces--
			out.WriteString(`)`)
		case ',':
			if braces > 0 {
				out.WriteString(`|`)
			} else {
				out.WriteString(`,`)
			}
		case '\\':
			i++
			if i == len(p) {
				return "", fmt.Errorf("it ends in a backslash")
			}
			fallthrough
		default:
			out.WriteString(quoteByte(p, &i))
		}
	}
	if braces > 0 {
		return "", fmt.Errorf("a brace is not closed")
	}
	return out.String(), nil
}

// quoteByte quotes the character at i, which it leaves at the character's last byte.
func quoteByte(p string, i *int) string {
	size := 1
	for *i+size < len(p) && p[*i+size]&0xc0 == 0x80 {
		size++
	}
	c := p[*i : *i+size]
	*i += size - 1
	return regexp.QuoteMeta(c)
}

// translateClass reads a class at the beginning of p and returns its length there. A slash never matches one.
func translateClass(p string) (class string, length int, err error) {
	i := 1
	negated := i < len(p) && (p[i] == '!' || p[i] == '^')
	if negated {
		i++
	}
	first := i
	for i < len(p) && (p[i] != ']' || i == first) {
		if p[i] == '\\' {
			i++
		}
		i++
	}
	if i >= len(p) {
		return "", 0, fmt.Errorf("a bracket is not closed")
	}
	var out strings.Builder
	out.WriteByte('[')
	if negated {
		out.WriteString(`^/`)
	}
	for j := first; j < i; j++ {
		switch c := p[j]; c {
		case '-':
			out.WriteByte('-')
		case '/':
			return "", 0, fmt.Errorf("a slash cannot be in brackets")
		case '\\':
			j++
			fallthrough
		default:
			if q := quoteByte(p, &j); strings.ContainsAny(q, `[]^&~`) && !strings.HasPrefix(q, `\`) {
				out.WriteString(`\` + q)
			} else {
				out.WriteString(q)
			}
		}
	}
	out.WriteByte(']')
	return out.String(), i + 1, nil
}
