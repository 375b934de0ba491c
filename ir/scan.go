package ir

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// scanner reads the tokens of one line. Its methods skip space before a token, and leave at in front of a token
// that they cannot read.
type scanner struct {
	text string
	at   int
}

func (s *scanner) rest() string { return s.text[s.at:] }

func (s *scanner) done() bool { return s.at == len(s.text) || strings.HasPrefix(s.rest(), "//") }

func (s *scanner) space() {
	for s.at < len(s.text) && (s.text[s.at] == ' ' || s.text[s.at] == '\t') {
		s.at++
	}
}

// next returns the first byte of the next token, 0 at the end of the line.
func (s *scanner) next() byte {
	s.space()
	if s.at == len(s.text) {
		return 0
	}
	return s.text[s.at]
}

func (s *scanner) sees(token string) bool {
	s.space()
	return strings.HasPrefix(s.rest(), token)
}

func (s *scanner) eat(token string) bool {
	if !s.sees(token) {
		return false
	}
	s.at += len(token)
	return true
}

// end checks that nothing but a comment is left.
func (s *scanner) end() error {
	s.space()
	if !s.done() {
		return fmt.Errorf("%q is not expected here", s.rest())
	}
	return nil
}

// comment reads the end of a node's line and returns the position in it, if any.
func (s *scanner) comment() (string, error) {
	if err := s.end(); err != nil {
		return "", err
	}
	pos := strings.Trim(strings.TrimPrefix(s.rest(), "//"), " \t")
	if !isPos(pos) {
		return "", nil
	}
	return pos, nil
}

// while reads the bytes that ok accepts.
func (s *scanner) while(ok func(byte) bool) string {
	s.space()
	start := s.at
	for s.at < len(s.text) && ok(s.text[s.at]) {
		s.at++
	}
	return s.text[start:s.at]
}

// bare reads a word without quotes, which may be empty.
func (s *scanner) bare() string {
	if s.sees("//") {
		return ""
	}
	return s.while(isBareByte)
}

// word reads a word with or without quotes.
func (s *scanner) word() (string, error) {
	if s.next() == '"' {
		return s.quoted()
	}
	if w := s.bare(); w != "" {
		return w, nil
	}
	return "", fmt.Errorf("want a word or a quoted string")
}

func (s *scanner) quoted() (string, error) {
	s.space()
	prefix, err := strconv.QuotedPrefix(s.rest())
	if err != nil || prefix[0] != '"' {
		return "", fmt.Errorf("want a quoted string")
	}
	text, err := strconv.Unquote(prefix)
	if err != nil {
		return "", fmt.Errorf("bad quoted string %s", prefix)
	}
	s.at += len(prefix)
	return text, nil
}

func (s *scanner) integer() (int, error) {
	s.space()
	start := s.at
	digits := s.while(func(c byte) bool { return c >= '0' && c <= '9' })
	n, err := strconv.Atoi(digits)
	if err != nil {
		s.at = start
		return 0, fmt.Errorf("want an integer, not %q", digits)
	}
	return n, nil
}

func (s *scanner) valueID() (int, error) {
	if !s.eat("%") {
		return 0, fmt.Errorf("want a value, as %%3")
	}
	return s.integer()
}

// mesh reads the axes of a mesh in parentheses.
func (s *scanner) mesh() (Mesh, error) {
	var m Mesh
	if !s.eat("(") {
		return m, fmt.Errorf("want ( after mesh")
	}
	axes, err := list(s, s.axis)
	if err != nil {
		return m, err
	}
	if !s.eat(")") {
		return m, fmt.Errorf("want ) after the axes of the mesh")
	}
	m.Axes = axes
	return m, nil
}

func (s *scanner) axis() (Axis, error) {
	var a Axis
	var err error
	a.Name = s.bare()
	if !s.eat("=") {
		return a, fmt.Errorf("want axis=size")
	}
	if a.Size, err = s.integer(); err != nil {
		return a, err
	}
	for next := a.Size; s.eat(":"); a.Size++ {
		if a.Shares == nil {
			a.Shares, a.Size = []int{next}, 1
		}
		if next, err = s.integer(); err != nil {
			return a, err
		}
		a.Shares = append(a.Shares, next)
	}
	if s.eat("/") {
		if a.Chunk, err = s.integer(); err != nil {
			return a, err
		}
	}
	a.Time = s.eat("t")
	return a, nil
}

// seesType reports whether the next token is a word before a bracket.
func (s *scanner) seesType() bool {
	s.space()
	ahead := *s
	return ahead.bare() != "" && ahead.at < len(s.text) && s.text[ahead.at] == '['
}

// typ reads a type, as f32[8,128].
func (s *scanner) typ() (Type, error) {
	s.space()
	start := s.at
	dtype, err := ParseDType(s.bare())
	if err != nil {
		s.at = start
		return Type{}, err
	}
	t := Type{DType: dtype}
	if !s.eat("[") {
		return t, fmt.Errorf("want [ after %s", dtype)
	}
	if s.eat("]") {
		return t, nil
	}
	if t.Shape, err = list(s, s.integer); err != nil {
		return t, err
	}
	if !s.eat("]") {
		return t, fmt.Errorf("want ] after the shape")
	}
	return t, nil
}

// spec reads the text of a spec, as [dp,_]+{tp}.
func (s *scanner) spec() (string, error) {
	start := s.at
	s.space()
	text := s.rest()
	end := strings.IndexByte(text, ']') + 1
	if text == "" || text[0] != '[' || end == 0 {
		s.at = start
		return "", fmt.Errorf("want a spec, as [dp,_]+{tp}")
	}
	if strings.HasPrefix(text[end:], "+{") {
		brace := strings.IndexByte(text[end:], '}') + 1
		if brace == 0 {
			return "", fmt.Errorf("want } after the partial axes")
		}
		end += brace
	}
	s.at += end
	return text[:end], nil
}

// attr reads the attributes of op in braces, the zero ones when there are none.
func (s *scanner) attr(op Op) (Attr, error) {
	zero := attrOf(op)
	if !s.eat("{") {
		return zero, nil
	}
	if zero == nil {
		return nil, fmt.Errorf("%s takes no attributes", op)
	}
	fields := reflect.New(reflect.TypeOf(zero)).Elem()
	seen := map[string]bool{}
	for !s.eat("}") {
		start := s.at
		key := s.while(func(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' })
		if key == "" {
			return nil, fmt.Errorf("want an attribute or }")
		}
		if seen[key] {
			s.at = start
			return nil, fmt.Errorf("attribute %q is there twice", key)
		}
		seen[key] = true
		value, hasValue := "", s.eat("=")
		if hasValue {
			var err error
			if value, err = s.word(); err != nil {
				return nil, fmt.Errorf("attribute %q: %w", key, err)
			}
		}
		if err := setAttr(fields, key, value, hasValue); err != nil {
			s.at = start
			return nil, err
		}
	}
	return fields.Interface().(Attr), nil
}
