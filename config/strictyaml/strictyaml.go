// Package strictyaml reads YAML strictly, for settings: one document, no duplicate keys, no anchors
// or tags, and scalars as they are written, so that whoever knows a key also decides its type.
// Errors name file, line and key.
package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Error is an input that cannot be used. It prints as "gpt.yaml:3:5: model.n_layer: wants an integer, got ...".
type Error struct {
	File   string // as given by the caller
	Line   int    // 1-based; 0 when no line applies
	Column int    // 1-based; 0 when it is not known
	Key    string // section.key, or empty
	Msg    string
	Err    error // cause, if any
}

func (e *Error) Error() string {
	var parts []string
	switch {
	case e.File != "" && e.Line > 0 && e.Column > 0:
		parts = append(parts, fmt.Sprintf("%s:%d:%d", e.File, e.Line, e.Column))
	case e.File != "" && e.Line > 0:
		parts = append(parts, fmt.Sprintf("%s:%d", e.File, e.Line))
	case e.File != "":
		parts = append(parts, e.File)
	}
	if e.Key != "" {
		parts = append(parts, e.Key)
	}
	parts = append(parts, e.Msg)
	if e.Err != nil {
		parts = append(parts, e.Err.Error())
	}
	return strings.Join(parts, ": ")
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Origin is where something was written. The zero Origin stands for a default.
type Origin struct {
	File         string
	Line, Column int // 1-based; 0 is not known
}

// Refuse makes the error of a key at the origin.
func (o Origin) Refuse(key, format string, args ...any) *Error {
	return &Error{File: o.File, Line: o.Line, Column: o.Column, Key: key, Msg: fmt.Sprintf(format, args...)}
}

// Parse returns the root of the only document, nil if it is empty.
func Parse(file string, data []byte) (root ast.Node, err error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if !utf8.Valid(data) {
		return nil, &Error{File: file, Msg: "is not UTF-8 text"}
	}
	parsed, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey()) // Entries names duplicates better
	if err != nil {
		bad := &Error{File: file, Msg: "is not YAML", Err: err}
		if syntax, ok := errors.AsType[*yaml.SyntaxError](err); ok {
			bad.Msg, bad.Err = "is not YAML: "+syntax.Message, nil
			if syntax.Token != nil && syntax.Token.Position != nil {
				bad.Line, bad.Column = syntax.Token.Position.Line, syntax.Token.Position.Column
			}
		}
		return nil, bad
	}
	for _, doc := range parsed.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.DirectiveType && doc.Body.(*ast.DirectiveNode).Name.String() == "YAML" { // of any version alike
			continue
		}
		if root != nil {
			return nil, OriginOf(file, doc.Body).Refuse("", "has a second document; wants one")
		}
		root = doc.Body
	}
	return root, nil
}

// Entry is one key of a mapping.
type Entry struct {
	Name  string
	Value ast.Node
	At    Origin
}

// Entries lists the keys of a mapping called name (empty for the file itself).
func Entries(node ast.Node, file, name string) ([]Entry, error) {
	var pairs []*ast.MappingValueNode
	switch n := node.(type) {
	case *ast.MappingNode:
		pairs = n.Values
	case *ast.MappingValueNode:
		pairs = []*ast.MappingValueNode{n}
	default:
		return nil, OriginOf(file, node).Refuse(name, "wants keys and values, got %s", Describe(node))
	}
	firstLine := map[string]int{}
	entries := make([]Entry, 0, len(pairs))
	for _, pair := range pairs {
		at := OriginOf(file, pair.Key)
		text, ok := ScalarOf(pair.Key)
		if !ok {
			return nil, at.Refuse(name, "wants plain keys, got %s", Describe(pair.Key))
		}
		if first, dup := firstLine[text.Text]; dup {
			return nil, at.Refuse(strings.TrimPrefix(name+"."+text.Text, "."), "duplicate key, first given on line %d", first)
		}
		firstLine[text.Text] = at.Line
		entries = append(entries, Entry{text.Text, pair.Value, at})
	}
	return entries, nil
}

// Scalar is the text of a YAML leaf. Types are decided here by the YAML 1.2 core schema rather than by the parser, which
// calls 1e-3 a string and 1_000 an integer.
type Scalar struct {
	Text   string
	Quoted bool
}

// ScalarOf returns the scalar at a node, false if the node is something else.
func ScalarOf(node ast.Node) (Scalar, bool) {
	switch n := node.(type) {
	case *ast.StringNode:
		kind := n.GetToken().Type
		return Scalar{n.Value, kind == token.SingleQuoteType || kind == token.DoubleQuoteType}, true
	case *ast.LiteralNode:
		return Scalar{n.Value.Value, true}, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.NullNode, *ast.InfinityNode, *ast.NanNode:
		return Scalar{node.GetToken().Value, false}, true
	}
	return Scalar{}, false
}

// IsNull reports whether the scalar stands for nothing.
func (s Scalar) IsNull() bool {
	return !s.Quoted && slices.Contains([]string{"", "~", "null", "Null", "NULL"}, s.Text)
}

// Bool is the scalar as true or false, if it is one of them.
func (s Scalar) Bool() (value, ok bool) {
	switch s.Text {
	case "true", "True", "TRUE":
		return true, !s.Quoted
	case "false", "False", "FALSE":
		return false, !s.Quoted
	}
	return false, false
}

// IsInt reports whether the scalar is a decimal integer.
func (s Scalar) IsInt() bool {
	digits := strings.TrimLeft(s.Text, "+-")
	return !s.Quoted && digits != "" && len(s.Text)-len(digits) <= 1 && strings.Trim(digits, "0123456789") == ""
}

// Float accepts decimal floats and integers, but not infinities and NaN.
func (s Scalar) Float() (float64, bool) {
	if s.Quoted || strings.Trim(s.Text, "0123456789+-.eE") != "" {
		return 0, false
	}
	f, err := strconv.ParseFloat(s.Text, 64)
	return f, err == nil && !math.IsInf(f, 0)
}

// Describe says, for an error, what was found in place of what was wanted.
func Describe(node ast.Node) string {
	s, ok := ScalarOf(node)
	if !ok {
		switch node.(type) {
		case *ast.MappingNode, *ast.MappingValueNode:
			return "a mapping"
		case *ast.SequenceNode:
			return "a list"
		case *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode:
			return "a YAML anchor, alias or merge, which is not accepted here"
		case *ast.TagNode:
			return "a YAML tag, which is not accepted here"
		}
		return "something else"
	}
	_, isBool := s.Bool()
	_, isFloat := s.Float()
	isInt := s.IsInt()
	if len(s.Text) > 64 { // a file that is no YAML may be one text
		s.Text = strings.ToValidUTF8(s.Text[:64], "") + "..."
	}
	switch {
	case s.IsNull():
		return "null"
	case s.Quoted:
		return fmt.Sprintf("the quoted text '%s'", s.Text)
	case isBool:
		return "the boolean " + s.Text
	case isInt:
		return "the integer " + s.Text
	case isFloat:
		return "the float " + s.Text
	}
	return "the text " + strconv.Quote(s.Text)
}

// OriginOf is where a node stands.
func OriginOf(file string, node ast.Node) Origin {
	if node == nil || node.GetToken() == nil || node.GetToken().Position == nil {
		return Origin{File: file}
	}
	at := node.GetToken().Position
	return Origin{file, at.Line, at.Column}
}
