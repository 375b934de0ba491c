package planner

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/infile"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// The strict reader of plan.json. People edit and generate these files, so every error names the
// file, the line and the key: the JSON is first read into a tree that keeps the order of keys ([object]),
// then checked against the Go types that document.go writes ([conform]), then decoded and checked
// for sense.

// MaxDocument is a limit in bytes, far beyond any plan.json.
const MaxDocument = 64 << 20

// ReadDocument reads a plan.json. See [ParseDocument].
func ReadDocument(path string) (*Document, error) {
	data, err := infile.Read(path, MaxDocument)
	if err != nil {
		return nil, &DocumentError{File: path, Msg: "cannot be read", Err: infile.WithoutPath(err)}
	}
	return ParseDocument(path, data)
}

// ParseDocument reads the text of a plan.json; name stands for the file in errors. Every key is
// required, and no other is accepted. It checks the plan against the configuration, and that
// figures are possible; hashes are left to [Document.Check]. All errors are *DocumentError.
func ParseDocument(name string, data []byte) (*Document, error) {
	doc, err := parseDocument(name, data)
	if err != nil {
		if other := infile.Mistaken(infile.Plan, data); other != "" {
			err = &DocumentError{File: name, Line: 1, Msg: other}
		}
	}
	return doc, err
}

func parseDocument(name string, data []byte) (*Document, error) {
	d := &treeReader{Decoder: json.NewDecoder(bytes.NewReader(data)), data: data, line: 1, lines: map[string]int{}}
	refuse := func(key, format string, args ...any) (*Document, error) {
		line := d.line // of what was read last
		if key != "" {
			line = d.lines.of(key)
		}
		return nil, &DocumentError{File: name, Line: line, Key: key, Msg: fmt.Sprintf(format, args...)}
	}
	d.UseNumber()
	tree, err := d.value("", 0)
	var bad *DocumentError
	switch {
	case errors.As(err, &bad):
		return refuse(bad.Key, "%s", bad.Msg)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return refuse("", "is not whole: it ends at byte %d", len(data))
	case err != nil:
		return refuse("", "is no plan, as autopar plan writes it: not JSON at byte %d: %v", d.InputOffset(), err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return refuse("", "has something after its end at byte %d", d.InputOffset())
	}
	if err := conform(tree, reflect.TypeFor[file](), ""); err != nil {
		errors.As(err, &bad)
		return refuse(bad.Key, "%s", bad.Msg)
	}
	var f file
	if err := json.Unmarshal(data, &f); err != nil {
		return refuse("", "%v", err)
	}
	if f.Schema != Schema {
		return refuse("schema", "is %d, this version reads %d", f.Schema, Schema)
	}
	doc := &Document{Plan: f.Plan, Predicted: f.Predicted, Search: f.Search, ConfigHash: f.ConfigHash, GraphHash: f.GraphHash, Cluster: f.Cluster, lines: d.lines}
	if doc.Config, err = readConfig(tree.(object).find("config")); err == nil {
		err = doc.validate()
	}
	if err != nil {
		if errors.As(err, &bad) {
			return refuse(bad.Key, "%s", bad.Msg)
		}
		return refuse("", "%v", err)
	}
	return doc, nil
}

// validate checks a document beyond its form.
func (d *Document) validate() error {
	if err := d.Config.Validate(); err != nil {
		return configError(err)
	}
	if err := d.Cluster.Validate(); err != nil {
		if bad, ok := errors.AsType[*cost.FieldError](err); ok {
			return &DocumentError{Key: "cluster." + bad.Key, Msg: bad.Msg}
		}
		return &DocumentError{Key: "cluster", Msg: err.Error()}
	}
	if err := checkPlan("plan", d.Plan, d.Config); err != nil {
		return err
	}
	if err := checkHeld("plan", d.Plan, d.Cluster); err != nil {
		return err
	}
	if err := d.Predicted.validate("predicted"); err != nil {
		return err
	}
	for i, a := range d.Search.Alternatives {
		key := fmt.Sprintf("search.alternatives[%d]", i)
		if err := checkPlan(key+".plan", a.Plan, d.Config); err != nil {
			return err
		}
		if err := checkHeld(key+".plan", a.Plan, d.Cluster); err != nil {
			return err
		}
		if err := a.Predicted.validate(key + ".predicted"); err != nil {
			return err
		}
	}
	s := &d.Search
	return notNegative("search", []figure{
		{"seconds", s.Seconds}, {"alternatives_seconds", s.Beyond}, {"plans_considered", float64(s.PlansConsidered)},
		{"gap", s.Gap}, {"unpinned_step_seconds", s.Unpinned},
	})
}

// figure is a number of a document, and its name in what it is in.
type figure struct {
	name  string
	value float64
}

// notNegative checks the figures of what a key names.
func notNegative(key string, figures []figure) error {
	for _, f := range figures {
		if f.value < 0 {
			return &DocumentError{Key: key + "." + f.name, Msg: fmt.Sprintf("is %v, must not be negative", f.value)}
		}
	}
	return nil
}

func checkPlan(key string, p *partition.Plan, c *config.Config) error {
	return planErrorAt(key, p.Validate(c.Model.NLayer, c.Batch.Global))
}

// checkHeld checks that the pools of the cluster have room for a plan, and that there are some if it has an order of them.
func checkHeld(key string, p *partition.Plan, c *cost.Cluster) error {
	if len(p.PoolOrder) > 0 && len(c.Pools) == 0 {
		return &DocumentError{Key: key + ".pool_order", Msg: fmt.Sprintf("is %v, but cluster %s has one kind of device: leave it out", p.PoolOrder, c.Name)}
	}
	return planErrorAt(key, c.Holds(p))
}

// planErrorAt returns an error of a plan as one of the document, in which the plan is at a key.
func planErrorAt(key string, err error) error {
	var bad *partition.PlanError
	if errors.As(err, &bad) {
		return &DocumentError{Key: key + "." + bad.Key, Msg: bad.Msg}
	}
	return err
}

func (p *Predicted) validate(key string) error {
	if err := notNegative(key, []figure{
		{"step_seconds", p.StepSeconds}, {"tokens_per_second", p.TokensPerSecond}, {"mfu", p.MFU},
		{"breakdown.compute_seconds", p.Breakdown.Compute}, {"breakdown.communication_seconds", p.Breakdown.Communication},
		{"breakdown.optimizer_seconds", p.Breakdown.Optimizer}, {"breakdown.bubble_seconds", p.Breakdown.Bubble},
		{"breakdown.overlapped_seconds", p.Breakdown.Overlapped},
	}); err != nil {
		return err
	}
	// A plan edited by hand may have other stages than were predicted, so the number of figures is
	// not checked.
	for name, bytes := range map[string][]int64{"peak_bytes": p.PeakBytes, "host_bytes": p.HostBytes} {
		for i, b := range bytes {
			if b < 0 {
				return &DocumentError{Key: fmt.Sprintf("%s.%s[%d]", key, name, i), Msg: fmt.Sprintf("is %d, must not be negative", b)}
			}
		}
	}
	return nil
}

// object is a JSON object with its keys in the order in which they were written.
type object []member

type member struct {
	key   string
	value any // object, []any, json.Number, string, bool or nil
}

func (o object) find(key string) any {
	for _, m := range o {
		if m.key == key {
			return m.value
		}
	}
	return nil
}

// maxDepth is far beyond any plan.json. Without a limit, endless nesting would fill the stack.
const maxDepth = 64

// treeReader reads JSON into a tree, and notes the line of every key.
type treeReader struct {
	*json.Decoder
	data  []byte
	at    int // bytes before which line breaks have been counted
	line  int // there, from 1
	lines keyLines
}

// keyLines has the line on which each key of a document begins, such as that of "plan.stages[1].first".
type keyLines map[string]int

// of is the line of a key, or if it is missing that of what it would be in; 0 if nothing is known.
func (l keyLines) of(key string) int {
	for key != "" {
		if line, ok := l[key]; ok {
			return line
		}
		key = key[:max(strings.LastIndexAny(key, ".["), 0)]
	}
	return l[""]
}

// token reads the next token.
func (d *treeReader) token() (json.Token, error) {
	t, err := d.Token()
	end := int(d.InputOffset())
	d.line += bytes.Count(d.data[d.at:end], []byte("\n"))
	d.at = end
	return t, err
}

// value reads one value at a depth of nesting. It refuses duplicate keys.
func (d *treeReader) value(path string, depth int) (any, error) {
	t, err := d.token()
	if err != nil {
		return nil, err
	}
	if _, noted := d.lines[path]; !noted { // else it is that of the key
		d.lines[path] = d.line
	}
	delim, nested := t.(json.Delim)
	if nested && depth == maxDepth {
		return nil, &DocumentError{Msg: fmt.Sprintf("is no plan: lists and objects are more than %d deep at byte %d", maxDepth, d.InputOffset())}
	}
	switch {
	case !nested:
		return t, nil
	case delim == '[':
		list := []any{}
		for d.More() {
			v, err := d.value(fmt.Sprintf("%s[%d]", path, len(list)), depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err = d.token()
		return list, err
	}
	var o object
	seen := map[string]bool{}
	for d.More() {
		t, err := d.token()
		if err != nil {
			return nil, err
		}
		key, _ := t.(string)
		at := strings.TrimPrefix(path+"."+key, ".")
		d.lines[at] = d.line
		if seen[key] {
			return nil, &DocumentError{Key: at, Msg: "duplicate key"}
		}
		seen[key] = true
		v, err := d.value(at, depth+1)
		if err != nil {
			return nil, err
		}
		o = append(o, member{key, v})
	}
	_, err = d.token()
	return o, err
}

// conform checks that a value has exactly the keys and types of t.
func conform(v any, t reflect.Type, path string) error {
	wrong := func(want string) error {
		return &DocumentError{Key: path, Msg: fmt.Sprintf("wants %s, got %s", want, describe(v))}
	}
	if t == reflect.TypeFor[json.RawMessage]() {
		if _, ok := v.(object); !ok {
			return wrong("an object")
		}
		return nil // readConfig checks the rest
	}
	switch t.Kind() {
	case reflect.Pointer:
		return conform(v, t.Elem(), path)
	case reflect.Struct:
		return conformStruct(v, t, path)
	case reflect.Map:
		o, ok := v.(object)
		if !ok {
			return wrong("an object")
		}
		for _, m := range o {
			if err := conform(m.value, t.Elem(), path+"."+m.key); err != nil {
				return err
			}
		}
	case reflect.Slice:
		list, ok := v.([]any)
		if !ok {
			return wrong("a list")
		}
		for i, x := range list {
			if err := conform(x, t.Elem(), fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
	case reflect.Int, reflect.Int64:
		n, ok := v.(json.Number)
		if _, err := strconv.ParseInt(n.String(), 10, 64); !ok || err != nil {
			return wrong("an integer")
		}
	case reflect.Float64:
		n, ok := v.(json.Number)
		if _, err := strconv.ParseFloat(n.String(), 64); !ok || err != nil {
			return wrong("a number")
		}
	case reflect.Bool:
		if _, ok := v.(bool); !ok {
			return wrong("true or false")
		}
	case reflect.String:
		if _, ok := v.(string); !ok {
			return wrong("text")
		}
	default:
		panic("BUG: plan.json has no " + t.String())
	}
	return nil
}

func conformStruct(v any, t reflect.Type, path string) error {
	o, ok := v.(object)
	if !ok {
		return &DocumentError{Key: path, Msg: fmt.Sprintf("wants an object, got %s", describe(v))}
	}
	at := func(key string) string { return strings.TrimPrefix(path+"."+key, ".") }
	known := map[string]reflect.Type{}
	var required []string
	for i := range t.NumField() {
		key, option, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if key == "-" {
			continue
		}
		known[key] = t.Field(i).Type
		if option != "omitempty" && option != "omitzero" {
			required = append(required, key)
		}
	}
	given := map[string]bool{}
	for _, m := range o {
		field, ok := known[m.key]
		if !ok {
			return &DocumentError{Key: at(m.key), Msg: "unknown key"}
		}
		given[m.key] = true
		if err := conform(m.value, field, at(m.key)); err != nil {
			return err
		}
	}
	for _, key := range required {
		if !given[key] {
			return &DocumentError{Key: at(key), Msg: "is missing"}
		}
	}
	return nil
}

func describe(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case object:
		return "an object"
	case []any:
		return "a list"
	case string:
		return strconv.Quote(v[:min(len(v), 64)])
	}
	return fmt.Sprint(v)
}

// readConfig reads the configuration with the reader of gpt.yaml, so that its checks hold here,
// too.
func readConfig(v any) (*config.Config, error) {
	sections, ok := v.(object)
	if !ok {
		return nil, &DocumentError{Key: "config", Msg: "wants an object, got " + describe(v)}
	}
	var b strings.Builder
	for _, s := range sections {
		keys, ok := s.value.(object)
		if !ok || len(keys) == 0 {
			return nil, &DocumentError{Key: "config." + s.key, Msg: "wants keys and values, got " + describe(s.value)}
		}
		fmt.Fprintf(&b, "%s:\n", mustJSON(s.key))
		for _, k := range keys {
			fmt.Fprintf(&b, "  %s: %s\n", mustJSON(k.key), yamlValue(k.value))
		}
	}
	c, err := config.Parse("", []byte(b.String()), nil)
	if err != nil {
		return nil, configError(err)
	}
	return c, nil
}

// yamlValue prints a JSON value on one line of YAML, which includes JSON.
func yamlValue(v any) string {
	switch v := v.(type) {
	case object:
		var parts []string
		for _, m := range v {
			parts = append(parts, mustJSON(m.key)+": "+yamlValue(m.value))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case []any:
		var parts []string
		for _, x := range v {
			parts = append(parts, yamlValue(x))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	}
	return mustJSON(v)
}

func configError(err error) error {
	var bad *config.Error
	if !errors.As(err, &bad) {
		return &DocumentError{Key: "config", Msg: err.Error()}
	}
	msg := bad.Msg
	if bad.Err != nil {
		msg += ": " + bad.Err.Error()
	}
	return &DocumentError{Key: strings.TrimSuffix("config."+bad.Key, "."), Msg: msg}
}
