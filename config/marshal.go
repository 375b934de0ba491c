package config

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/autopar/autopar/config/strictyaml"
)

// Marshal prints a Config as YAML that Parse reads back to an equal one. It prints all keys, except
// that those tagged print:"nonzero" are left out if zero. The text is a function of the values
// alone, so it may be hashed. A new key with that tag does not change the text of configurations
// that do not use it, and so neither their plans and checkpoints.
func (c *Config) Marshal() []byte {
	var out strings.Builder
	section := ""
	for _, k := range allKeys() {
		if k.section != section {
			section = k.section
			fmt.Fprintf(&out, "%s:\n", section)
		}
		if k.optional && reflect.ValueOf(k.target(c)).Elem().IsZero() {
			continue
		}
		fmt.Fprintf(&out, "  %s: %s\n", k.name, formatValue(k.target(c)))
	}
	return []byte(out.String())
}

// Changed lists, for a run that continues under c and was saved under was, each key that changes
// what is trained, with both values. Keys that say how the model is cut, or where files are, do
// not.
func (c *Config) Changed(was *Config) []string {
	var all []string
	for _, k := range allKeys() {
		switch k.String() {
		case "model.preset", "data.dir", "batch.micro", "train.out_dir":
			continue
		}
		before, now := formatValue(k.target(was)), formatValue(k.target(c))
		if k.section != "parallel" && before != now {
			all = append(all, fmt.Sprintf("%s was %s, is %s", k, before, now))
		}
	}
	return all
}

// formatValue prints the field behind a key's target on one line of YAML.
func formatValue(target any) string {
	switch v := target.(type) {
	case *int:
		return strconv.Itoa(*v)
	case *float64:
		return strconv.FormatFloat(*v, 'g', -1, 64)
	case *bool:
		return strconv.FormatBool(*v)
	case *string:
		return formatText(*v)
	case *AutoInt:
		return v.String()
	case *Bytes:
		return v.String()
	case *[]Pin:
		pins := make([]string, len(*v))
		for i, pin := range *v {
			words := make([]string, len(pin.Placement))
			for j, word := range pin.Placement {
				words[j] = formatText(word)
			}
			pins[i] = fmt.Sprintf("{match: %s, placement: [%s]}", formatText(pin.Match), strings.Join(words, ", "))
		}
		return "[" + strings.Join(pins, ", ") + "]"
	}
	panic(fmt.Sprintf("BUG: config: no format for %T", target))
}

// formatText prints plain words as they are and quotes the rest.
func formatText(s string) string {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
	plain := strictyaml.Scalar{Text: s}
	_, isBool := plain.Bool()
	if s != "" && strings.Contains(letters, s[:1]) && strings.Trim(s, letters+"0123456789-./") == "" && !isBool && !plain.IsNull() {
		return s
	}
	return strconv.Quote(s)
}
