package partition

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// A pattern matches what its expression matches, however it is compiled.
func TestPatternIsTheExpression(t *testing.T) {
	names := []string{
		"", "h", "h.", "h.0.w", "h.12.w", "h.12.w2", "h.x.w", "h..w", "hx12xw", "h.12.ww", "xh.12.w", "h.1", "h.10", "wte.weight", "wte-weight", "h.0.attn/matmul", "h.0\n.w",
	}
	fast := 0
	for _, expr := range []string{
		"", "h", `h\.`, `h\.[0-9]+\.w`, `h\.[0-9]+`, `h\.[0-9]+0`, `h\.[0-9]+\.w[0-9]+`, `h.[0-9]+.w`, `h\.[0-9]+\.(w|ww)`, `wte\.weight`, `wte.weight`,
		`.*`, `h\.[0-9]+.*`, `[0-9]+`, `h\.0\.attn/matmul`, `(?i)H\.1`, `h\.[0-9]+\.w$`,
	} {
		p, err := newPattern(expr)
		require.NoError(t, err, expr)
		if p.re == nil {
			fast++
		}
		re := regexp.MustCompile("^(?:" + expr + ")$")
		for _, name := range names {
			require.Equal(t, re.MatchString(name), p.matches(name), "%q of %q", expr, name)
		}
	}
	require.Equal(t, 8, fast, "expressions matched without package regexp")
	for _, bad := range []string{"(", `h\.[0-9]+\.(`, "a)(b"} {
		_, err := newPattern(bad)
		require.Error(t, err, bad)
	}
}
