package cost

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"math"
	"os"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
	"golang.org/x/sys/cpu"

	"github.com/autopar/autopar/config"
)

//go:embed clusters/*.yaml
var builtins embed.FS

// Names lists the built-in clusters.
func Names() []string {
	entries, err := builtins.ReadDir("clusters")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".yaml"))
	}
	return names
}

// Source returns the YAML of a built-in cluster, to print, copy and edit.
func Source(name string) ([]byte, error) {
	data, err := builtins.ReadFile("clusters/" + name + ".yaml")
	if err != nil || strings.ContainsAny(name, `/\`) {
		return nil, &Error{Msg: fmt.Sprintf("no built-in cluster %q; did you mean %s? There are %s",
			name, config.Nearest(name, Names()), strings.Join(Names(), ", "))}
	}
	return data, nil
}

// Load returns a built-in cluster by name, or one described by a YAML file. A
// word that is neither the name of a cluster nor a path is an error that
// suggests the nearest name.
func Load(nameOrFile string) (*Cluster, error) {
	if slices.Contains(Names(), nameOrFile) {
		data, err := Source(nameOrFile)
		if err != nil {
			return nil, err
		}
		return Parse(nameOrFile+".yaml", data)
	}
	data, err := os.ReadFile(nameOrFile)
	switch {
	case errors.Is(err, os.ErrNotExist) && !strings.ContainsAny(nameOrFile, `./\`):
		_, err := Source(nameOrFile)
		return nil, err
	case err != nil:
		return nil, &Error{File: nameOrFile, Msg: "cannot be read", Err: err}
	}
	return Parse(nameOrFile, data)
}

// Error is a cluster that cannot be used. It prints as "a.yaml:3: device.memory: is ...".
type Error struct {
	File string
	Line int // 1-based; 0 when no line applies
	Key  string
	Msg  string
	Err  error
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("cluster: ")
	if e.File != "" {
		b.WriteString(e.File)
		if e.Line > 0 {
			fmt.Fprintf(&b, ":%d", e.Line)
		}
		b.WriteString(": ")
	}
	if e.Key != "" {
		b.WriteString(e.Key + ": ")
	}
	b.WriteString(e.Msg)
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// Parse reads a cluster from YAML; name stands for the file in errors. Every key
// is required except source, device.shared, device.cores, and on a shared
// machine devices_per_node and inter_node.
func Parse(name string, data []byte) (*Cluster, error) {
	d := decoder{file: name, c: &Cluster{Device: Device{Cores: 1, FLOPS: map[string]float64{}}}, lines: map[string]int{}}
	if err := d.parse(data); err != nil {
		return nil, err
	}
	for _, key := range d.keys() {
		if _, written := d.lines[key]; !written && !d.optional(key) {
			return nil, &Error{File: name, Key: key, Msg: "is missing"}
		}
	}
	if err := d.c.Validate(); err != nil {
		var bad *FieldError
		if !errors.As(err, &bad) {
			return nil, &Error{File: name, Msg: err.Error()}
		}
		return nil, &Error{File: name, Line: d.lines[bad.Key], Key: bad.Key, Msg: bad.Msg}
	}
	return d.c, nil
}

type decoder struct {
	file  string
	c     *Cluster
	lines map[string]int // where each key was written
}

// field is where the value of a key goes: *string, *float64, *bool, *int (a count
// or auto) or *int64 (a size or auto).
type field struct {
	key    string
	target any
}

func (d *decoder) fields() []field {
	c := d.c
	return []field{
		{"name", &c.Name}, {"source", &c.Source},
		{"device.name", &c.Device.Name}, {"device.shared", &c.Device.Shared}, {"device.cores", &c.Device.Cores},
		{"device.memory", &c.Device.Memory}, {"device.flops.f32", nil},
		{"device.memory_bandwidth", &c.Device.MemoryBandwidth}, {"device.launch_overhead", &c.Device.LaunchOverhead},
		{"device.efficiency.matmul", &c.Device.Efficiency.Matmul},
		{"device.efficiency.matmul_half_flops", &c.Device.Efficiency.MatmulHalf},
		{"device.efficiency.attention", &c.Device.Efficiency.Attention},
		{"device.efficiency.vector", &c.Device.Efficiency.Vector},
		{"device.efficiency.memory", &c.Device.Efficiency.Memory},
		{"devices_per_node", &c.DevicesPerNode},
		{"intra_node.bandwidth", &c.IntraNode.Bandwidth}, {"intra_node.efficiency", &c.IntraNode.Efficiency},
		{"intra_node.latency", &c.IntraNode.Latency},
		{"inter_node.bandwidth", &c.InterNode.Bandwidth}, {"inter_node.efficiency", &c.InterNode.Efficiency},
		{"inter_node.latency", &c.InterNode.Latency},
	}
}

func (d *decoder) keys() []string {
	var keys []string
	for _, f := range d.fields() {
		keys = append(keys, f.key)
	}
	return keys
}

func (d *decoder) optional(key string) bool {
	switch key {
	case "source", "device.shared", "device.cores":
		return true
	}
	return d.c.Device.Shared && (key == "devices_per_node" || strings.HasPrefix(key, "inter_node."))
}

// dtypes are the element types whose peak rate a cluster may give.
func dtypes() []string { return []string{"f32", "tf32", "f16", "bf16", "f8"} }

func (d *decoder) parse(data []byte) error {
	if !utf8.Valid(data) {
		return &Error{File: d.file, Msg: "is not UTF-8 text"}
	}
	parsed, err := parser.ParseBytes(bytes.TrimPrefix(data, []byte("\ufeff")), 0, parser.AllowDuplicateMapKey())
	if err != nil {
		bad := &Error{File: d.file, Msg: "is not YAML", Err: err}
		var syntax *yaml.SyntaxError
		if errors.As(err, &syntax) {
			bad.Msg, bad.Err = "is not YAML: "+syntax.Message, nil
			if syntax.Token != nil && syntax.Token.Position != nil {
				bad.Line = syntax.Token.Position.Line
			}
		}
		return bad
	}
	var root ast.Node
	for _, doc := range parsed.Docs {
		if doc.Body == nil {
			continue
		}
		if root != nil {
			return &Error{File: d.file, Line: line(doc.Body), Msg: "has a second document; wants one"}
		}
		root = doc.Body
	}
	if root == nil {
		return &Error{File: d.file, Msg: "is empty"}
	}
	return d.mapping("", root)
}

// mapping reads the keys below a path.
func (d *decoder) mapping(path string, node ast.Node) error {
	var pairs []*ast.MappingValueNode
	switch n := node.(type) {
	case *ast.MappingNode:
		pairs = n.Values
	case *ast.MappingValueNode:
		pairs = []*ast.MappingValueNode{n}
	default:
		return &Error{File: d.file, Line: line(node), Key: path, Msg: "wants keys and values"}
	}
	for _, pair := range pairs {
		word, ok := pair.Key.(*ast.StringNode)
		if !ok {
			return &Error{File: d.file, Line: line(pair.Key), Key: path, Msg: fmt.Sprintf("wants plain keys, got %s", pair.Key)}
		}
		key := strings.TrimPrefix(path+"."+word.Value, ".")
		if first, dup := d.lines[key]; dup {
			return &Error{File: d.file, Line: line(pair.Key), Key: key, Msg: fmt.Sprintf("duplicate key, first given on line %d", first)}
		}
		d.lines[key] = line(pair.Key)
		if err := d.set(key, pair.Value); err != nil {
			return err
		}
	}
	return nil
}

// set gives one key its value, or goes on into a section.
func (d *decoder) set(key string, node ast.Node) error {
	refuse := func(format string, args ...any) error {
		return &Error{File: d.file, Line: d.lines[key], Key: key, Msg: fmt.Sprintf(format, args...)}
	}
	for _, f := range d.fields() {
		if strings.HasPrefix(f.key, key+".") {
			return d.mapping(key, node)
		}
	}
	text, quoted, ok := scalarText(node)
	if !ok {
		return refuse("wants one value, got %s", node.Type())
	}
	if dtype, isRate := strings.CutPrefix(key, "device.flops."); isRate && slices.Contains(dtypes(), dtype) {
		if text == "auto" && dtype == "f32" {
			d.c.Device.FLOPS[dtype] = corePeak()
			return nil
		}
		f, err := number(text, quoted)
		if err != nil {
			return refuse("%v", err)
		}
		d.c.Device.FLOPS[dtype] = f
		return nil
	}
	i := slices.IndexFunc(d.fields(), func(f field) bool { return f.key == key })
	if i < 0 {
		return refuse("unknown key; did you mean %s?", config.Nearest(key, d.keys()))
	}
	switch target := d.fields()[i].target.(type) {
	case *string:
		*target = text
	case *bool:
		if quoted || text != "true" && text != "false" {
			return refuse("wants true or false, got %q", text)
		}
		*target = text == "true"
	case *float64:
		f, err := number(text, quoted)
		if err != nil {
			return refuse("%v", err)
		}
		*target = f
	case *int:
		n, err := strconv.Atoi(text)
		switch {
		case text == "auto" && key == "device.cores":
			n = goruntime.NumCPU()
		case err != nil || quoted:
			return refuse("wants an integer, got %q", text)
		}
		*target = n
	case *int64:
		if text == "auto" {
			*target = installedMemory()
			return nil
		}
		n, err := size(text)
		if err != nil {
			return refuse("%v", err)
		}
		*target = n
	}
	return nil
}

// scalarText returns the text of a YAML leaf as it is written.
func scalarText(node ast.Node) (text string, quoted, ok bool) {
	switch n := node.(type) {
	case *ast.StringNode:
		kind := n.GetToken().Type
		return n.Value, kind == token.SingleQuoteType || kind == token.DoubleQuoteType, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return node.GetToken().Value, false, true
	}
	return "", false, false
}

func number(text string, quoted bool) (float64, error) {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || quoted || strings.Trim(text, "0123456789+-.eE") != "" || math.IsInf(f, 0) {
		return 0, fmt.Errorf("wants a number, got %q", text)
	}
	return f, nil
}

// size reads bytes, or a number with a unit of powers of 1024 (KiB to TiB) or
// 1000 (KB to TB).
func size(text string) (int64, error) {
	units := []struct {
		name  string
		scale float64
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"B", 1}, {"", 1}}
	for _, u := range units {
		digits, found := strings.CutSuffix(text, u.name)
		if !found {
			continue
		}
		f, err := number(strings.TrimSpace(digits), false)
		if err != nil || f*u.scale > 1<<60 || f < 0 {
			break
		}
		return int64(f * u.scale), nil
	}
	return 0, fmt.Errorf("wants a size such as 16GiB, or auto, got %q", text)
}

// corePeak is the float32 FLOP/s of a core of this machine, by what its vector
// unit can do: two fused multiply-adds of 16 or 8 elements per cycle, or what the
// portable kernels reach.
func corePeak() float64 {
	switch {
	case cpu.X86.HasAVX512F && cpu.X86.HasBMI2:
		return 220e9
	case cpu.X86.HasAVX2 && cpu.X86.HasFMA:
		return 110e9
	}
	return 7e9
}

// installedMemory is the memory of this machine, 8 GiB where that cannot be told.
func installedMemory() int64 {
	const unknown = 8 << 30
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return unknown
	}
	var kib int64
	if _, err := fmt.Sscanf(string(data), "MemTotal: %d kB", &kib); err != nil || kib < 1<<10 {
		return unknown
	}
	return kib << 10
}

func line(node ast.Node) int {
	if node == nil || node.GetToken() == nil || node.GetToken().Position == nil {
		return 0
	}
	return node.GetToken().Position.Line
}
