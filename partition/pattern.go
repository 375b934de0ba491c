package partition

import (
	"regexp"
	"strings"
)

// pattern is the compiled expression of a [Placement], which a whole name has to match. A search makes hundreds
// of plans, each with hundreds of parameters, and its expressions are literals around one number, as in
// h\.[0-9]+\.mlp\.c_fc\.weight. These are matched without package regexp.
type pattern struct {
	before, after string
	number        bool           // one or more digits between before and after
	re            *regexp.Regexp // for any other expression
}

const anyNumber = "[0-9]+"

// newPattern compiles an expression.
func newPattern(expr string) (pattern, error) {
	head, tail, number := strings.Cut(expr, anyNumber)
	before, ok := literal(head)
	after, alsoOK := literal(tail)
	// A digit after the number could belong to either.
	if ok && alsoOK && (after == "" || after[0] < '0' || after[0] > '9') {
		return pattern{before: before, after: after, number: number}, nil
	}
	if _, err := regexp.Compile(expr); err != nil {
		return pattern{}, err
	}
	re, err := regexp.Compile("^(?:" + expr + ")$")
	return pattern{re: re}, err
}

// literal returns the only text that an expression matches, if it is written with
// nothing but letters, digits, underscores, hyphens, slashes and escaped full stops.
func literal(expr string) (text string, ok bool) {
	for i := 0; i < len(expr); i++ {
		switch c := expr[i]; {
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '/':
		case c == '\\' && i+1 < len(expr) && expr[i+1] == '.':
			i++
		default:
			return "", false
		}
	}
	return strings.ReplaceAll(expr, `\.`, "."), true
}

// matches reports whether the whole name matches.
func (p *pattern) matches(name string) bool {
	switch {
	case p.re != nil:
		return p.re.MatchString(name)
	case !p.number:
		return name == p.before
	}
	rest, ok := strings.CutPrefix(name, p.before)
	digits := 0
	for digits < len(rest) && rest[digits] >= '0' && rest[digits] <= '9' {
		digits++
	}
	return ok && digits > 0 && rest[digits:] == p.after
}
