package strictyaml

import (
	"errors"
	"testing"

	"github.com/goccy/go-yaml/ast"
	"github.com/stretchr/testify/require"
)

// root parses a text that is right.
func root(t *testing.T, text string) ast.Node {
	t.Helper()
	node, err := Parse("a.yaml", []byte(text))
	require.NoError(t, err)
	return node
}

// refused is an error without the place in its line.
type refused struct {
	line     int
	key, msg string
}

func refusal(t *testing.T, err error) refused {
	t.Helper()
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "a.yaml", e.File)
	return refused{e.Line, e.Key, e.Msg}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]refused{
		"a: 1\n---\nb: 2\n": {3, "", "has a second document; wants one"},
		"a: \xff":           {0, "", "is not UTF-8 text"},
		"a: 1\nb: {c: 2\n":  {2, "", "is not YAML: could not find flow mapping end token '}'"},
	} {
		_, err := Parse("a.yaml", []byte(text))
		require.Equal(t, want, refusal(t, err), "%q", text)
	}
	for _, empty := range []string{"", "\ufeff", "# nothing\n", "---\n"} {
		require.Nil(t, root(t, empty), "%q", empty)
	}
	entries, err := Entries(root(t, "%YAML 1.2\n---\nb: 1\n"), "a.yaml", "")
	require.NoError(t, err, "a directive is no document")
	require.Len(t, entries, 1)
}

func TestEntries(t *testing.T) {
	entries, err := Entries(root(t, "\ufeffb: 1\n\n'a': {c: 2}\n"), "a.yaml", "")
	require.NoError(t, err)
	require.Len(t, entries, 2)
	require.Equal(t, "b", entries[0].Name)
	require.Equal(t, "a", entries[1].Name)
	require.Equal(t, 3, entries[1].At.Line)
	inner, err := Entries(entries[1].Value, "a.yaml", "a")
	require.NoError(t, err)
	require.Equal(t, "c", inner[0].Name)

	for text, want := range map[string]refused{
		"- 1":              {1, "model", "wants keys and values, got a list"},
		"7":                {1, "model", "wants keys and values, got the integer 7"},
		"a: 1\nb: 2\na: 3": {3, "model.a", "duplicate key, first given on line 1"},
		"&x b: 2":          {1, "model", "wants plain keys, got a YAML anchor, alias or merge, which is not accepted here"},
	} {
		_, err := Entries(root(t, text), "a.yaml", "model")
		require.Equal(t, want, refusal(t, err), "%q", text)
	}
	_, err = Entries(root(t, "a: 1\na: 2"), "a.yaml", "")
	require.Equal(t, "a", refusal(t, err).key, "a key of the file itself has no section")
}

// TestScalars: a scalar is what is written, by the YAML 1.2 core schema and not by
// what a parser of YAML 1.1 takes for a bool, an octal or a base-60 number.
func TestScalars(t *testing.T) {
	for _, tt := range []struct {
		text                   string
		isInt, isFloat, isBool bool
		float                  float64
		described              string
	}{
		{"7", true, true, false, 7, "the integer 7"},
		{"-12", true, true, false, -12, "the integer -12"},
		{"010", true, true, false, 10, "the integer 010"},
		{"1e-3", false, true, false, 1e-3, "the float 1e-3"},
		{".5", false, true, false, .5, "the float .5"},
		{"1_000", false, false, false, 0, `the text "1_000"`},
		{"0x10", false, false, false, 0, `the text "0x10"`},
		{"1e999", false, false, false, 0, `the text "1e999"`},
		{".inf", false, false, false, 0, `the text ".inf"`},
		{".nan", false, false, false, 0, `the text ".nan"`},
		{"--1", false, false, false, 0, `the text "--1"`},
		{"True", false, false, true, 0, "the boolean True"},
		{"yes", false, false, false, 0, `the text "yes"`},
		{"'7'", false, false, false, 0, "the quoted text '7'"},
		{`"true"`, false, false, false, 0, "the quoted text 'true'"},
		{"~", false, false, false, 0, "null"},
		{"two words", false, false, false, 0, `the text "two words"`},
	} {
		entries, err := Entries(root(t, "a: "+tt.text), "a.yaml", "")
		require.NoError(t, err, tt.text)
		s, ok := ScalarOf(entries[0].Value)
		require.True(t, ok, tt.text)
		require.Equal(t, tt.isInt, s.IsInt(), tt.text)
		float, isFloat := s.Float()
		require.Equal(t, tt.isFloat, isFloat, tt.text)
		if isFloat {
			require.Equal(t, tt.float, float, tt.text)
		}
		value, isBool := s.Bool()
		require.Equal(t, tt.isBool, isBool, tt.text)
		require.True(t, value || !isBool, tt.text)
		require.Equal(t, tt.described == "null", s.IsNull(), tt.text)
		require.Equal(t, tt.described, Describe(entries[0].Value))
	}
	for text, want := range map[string]string{
		"{b: 1}": "a mapping", "[1]": "a list", "!!int 3": "a YAML tag, which is not accepted here",
		"&x 3": "a YAML anchor, alias or merge, which is not accepted here",
	} {
		entries, err := Entries(root(t, "a: "+text), "a.yaml", "")
		require.NoError(t, err, text)
		_, ok := ScalarOf(entries[0].Value)
		require.False(t, ok, text)
		require.Equal(t, want, Describe(entries[0].Value))
	}
}

func TestErrorText(t *testing.T) {
	cause := errors.New("no such file")
	for want, e := range map[string]*Error{
		"a.yaml:3: model.n_layer: is 0":        {File: "a.yaml", Line: 3, Key: "model.n_layer", Msg: "is 0"},
		"a.yaml: cannot be read: no such file": {File: "a.yaml", Msg: "cannot be read", Err: cause},
		"model.n_layer: is 0":                  {Line: 3, Key: "model.n_layer", Msg: "is 0"},
	} {
		require.EqualError(t, e, want)
	}
	require.ErrorIs(t, &Error{Err: cause}, cause)
	require.EqualError(t, Origin{File: "a.yaml", Line: 3}.Refuse("model", "is %d", 4), "a.yaml:3: model: is 4")
}
