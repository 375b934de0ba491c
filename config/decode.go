package config

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

	"github.com/autopar/autopar/models/gpt"
)

// Override applies one section.key=value through the checks of the file. The value is YAML, except that text needs no
// quotes and is taken as it stands.
func Override(c *Config, assignment string) error {
	at := origin{file: SetFlag}
	name, value, hasValue := strings.Cut(assignment, "=")
	name = strings.TrimSpace(name)
	section, leaf, dotted := strings.Cut(name, ".")
	k, known := findKey(section, leaf)
	switch {
	case !dotted && slices.Contains(sectionNames(), name):
		return at.refuse(name, "is a section; set one of its keys, such as %s", nearestKey(section, ""))
	case !known && !dotted:
		return at.refuse(name, "unknown key, wants section.key=value; did you mean %s?", nearestKey("", name))
	case !known:
		return at.refuse(name, "unknown key; did you mean %s?", nearestKey(section, leaf))
	case !hasValue:
		return at.refuse(name, "has no value; wants %s=VALUE (%s)", name, k.kind())
	}
	if _, isText := k.target(c).(*string); isText {
		if !utf8.ValidString(value) {
			return at.refuse(name, "is not UTF-8")
		}
		return c.setText(k, value, at)
	}
	node, err := parseYAML(SetFlag, []byte(value))
	if err != nil || node == nil {
		return at.refuse(name, "wants %s, got %q", k.kind(), value)
	}
	return c.set(k, node, at)
}

// decodeYAML lays a file over c.
func (c *Config) decodeYAML(file string, data []byte) error {
	root, err := parseYAML(file, data)
	if err != nil {
		return err
	}
	if root == nil {
		return &Error{File: file, Msg: "is empty; wants sections " + strings.Join(sectionNames(), ", ")}
	}
	sections, err := entriesOf(root, file, "")
	if err != nil {
		return err
	}
	for _, section := range sections {
		if !slices.Contains(sectionNames(), section.name) {
			return section.at.refuse(section.name, "unknown section; did you mean %s?", nearestSection(section.name))
		}
		entries, err := entriesOf(section.value, file, section.name)
		if err != nil {
			return err
		}
		// A preset replaces the whole section, so it comes first wherever it stands.
		if i := slices.IndexFunc(entries, func(e entry) bool { return e.name == "preset" }); i > 0 {
			preset := entries[i]
			entries = slices.Insert(slices.Delete(entries, i, i+1), 0, preset)
		}
		for _, e := range entries {
			k, known := findKey(section.name, e.name)
			if !known {
				return e.at.refuse(section.name+"."+e.name, "unknown key; did you mean %s?", nearestKey(section.name, e.name))
			}
			if err := c.set(k, e.value, e.at); err != nil {
				return err
			}
		}
	}
	return nil
}

// nearestSection suggests a section, or the full name of a key written without its section.
func nearestSection(written string) string {
	for _, k := range allKeys() {
		if k.name == written {
			return k.String()
		}
	}
	return Nearest(written, sectionNames())
}

// parseYAML returns the root of the only document, nil if it is empty.
func parseYAML(file string, data []byte) (root ast.Node, err error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if !utf8.Valid(data) {
		return nil, &Error{File: file, Msg: "is not UTF-8 text"}
	}
	parsed, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey()) // entriesOf names duplicates better
	if err != nil {
		bad := &Error{File: file, Msg: "is not YAML", Err: err}
		var syntax *yaml.SyntaxError
		if errors.As(err, &syntax) {
			bad.Msg, bad.Err = "is not YAML: "+syntax.Message, nil
			if syntax.Token != nil && syntax.Token.Position != nil {
				bad.Line = syntax.Token.Position.Line
			}
		}
		return nil, bad
	}
	for _, doc := range parsed.Docs {
		if doc.Body == nil {
			continue
		}
		if root != nil {
			return nil, &Error{File: file, Line: lineOf(doc.Body), Msg: "has a second document; wants one"}
		}
		root = doc.Body
	}
	return root, nil
}

// entry is one key of a mapping.
type entry struct {
	name  string
	value ast.Node
	at    origin
}

// entriesOf lists the keys of a mapping called name (empty for the file itself).
func entriesOf(node ast.Node, file, name string) ([]entry, error) {
	var pairs []*ast.MappingValueNode
	switch n := node.(type) {
	case *ast.MappingNode:
		pairs = n.Values
	case *ast.MappingValueNode:
		pairs = []*ast.MappingValueNode{n}
	default:
		return nil, origin{file, lineOf(node)}.refuse(name, "wants keys and values, got %s", describe(node))
	}
	firstLine := map[string]int{}
	entries := make([]entry, 0, len(pairs))
	for _, pair := range pairs {
		at := origin{file, lineOf(pair.Key)}
		text, ok := scalarOf(pair.Key)
		if !ok {
			return nil, at.refuse(name, "wants plain keys, got %s", describe(pair.Key))
		}
		if first, dup := firstLine[text.value]; dup {
			return nil, at.refuse(strings.TrimPrefix(name+"."+text.value, "."), "duplicate key, first given on line %d", first)
		}
		firstLine[text.value] = at.line
		entries = append(entries, entry{text.value, pair.Value, at})
	}
	return entries, nil
}

// scalar is the text of a YAML leaf. Types are decided here by the YAML 1.2 core schema rather than by the parser, which
// calls 1e-3 a string and 1_000 an integer.
type scalar struct {
	value  string
	quoted bool
}

func scalarOf(node ast.Node) (scalar, bool) {
	switch n := node.(type) {
	case *ast.StringNode:
		kind := n.GetToken().Type
		return scalar{n.Value, kind == token.SingleQuoteType || kind == token.DoubleQuoteType}, true
	case *ast.LiteralNode:
		return scalar{n.Value.Value, true}, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.NullNode, *ast.InfinityNode, *ast.NanNode:
		return scalar{node.GetToken().Value, false}, true
	}
	return scalar{}, false
}

func (s scalar) isNull() bool {
	return !s.quoted && slices.Contains([]string{"", "~", "null", "Null", "NULL"}, s.value)
}

func (s scalar) asBool() (value, ok bool) {
	switch s.value {
	case "true", "True", "TRUE":
		return true, !s.quoted
	case "false", "False", "FALSE":
		return false, !s.quoted
	}
	return false, false
}

func (s scalar) isInt() bool {
	digits := strings.TrimLeft(s.value, "+-")
	return !s.quoted && digits != "" && len(s.value)-len(digits) <= 1 && strings.Trim(digits, "0123456789") == ""
}

// asFloat accepts decimal floats and integers. Infinities and NaN are no configuration.
func (s scalar) asFloat() (float64, bool) {
	if s.quoted || strings.Trim(s.value, "0123456789+-.eE") != "" {
		return 0, false
	}
	f, err := strconv.ParseFloat(s.value, 64)
	return f, err == nil && !math.IsInf(f, 0)
}

// describe says what was found where something else was wanted.
func describe(node ast.Node) string {
	s, ok := scalarOf(node)
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
	_, isBool := s.asBool()
	_, isFloat := s.asFloat()
	switch {
	case s.isNull():
		return "null"
	case s.quoted:
		return fmt.Sprintf("the quoted text '%s'", s.value)
	case isBool:
		return "the boolean " + s.value
	case s.isInt():
		return "the integer " + s.value
	case isFloat:
		return "the float " + s.value
	}
	return "the text " + strconv.Quote(s.value)
}

// lineOf is the 1-based line of a node.
func lineOf(node ast.Node) int {
	if node == nil || node.GetToken() == nil || node.GetToken().Position == nil {
		return 0
	}
	return node.GetToken().Position.Line
}

// set gives one key the value of a node.
func (c *Config) set(k key, node ast.Node, at origin) error {
	s, isScalar := scalarOf(node)
	wrong := func() error { return at.refuse(k.String(), "wants %s, got %s", k.kind(), describe(node)) }
	_, isList := k.target(c).(*[]Pin)
	if isScalar == isList || isScalar && s.isNull() {
		return wrong()
	}

	switch target := k.target(c).(type) {
	case *int:
		n, err := strconv.Atoi(s.value)
		if !s.isInt() || err != nil {
			return wrong()
		}
		*target = n
	case *float64:
		f, ok := s.asFloat()
		if !ok {
			return wrong()
		}
		*target = f
	case *bool:
		b, ok := s.asBool()
		if !ok {
			return wrong()
		}
		*target = b
	case *AutoInt:
		n, err := ParseAutoInt(s.value)
		if err != nil || s.quoted && n != Auto {
			return wrong()
		}
		*target = n
	case *Bytes:
		if s.quoted && strings.Trim(s.value, "0123456789.") == "" {
			return wrong()
		}
		b, err := ParseBytes(s.value)
		if err != nil {
			return at.refuse(k.String(), "%v", err)
		}
		*target = b
	case *[]Pin:
		pins, err := decodePins(k, node, at)
		if err != nil {
			return err
		}
		*target = pins
	case *string:
		_, isBool := s.asBool()
		_, isFloat := s.asFloat()
		if isBool && !s.quoted || isFloat {
			return at.refuse(k.String(), "wants %s, got %s; quote it to make it text", k.kind(), describe(node))
		}
		return c.setText(k, s.value, at)
	}
	c.remember(k.String(), at)
	return nil
}

// setText gives a text key its value.
func (c *Config) setText(k key, text string, at origin) error {
	if k.String() == "train.dtype" {
		switch text {
		case "fp32":
			text = "float32"
		case "bf16":
			text = "bfloat16"
		case "fp16":
			text = "float16"
		}
	}
	isPreset := k.String() == "model.preset"
	if k.words != nil && !slices.Contains(k.words, text) && !(isPreset && text == "") {
		return at.refuse(k.String(), "is %q, must be one of %s; did you mean %s?",
			text, strings.Join(k.words, ", "), Nearest(text, k.words))
	}
	if isPreset && text != "" {
		model, err := gpt.Preset(text)
		if err != nil {
			panic("BUG: config: " + err.Error())
		}
		c.Model = model
		for _, other := range allKeys() {
			if other.section == k.section {
				c.remember(other.String(), at)
			}
		}
		return nil
	}
	*k.target(c).(*string) = text
	c.remember(k.String(), at)
	return nil
}

// decodePins reads parallel.pin.
func decodePins(k key, node ast.Node, at origin) ([]Pin, error) {
	list, ok := node.(*ast.SequenceNode)
	if !ok {
		return nil, at.refuse(k.String(), "wants %s, got %s", k.kind(), describe(node))
	}
	var pins []Pin
	for i, item := range list.Values {
		name := fmt.Sprintf("%s[%d]", k, i)
		entries, err := entriesOf(item, at.file, name)
		if err != nil {
			return nil, err
		}
		var pin Pin
		for _, e := range entries {
			path := name + "." + e.name
			switch e.name {
			case "match":
				s, ok := scalarOf(e.value)
				if !ok || s.isNull() {
					return nil, e.at.refuse(path, "wants a regular expression, got %s", describe(e.value))
				}
				pin.Match = s.value
			case "placement":
				words, ok := e.value.(*ast.SequenceNode)
				if !ok {
					return nil, e.at.refuse(path, "wants a list such as [dp, _, tp], got %s", describe(e.value))
				}
				for _, word := range words.Values {
					s, ok := scalarOf(word)
					if !ok || s.isNull() {
						return nil, e.at.refuse(path, "wants an axis name or _, got %s", describe(word))
					}
					pin.Placement = append(pin.Placement, s.value)
				}
			default:
				return nil, e.at.refuse(path, "unknown key; did you mean %s.%s?", name, Nearest(e.name, []string{"match", "placement"}))
			}
		}
		pins = append(pins, pin)
	}
	return pins, nil
}

// remember notes where a key was written.
func (c *Config) remember(name string, at origin) {
	if c.origins == nil {
		c.origins = map[string]origin{}
	}
	c.origins[name] = at
}
