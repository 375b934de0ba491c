package infile

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
)

// The kinds of files that are taken for each other.
const (
	Plan          = "plan"
	Configuration = "configuration"
	Cluster       = "cluster"
)

// Mistaken says what a file is that was to be of some kind and is of another, by its top-level keys
// in JSON or YAML: "is no plan but a cluster, which ...". It returns "" for a file of that kind, or
// of none.
func Mistaken(kind string, data []byte) string {
	var top map[string]json.RawMessage
	if json.Unmarshal(data, &top) != nil {
		top = map[string]json.RawMessage{}
		for _, key := range regexp.MustCompile(`(?m)^(\w+)[ \t]*:`).FindAllSubmatch(data, -1) {
			top[string(key[1])] = nil
		}
	}
	is := ""
	for _, x := range []struct{ kind, what, keys string }{
		{Plan, "a plan, which autopar run takes", "plan graph_hash"},
		{Configuration, "a configuration, of which autopar plan makes a plan", "model data batch optimizer train parallel"},
		{Configuration, "the configuration of a HuggingFace model, of which autopar plan makes a plan", "model_type n_embd"},
		{Cluster, "a cluster, which autopar plan takes with --cluster", "device pools devices_per_node intra_node"},
	} {
		for key := range strings.FieldsSeq(x.keys) {
			switch _, has := top[key]; {
			case has && x.kind == kind:
				return ""
			case has && is == "":
				is = fmt.Sprintf("is no %s but %s", kind, x.what)
			}
		}
	}
	return is
}
