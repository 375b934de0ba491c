package config

import (
	"cmp"
	"reflect"
	"slices"
	"strings"

	"github.com/autopar/autopar/models/gpt"
)

// key is one leaf of the file, as the struct tags of Config describe it.
type key struct {
	section, name string
	words         []string // the legal words of a text key; nil for any
	index         []int    // path of struct fields from Config
	optional      bool     // not printed if it is zero
}

// String is section.key.
func (k key) String() string { return k.section + "." + k.name }

// target points at the field of c that holds the key: *int, *float64, *bool, *string, *AutoInt, *Bytes or *[]Pin.
func (k key) target(c *Config) any {
	return reflect.ValueOf(c).Elem().FieldByIndex(k.index).Addr().Interface()
}

// kind is the type as errors name it.
func (k key) kind() string {
	switch k.target(new(Config)).(type) {
	case *int:
		return "integer"
	case *float64:
		return "float"
	case *bool:
		return "true or false"
	case *string:
		if k.name == "preset" {
			return "name of a preset" // too many to list
		}
		if k.words != nil {
			return strings.Join(k.words, ", ")
		}
		return "text"
	case *AutoInt:
		return "positive integer or auto"
	case *Bytes:
		return "size"
	case *[]Pin:
		return "list of {match, placement}"
	}
	panic("BUG: config: no kind for key " + k.String())
}

// allKeys lists every key in file order.
func allKeys() []key {
	var keys []key
	sections := reflect.TypeFor[Config]()
	for i := range sections.NumField() {
		section := sections.Field(i)
		if !section.IsExported() {
			continue
		}
		for j := range section.Type.NumField() {
			field := section.Type.Field(j)
			if field.Tag.Get("yaml") == "" {
				continue // set by other keys
			}
			k := key{
				section: section.Tag.Get("yaml"), name: field.Tag.Get("yaml"), index: []int{i, j}, optional: field.Tag.Get("print") == "nonzero",
			}
			if words := field.Tag.Get("enum"); words != "" {
				k.words = strings.Split(words, ",")
			}
			if k.String() == "model.preset" {
				k.words = gpt.PresetNames()
			}
			keys = append(keys, k)
		}
	}
	return keys
}

// sectionNames lists the sections in file order.
func sectionNames() []string {
	var names []string
	for _, k := range allKeys() {
		if len(names) == 0 || names[len(names)-1] != k.section {
			names = append(names, k.section)
		}
	}
	return names
}

// findKey looks a key up by section and name.
func findKey(section, name string) (key, bool) {
	for _, k := range allKeys() {
		if k.section == section && k.name == name {
			return k, true
		}
	}
	return key{}, false
}

// nearestKey returns the valid key closest to the one written: by the edit distance of its name, and among equals the one
// in the most similar section. If no name is close, it is the closest of the section's own keys.
func nearestKey(section, name string) string {
	if k, known := elsewhere(name); known {
		return k
	}
	nearest := func(keys []key) key {
		return slices.MinFunc(keys, func(a, b key) int {
			return cmp.Or(
				cmp.Compare(distance(name, a.name), distance(name, b.name)),
				cmp.Compare(editDistance(section, a.section), editDistance(section, b.section)),
				cmp.Compare(editDistance(name, a.name), editDistance(name, b.name)),
			)
		})
	}
	best := nearest(allKeys())
	if 2*distance(name, best.name) > len(name) {
		own := slices.DeleteFunc(allKeys(), func(k key) bool { return k.section != section })
		if len(own) > 0 {
			best = nearest(own)
		}
	}
	return best.String()
}

// elsewhere returns the key that others have under another name: in nanoGPT two factors make the global batch, and transformers
// has names of its own.
func elsewhere(name string) (key string, known bool) {
	switch name {
	case "batch_size", "gradient_accumulation_steps":
		return "batch.global", true
	case "lr":
		return "optimizer.learning_rate", true
	case "n_inner", "intermediate_size":
		return "model.ffn_hidden", true
	case "n_positions", "n_ctx", "max_position_embeddings":
		return "model.block_size", true
	case "hidden_size":
		return "model.n_embd", true
	case "num_attention_heads":
		return "model.n_head", true
	case "resid_pdrop":
		return "model.dropout", true
	}
	return "", false
}

// Nearest returns the word closest to the one written, by edit distance, for messages about unknown
// words. If the written word is a prefix of one, their distance is at most 1.
func Nearest(written string, words []string) string {
	if len(words) == 0 {
		return ""
	}
	return slices.MinFunc(words, func(a, b string) int {
		return cmp.Or(cmp.Compare(distance(written, a), distance(written, b)), cmp.Compare(editDistance(written, a), editDistance(written, b)))
	})
}

// distance is how far a word is from the one written, in edits of letters of either case; what the word, or a part of it,
// begins with is but one edit away, and nothing its initials: lr is learning_rate.
func distance(written, word string) int {
	written, word = strings.ToLower(written), strings.ToLower(word)
	d := editDistance(written, word)
	if len(written) < 2 {
		return d
	}
	initials := ""
	for rest := word; rest != ""; {
		if strings.HasPrefix(rest, written) {
			d = min(d, 1)
		}
		initials += rest[:1]
		_, rest, _ = strings.Cut(rest, "_")
	}
	if len(initials) > 1 && initials == written {
		return 0
	}
	return d
}

// editDistance is Levenshtein's, over bytes. Only the first 64 bytes count: keys are short.
func editDistance(a, b string) int {
	a, b = a[:min(len(a), 64)], b[:min(len(b), 64)]
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			substituted := diagonal
			if a[i] != b[j] {
				substituted++
			}
			diagonal = row[j+1]
			row[j+1] = min(substituted, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
