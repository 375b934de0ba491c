package config

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"

	"github.com/autopar/autopar/config/strictyaml"
	"github.com/autopar/autopar/models/gpt"
)

// Override applies one section.key=value with the checks of the file. The value is YAML, except
// that text needs no quotes and is taken literally. Errors, including those of Validate, have flag
// in place of a file.
func Override(c *Config, flag, assignment string) error {
	at := strictyaml.Origin{File: flag}
	name, value, hasValue := strings.Cut(assignment, "=")
	name = strings.TrimSpace(name)
	section, leaf, dotted := strings.Cut(name, ".")
	k, known := findKey(section, leaf)
	switch {
	case strings.Trim(name, ".") == "":
		return &Error{File: flag, Msg: fmt.Sprintf("wants section.key=value, got %q", assignment)}
	case !dotted && slices.Contains(sectionNames(), name):
		return at.Refuse(name, "is a section; set one of its keys, such as %s", nearestKey(section, ""))
	case !known && !dotted:
		return at.Refuse(name, "unknown key, wants section.key=value; did you mean %s?", nearestKey("", name))
	case !known:
		return at.Refuse(name, "unknown key; did you mean %s?", nearestKey(section, leaf))
	case !hasValue:
		return at.Refuse(name, "has no value; wants %s=VALUE (%s)", name, k.kind())
	}
	if _, isText := k.target(c).(*string); isText {
		if !utf8.ValidString(value) {
			return at.Refuse(name, "is not UTF-8")
		}
		return c.setText(k, value, at)
	}
	node, err := strictyaml.Parse(flag, []byte(value))
	if bad, is := err.(*Error); is {
		return at.Refuse(name, "wants %s, got %q, which %s", k.kind(), value, bad.Msg)
	}
	if err != nil || node == nil {
		return at.Refuse(name, "wants %s, got %q", k.kind(), value)
	}
	return c.set(k, node, at)
}

// decodeYAML applies a file to c.
func (c *Config) decodeYAML(file string, data []byte) error {
	root, err := strictyaml.Parse(file, data)
	if err != nil {
		return err
	}
	if root == nil {
		return &Error{File: file, Msg: "is empty; wants sections " + strings.Join(sectionNames(), ", ")}
	}
	sections, err := strictyaml.Entries(root, file, "")
	if err != nil {
		return err
	}
	for _, section := range sections {
		if !slices.Contains(sectionNames(), section.Name) {
			return section.At.Refuse(section.Name, "unknown section; did you mean %s?", nearestSection(section.Name))
		}
		entries, err := strictyaml.Entries(section.Value, file, section.Name)
		if err != nil {
			return err
		}
		// A preset replaces the whole section, so it comes first wherever it stands.
		if i := slices.IndexFunc(entries, func(e strictyaml.Entry) bool { return e.Name == "preset" }); i > 0 {
			preset := entries[i]
			entries = slices.Insert(slices.Delete(entries, i, i+1), 0, preset)
		}
		for _, e := range entries {
			k, known := findKey(section.Name, e.Name)
			if !known {
				return e.At.Refuse(section.Name+"."+e.Name, "unknown key; did you mean %s?", nearestKey(section.Name, e.Name))
			}
			if err := c.set(k, e.Value, e.At); err != nil {
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
	if k, known := elsewhere(written); known {
		return k
	}
	return Nearest(written, sectionNames())
}

// set gives one key the value of a node.
func (c *Config) set(k key, node ast.Node, at strictyaml.Origin) error {
	s, isScalar := strictyaml.ScalarOf(node)
	wrong := func() error { return at.Refuse(k.String(), "wants %s, got %s", k.kind(), strictyaml.Describe(node)) }
	wrongInt := func() error {
		if _, err := strconv.Atoi(s.Text); !s.IsInt() || !errors.Is(err, strconv.ErrRange) {
			return wrong()
		}
		if s.Text[0] == '-' {
			return at.Refuse(k.String(), "is %s, must be at least %d", s.Text, math.MinInt)
		}
		return at.Refuse(k.String(), "is %s, must be at most %d", s.Text, math.MaxInt)
	}
	_, isList := k.target(c).(*[]Pin)
	if isScalar == isList || isScalar && s.IsNull() {
		return wrong()
	}

	switch target := k.target(c).(type) {
	case *int:
		n, err := strconv.Atoi(s.Text)
		if !s.IsInt() || err != nil {
			return wrongInt()
		}
		*target = n
	case *float64:
		f, ok := s.Float()
		if !ok {
			return wrong()
		}
		*target = f
	case *bool:
		b, ok := s.Bool()
		if !ok {
			return wrong()
		}
		*target = b
	case *AutoInt:
		n, err := parseAutoInt(s.Text)
		if err != nil || s.Quoted && n != Auto {
			return wrongInt()
		}
		*target = n
	case *Bytes:
		if s.Quoted && strings.Trim(s.Text, "0123456789.") == "" {
			return wrong()
		}
		b, err := ParseBytes(s.Text)
		if err != nil {
			return at.Refuse(k.String(), "%v", err)
		}
		*target = b
	case *[]Pin:
		pins, err := c.decodePins(k, node, at)
		if err != nil {
			return err
		}
		*target = pins
	case *string:
		_, isBool := s.Bool()
		_, isFloat := s.Float()
		if isBool && !s.Quoted || isFloat {
			return at.Refuse(k.String(), "wants %s, got %s; quote it to make it text", k.kind(), strictyaml.Describe(node))
		}
		return c.setText(k, s.Text, at)
	}
	c.remember(k.String(), at)
	return nil
}

// setText gives a text key its value.
func (c *Config) setText(k key, text string, at strictyaml.Origin) error {
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
		return at.Refuse(k.String(), "is %q, must be one of %s; did you mean %s?",
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

// decodePins reads parallel.pin, and remembers where each part of it was written.
func (c *Config) decodePins(k key, node ast.Node, at strictyaml.Origin) ([]Pin, error) {
	list, ok := node.(*ast.SequenceNode)
	if !ok {
		return nil, at.Refuse(k.String(), "wants %s, got %s", k.kind(), strictyaml.Describe(node))
	}
	var pins []Pin
	for i, item := range list.Values {
		name := fmt.Sprintf("%s[%d]", k, i)
		entries, err := strictyaml.Entries(item, at.File, name)
		if err != nil {
			return nil, err
		}
		var pin Pin
		for _, e := range entries {
			path := name + "." + e.Name
			c.remember(path, e.At)
			switch e.Name {
			case "match":
				s, ok := strictyaml.ScalarOf(e.Value)
				if !ok || s.IsNull() {
					return nil, e.At.Refuse(path, "wants a regular expression, got %s", strictyaml.Describe(e.Value))
				}
				pin.Match = s.Text
			case "placement":
				words, ok := e.Value.(*ast.SequenceNode)
				if !ok {
					return nil, e.At.Refuse(path, "wants a list such as [_, tp], got %s", strictyaml.Describe(e.Value))
				}
				for _, word := range words.Values {
					s, ok := strictyaml.ScalarOf(word)
					if !ok || s.IsNull() {
						return nil, e.At.Refuse(path, "wants an axis name or _, got %s", strictyaml.Describe(word))
					}
					pin.Placement = append(pin.Placement, s.Text)
				}
			default:
				return nil, e.At.Refuse(path, "unknown key; did you mean %s.%s?", name, Nearest(e.Name, []string{"match", "placement"}))
			}
		}
		pins = append(pins, pin)
	}
	return pins, nil
}

// remember notes where a key was written.
func (c *Config) remember(name string, at strictyaml.Origin) {
	if c.origins == nil {
		c.origins = map[string]strictyaml.Origin{}
	}
	c.origins[name] = at
}
