package cost

import (
	"embed"
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"golang.org/x/sys/cpu"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/config/strictyaml"
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
type Error = strictyaml.Error

// Parse reads a cluster from YAML; name stands for the file in errors. Every key
// is required except source, device.shared, device.cores, device.reserve, host, and on a shared
// machine devices_per_node and inter_node.
func Parse(name string, data []byte) (*Cluster, error) {
	d := decoder{file: name, c: &Cluster{Device: Device{Cores: 1, FLOPS: map[string]float64{}}}, lines: map[string]int{}}
	if err := d.parse(data); err != nil {
		return nil, err
	}
	if d.writes("host") {
		d.c.Host = &d.host
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
	host  Link
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
		{"device.memory", &c.Device.Memory}, {"device.reserve", &c.Device.Reserve}, {"device.flops.f32", nil},
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
		{"host.bandwidth", &d.host.Bandwidth}, {"host.efficiency", &d.host.Efficiency}, {"host.latency", &d.host.Latency},
	}
}

// writes reports whether the file has a key.
func (d *decoder) writes(key string) bool {
	_, written := d.lines[key]
	return written
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
	case "source", "device.shared", "device.cores", "device.reserve":
		return true
	}
	if strings.HasPrefix(key, "host.") {
		return !d.writes("host")
	}
	return d.c.Device.Shared && (key == "devices_per_node" || strings.HasPrefix(key, "inter_node."))
}

// dtypes are the element types whose peak rate a cluster may give.
func dtypes() []string { return []string{"f32", "tf32", "f16", "bf16", "f8"} }

func (d *decoder) parse(data []byte) error {
	root, err := strictyaml.Parse(d.file, data)
	if err != nil {
		return err
	}
	if root == nil {
		return &Error{File: d.file, Msg: "is empty"}
	}
	return d.mapping("", root)
}

// mapping reads the keys below a path.
func (d *decoder) mapping(path string, node ast.Node) error {
	entries, err := strictyaml.Entries(node, d.file, path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		key := strings.TrimPrefix(path+"."+e.Name, ".")
		d.lines[key] = e.At.Line
		if err := d.set(key, e.Value); err != nil {
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
	value, ok := strictyaml.ScalarOf(node)
	if !ok {
		return refuse("wants one value, got %s", strictyaml.Describe(node))
	}
	wants := func(what string) error { return refuse("wants %s, got %s", what, strictyaml.Describe(node)) }
	if dtype, isRate := strings.CutPrefix(key, "device.flops."); isRate && slices.Contains(dtypes(), dtype) {
		rate, ok := value.Float()
		if value.Text == "auto" && dtype == "f32" {
			rate, ok = corePeak(), true
		}
		if !ok {
			return wants("a number")
		}
		d.c.Device.FLOPS[dtype] = rate
		return nil
	}
	i := slices.IndexFunc(d.fields(), func(f field) bool { return f.key == key })
	if i < 0 {
		return refuse("unknown key; did you mean %s?", config.Nearest(key, d.keys()))
	}
	switch target := d.fields()[i].target.(type) {
	case *string:
		*target = value.Text
	case *bool:
		if *target, ok = value.Bool(); !ok {
			return wants("true or false")
		}
	case *float64:
		if *target, ok = value.Float(); !ok {
			return wants("a number")
		}
	case *int:
		n, err := strconv.Atoi(value.Text)
		switch {
		case value.Text == "auto" && key == "device.cores":
			n = goruntime.NumCPU()
		case err != nil || !value.IsInt():
			return wants("an integer")
		}
		*target = n
	case *int64:
		if value.Text == "auto" {
			*target = installedMemory()
			return nil
		}
		n, err := config.ParseBytes(value.Text)
		if err != nil {
			return refuse("%v", err)
		}
		*target = int64(n)
	}
	return nil
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
