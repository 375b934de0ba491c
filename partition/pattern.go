package partition

import (
	"regexp"
	"strings"
)

// pattern is the expression of a [Placement], which a whole name has to match.
// Plans for hundreds of parameters are made by the hundred in a search, and what it
// writes is literals around one number, as in h\.[0-9]+\.mlp\.c_fc\.weight: such
// expressions are matched without package regexp.
type pattern struct {
	before, after string
	number        bool           // of one digit or more between the two
	re            *regexp.Regexp // of any other expression
}

const anyNumber = "[0-9]+"

// newPattern compiles an expression.
func newPattern(expr string) (pattern, error) {
	head, tail, number := strings.Cut(expr, anyNumber)
	before, ok := literal(head)
	after, alsoOK := literal(tail)
	// A digit behind the number could be of either.
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
