package cost

import (
	"embed"
	"errors"
	"fmt"
	"maps"
	"os"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"golang.org/x/sys/cpu"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/config/strictyaml"
	"github.com/autopar/autopar/infile"
)

// This file reads cluster files. Unknown and missing keys are errors that name the file, line and column; see
// [Parse].

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
	slices.Sort(names)
	return names
}

// aliases are other names that people give the built-in clusters.
func aliases() map[string]string {
	return map[string]string{
		"v100-16g": "v100", "dgx-2": "v100-32g", "a10g-24g": "a10g", "a100": "a100-80g", "dgx-a100": "a100-80g",
		"h100-80g": "h100", "dgx-h100": "h100", "h200-141g": "h200", "hgx-h200": "h200", "b200-180g": "b200", "dgx-b200": "b200",
	}
}

// builtin returns the name of the built-in cluster that a name stands for: its own name, an alias, or the name of its
// device, in upper or lower case.
func builtin(name string) (string, bool) {
	lower := strings.ToLower(name)
	if to, ok := aliases()[lower]; ok {
		lower = to
	}
	if slices.Contains(Names(), lower) {
		return lower, true
	}
	for _, n := range Names() {
		if c, err := Load(n); err == nil && strings.EqualFold(c.Device.Name, name) {
			return n, true
		}
	}
	return "", false
}

// Source returns the YAML of a built-in cluster, to print, copy and edit.
func Source(name string) ([]byte, error) {
	found, ok := builtin(name)
	if !ok {
		return nil, &Error{Msg: fmt.Sprintf("no built-in cluster %q; did you mean %s? There are %s", name, NearestDevice(name, append(Names(), slices.Sorted(maps.Keys(aliases()))...)), strings.Join(Names(), ", "))}
	}
	data, err := builtins.ReadFile("clusters/" + found + ".yaml")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return data, nil
}

// NearestDevice returns the name that an unknown one of a device or cluster is nearest to, among those that share most words with
// it: NVIDIA's own are long, such as "NVIDIA A100-SXM4-80GB".
func NearestDevice(unknown string, names []string) string {
	words := func(name string) []string {
		return strings.FieldsFunc(strings.ReplaceAll(strings.ToLower(name), "gb", "g"), func(r rune) bool { return r == '-' || r == ' ' || r == '_' })
	}
	given, most := words(unknown), 0
	var nearest []string
	for _, name := range names {
		shared := 0
		for _, word := range words(name) {
			if slices.Contains(given, word) {
				shared++
			}
		}
		if shared > most {
			most, nearest = shared, nil
		}
		if shared == most {
			nearest = append(nearest, name)
		}
	}
	return config.Nearest(strings.ToLower(unknown), nearest)
}

// Load returns a cluster given as the name of a built-in one, as a YAML file, or as pools of these with their numbers
// of devices: a100-40g:32+h100:16. A word that is neither the name of a cluster nor a path is an error that suggests
// the nearest name.
func Load(nameOrFile string) (*Cluster, error) {
	c, _, err := LoadFrom(nameOrFile)
	return c, err
}

// LoadFrom is Load, and also returns the names of the files that it read, including those of pools.
func LoadFrom(nameOrFile string) (c *Cluster, files []string, err error) {
	c, err = load(nameOrFile, false, &files)
	return c, files, err
}

// maxCluster is the largest file that is read, in bytes: far more than any cluster file needs.
const maxCluster = 16 << 20

// load is [LoadFrom]. isPool says that the cluster is to be a pool of another one.
func load(nameOrFile string, isPool bool, files *[]string) (*Cluster, error) {
	if slices.Contains(Names(), nameOrFile) {
		return loadBuiltin(nameOrFile)
	}
	data, err := infile.Read(nameOrFile, maxCluster)
	isPath := strings.ContainsAny(nameOrFile, `./\`)
	switch {
	case errors.Is(err, os.ErrNotExist) && (strings.Contains(nameOrFile, ":") || strings.Contains(nameOrFile, "+") && !isPath) && !isPool:
		return loadPools(nameOrFile, files)
	case errors.Is(err, os.ErrNotExist) && !isPath:
		if name, ok := builtin(nameOrFile); ok {
			return loadBuiltin(name)
		}
		_, err := Source(nameOrFile)
		return nil, err
	case err != nil:
		return nil, &Error{File: nameOrFile, Msg: "cannot be read", Err: infile.WithoutPath(err)}
	}
	*files = append(*files, nameOrFile)
	return parse(nameOrFile, data, isPool, files)
}

func loadBuiltin(name string) (*Cluster, error) {
	data, err := Source(name)
	if err != nil {
		return nil, err
	}
	return Parse(name+".yaml", data)
}

// Error is a cluster file that cannot be used. It prints as "a.yaml:3:3: device.memory: is ...".
type Error = strictyaml.Error

// Parse reads a cluster from YAML; name stands for the file in errors. Every key is required except
//
//   - source, software, host, uncertainty;
//   - device.shared, device.cores, device.reserve, device.cache, device.units, device.efficiency.tile_fill,
//     device.efficiency.matmul_f8, device.efficiency.beside;
//   - what refines a shared machine: collectives, device.turn, device.fork, device.pack, device.kernels,
//     device.cache.remote, device.efficiency.threads, device.efficiency.attention_half_keys and
//     attention_grad_half_keys;
//   - what refines the network: nics_per_node, oversubscription, nodes_per_rack;
//   - on a shared machine, devices_per_node and inter_node.
//
// levels replace devices_per_node, intra_node and inter_node. A file of pools has name and pools, and may have
// source, software and between: see [Pool].
func Parse(name string, data []byte) (*Cluster, error) {
	return parse(name, data, false, new([]string))
}

// parse is [Parse]. isPool says that the cluster is to be a pool of another one.
func parse(name string, data []byte, isPool bool, files *[]string) (*Cluster, error) {
	d := decoder{file: name, start: strictyaml.Origin{File: name}, isPool: isPool, files: files, c: &Cluster{Device: Device{Cores: 1, FLOPS: map[string]float64{}}}, at: map[string]strictyaml.Origin{}}
	if err := d.parse(data); err != nil {
		if other := infile.Mistaken(infile.Cluster, data); other != "" {
			err = &Error{File: name, Line: 1, Msg: other}
		}
		return nil, err
	}
	if d.writes("host") {
		d.c.Host = &d.host
	}
	if d.software == "" && !d.c.Device.Shared && !d.writes("pools") {
		d.software = Current
	}
	if d.software != "" {
		var err error
		if d.c.Software, err = LoadSoftware(d.software); err != nil {
			return nil, d.origin("software").Refuse("software", "%s", strings.TrimPrefix(err.Error(), "cost: "))
		}
	}
	if d.writes("device.cache") {
		d.c.Device.Cache = &d.cache
	}
	switch {
	case d.writes("pools"):
		if err := d.join(); err != nil {
			return nil, err
		}
	case d.writes("between"):
		return nil, d.at["between"].Refuse("between", "means nothing without pools")
	}
	if d.writes("levels") {
		for _, key := range []string{"devices_per_node", "intra_node", "inter_node"} {
			if d.writes(key) {
				return nil, d.at[key].Refuse(key, "has no meaning beside levels, which are the whole network")
			}
		}
		if len(d.c.Levels) == 0 {
			return nil, d.at["levels"].Refuse("levels", "wants a list of levels")
		}
		d.c.deriveNode()
	}
	for _, key := range d.keys() {
		if _, written := d.at[key]; !written && !d.optional(key) {
			return nil, d.origin(key).Refuse(key, "is missing")
		}
	}
	if err := d.checkMachine(); err != nil {
		return nil, err
	}
	if err := d.c.Validate(); err != nil {
		var bad *FieldError
		if !errors.As(err, &bad) {
			return nil, &Error{File: name, Msg: err.Error()}
		}
		return nil, d.origin(bad.Key).Refuse(bad.Key, "%s", bad.Msg)
	}
	return d.c, nil
}

// checkMachine refuses two contradictions: figures of a network (other than zeros) for a machine that all ranks
// share, since plans would ignore them; and figures taken from this machine (auto) for a device that is not this
// machine.
func (d *decoder) checkMachine() error {
	if !d.c.Device.Shared {
		for _, key := range d.own {
			return d.at[key].Refuse(key, "is auto, that of this machine, where device.shared is false; wants a number")
		}
		return nil
	}
	for _, figure := range []struct {
		key string
		set bool
	}{{"devices_per_node", d.c.DevicesPerNode != 0}, {"inter_node", d.c.InterNode != Link{}}, {"levels", len(d.c.Levels) > 0}} {
		if figure.set && d.writes(figure.key) {
			return d.origin(figure.key).Refuse(figure.key, "has no meaning where device.shared is true: all ranks are on one machine")
		}
	}
	return nil
}

type decoder struct {
	own       []string // keys whose values are auto, taken from this machine
	file      string
	isPool    bool      // it is a pool of another cluster
	files     *[]string // those read so far
	c         *Cluster
	host      Link
	cache     Cache
	software  string
	poolNames []string                     // the names or files of the pools' clusters
	at        map[string]strictyaml.Origin // where each key was written
	start     strictyaml.Origin            // of the first
}

// field says where the value of a key is stored: a *string, *float64, *bool, *int (a count) or *int64 (a size in
// bytes).
type field struct {
	key    string
	target any
}

func (d *decoder) fields() []field {
	c := d.c
	fields := []field{
		{"name", &c.Name}, {"source", &c.Source}, {"software", &d.software},
		{"device.name", &c.Device.Name}, {"device.shared", &c.Device.Shared}, {"device.cores", &c.Device.Cores},
		{"device.memory", &c.Device.Memory}, {"device.reserve", &c.Device.Reserve}, {"device.flops.f32", nil},
		{"device.memory_bandwidth", &c.Device.MemoryBandwidth}, {"device.launch_overhead", &c.Device.LaunchOverhead},
		{"device.cache.memory", &d.cache.Memory}, {"device.cache.bandwidth", &d.cache.Bandwidth}, {"device.cache.remote", &d.cache.Remote},
		{"device.turn", &c.Device.Turn}, {"device.fork", &c.Device.Fork}, {"device.pack", &c.Device.Pack}, {"collectives", &c.Collectives},
		{"device.efficiency.matmul", &c.Device.Efficiency.Matmul},
		{"device.efficiency.matmul_half_flops", &c.Device.Efficiency.MatmulHalf},
		{"device.units", &c.Device.Units},
		{"device.efficiency.tile_fill", &c.Device.Efficiency.TileFill},
		{"device.efficiency.matmul_f8", &c.Device.Efficiency.MatmulF8},
		{"device.efficiency.attention", &c.Device.Efficiency.Attention},
		{"device.efficiency.vector", &c.Device.Efficiency.Vector},
		{"device.efficiency.threads", &c.Device.Efficiency.Threads},
		{"device.efficiency.beside", &c.Device.Efficiency.Beside},
		{"device.efficiency.attention_half_keys", &c.Device.Efficiency.AttentionHalf},
		{"device.efficiency.attention_grad_half_keys", &c.Device.Efficiency.AttentionGradHalf},
		{"device.efficiency.memory", &c.Device.Efficiency.Memory},
		{"devices_per_node", &c.DevicesPerNode},
		{"intra_node.bandwidth", &c.IntraNode.Bandwidth}, {"intra_node.efficiency", &c.IntraNode.Efficiency},
		{"intra_node.latency", &c.IntraNode.Latency},
		{"inter_node.bandwidth", &c.InterNode.Bandwidth}, {"inter_node.efficiency", &c.InterNode.Efficiency},
		{"inter_node.latency", &c.InterNode.Latency},
		{"nics_per_node", &c.NICsPerNode}, {"oversubscription", &c.Oversubscription}, {"nodes_per_rack", &c.NodesPerRack},
		{"host.bandwidth", &d.host.Bandwidth}, {"host.efficiency", &d.host.Efficiency}, {"host.latency", &d.host.Latency},
		{"between.bandwidth", &c.Between.Bandwidth}, {"between.efficiency", &c.Between.Efficiency}, {"between.latency", &c.Between.Latency},
	}
	for i := range c.Pools {
		fields = append(fields, field{poolKey(i) + ".cluster", &d.poolNames[i]}, field{poolKey(i) + ".devices", &c.Pools[i].Devices})
	}
	for i := range c.Levels {
		l, key := &c.Levels[i], levelKey(i)
		fields = append(fields, field{key + ".name", &l.Name}, field{key + ".devices", &l.Devices}, field{key + ".nics", &l.NICs},
			field{key + ".bandwidth", &l.Bandwidth}, field{key + ".efficiency", &l.Efficiency}, field{key + ".latency", &l.Latency})
	}
	return fields
}

// writes reports whether the file has a key.
func (d *decoder) writes(key string) bool {
	_, written := d.at[key]
	return written
}

func (d *decoder) keys() []string {
	var keys []string
	for _, f := range d.fields() {
		keys = append(keys, f.key)
	}
	return keys
}

// known lists all that a file may say at this point: keys, and the sections that they are in.
func (d *decoder) known() []string {
	known := []string{"levels", "pools", "uncertainty", "device.kernels"}
	for _, dtype := range dtypes() {
		known = append(known, "device.flops."+dtype)
	}
	for _, key := range d.keys() {
		known = append(known, key)
		if section, _, found := strings.Cut(key, "."); found && !strings.Contains(section, "[") {
			known = append(known, section, key[:strings.LastIndexByte(key, '.')])
		}
	}
	return known
}

func (d *decoder) optional(key string) bool {
	if d.writes("pools") {
		return key != "name" && !strings.HasPrefix(key, "pools[") && (!strings.HasPrefix(key, "between.") || !d.writes("between"))
	}
	switch key {
	case "source", "software", "device.shared", "device.cores", "device.reserve", "device.units", "device.efficiency.tile_fill", "device.efficiency.matmul_f8", "device.efficiency.beside",
		"device.efficiency.threads", "device.efficiency.attention_half_keys", "device.efficiency.attention_grad_half_keys", "device.turn", "device.fork", "device.pack", "device.cache.remote", "collectives",
		"nics_per_node", "oversubscription", "nodes_per_rack":
		return true
	}
	if strings.HasPrefix(key, "host.") {
		return !d.writes("host")
	}
	if strings.HasPrefix(key, "between.") {
		return true
	}
	if strings.HasPrefix(key, "device.cache.") {
		return !d.writes("device.cache")
	}
	if strings.HasPrefix(key, "levels[") {
		return strings.HasSuffix(key, ".devices") || strings.HasSuffix(key, ".nics")
	}
	isNetwork := key == "devices_per_node" || strings.HasPrefix(key, "inter_node.")
	if d.writes("levels") {
		return isNetwork || strings.HasPrefix(key, "intra_node.")
	}
	return d.c.Device.Shared && isNetwork
}

// origin is where a key is written in the file, or the innermost section around it that is, or where the file's keys begin.
func (d *decoder) origin(key string) strictyaml.Origin {
	for {
		if at, ok := d.at[key]; ok {
			return at
		}
		dot := strings.LastIndexByte(key, '.')
		if dot < 0 {
			return d.start
		}
		key = key[:dot]
	}
}

// levels reads the list of levels. Each is a mapping.
func (d *decoder) levels(node ast.Node) error {
	list, ok := node.(*ast.SequenceNode)
	if !ok {
		return d.at["levels"].Refuse("levels", "wants a list of levels, got %s", strictyaml.Describe(node))
	}
	d.c.Levels = make([]Level, len(list.Values))
	for i, item := range list.Values {
		path := levelKey(i)
		d.at[path] = strictyaml.OriginOf(d.file, item)
		if err := d.mapping(path, item); err != nil {
			return err
		}
	}
	return nil
}

func levelKey(i int) string { return fmt.Sprintf("levels[%d]", i) }

// dtypes lists the element types for which a cluster may state a peak rate.
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
	if path == "" && len(entries) > 0 {
		d.start = entries[0].At
	}
	for _, e := range entries {
		key := strings.TrimPrefix(path+"."+e.Name, ".")
		d.at[key] = e.At
		if err := d.set(key, e.Value); err != nil {
			return err
		}
	}
	return nil
}

// set stores the value of one key, or reads the section of that name.
func (d *decoder) set(key string, node ast.Node) error {
	if key == "uncertainty" {
		return d.uncertainty(node)
	}
	refuse := func(format string, args ...any) error {
		return d.at[key].Refuse(key, format, args...)
	}
	switch key {
	case "device.kernels":
		return d.kernels(node)
	case "device.efficiency.crowd":
		return refuse("is of an earlier version, whose ranks did not compute for others while they waited: measure the machine again with autopar profile")
	case "device.efficiency.divided":
		return refuse("is of an earlier version, in which cores packed one matrix of a product: measure the machine again with autopar profile")
	case "levels":
		return d.levels(node)
	case "pools":
		return d.pools(node)
	}
	for _, f := range d.fields() {
		if strings.HasPrefix(f.key, key+".") {
			return d.mapping(key, node)
		}
	}
	i := slices.IndexFunc(d.fields(), func(f field) bool { return f.key == key })
	dtype, isRate := strings.CutPrefix(key, "device.flops.")
	if isRate = isRate && slices.Contains(dtypes(), dtype); !isRate && i < 0 {
		return refuse("unknown key; did you mean %s?", config.Nearest(key, d.known()))
	}
	value, ok := strictyaml.ScalarOf(node)
	if !ok {
		return refuse("wants one value, got %s", strictyaml.Describe(node))
	}
	wants := func(what string) error { return refuse("wants %s, got %s", what, strictyaml.Describe(node)) }
	if isRate {
		rate, ok := value.Float()
		if value.Text == "auto" && dtype == "f32" {
			rate, ok = corePeak(), true
			d.own = append(d.own, key)
		}
		if !ok {
			return wants("a number")
		}
		d.c.Device.FLOPS[dtype] = rate
		return nil
	}
	switch target := d.fields()[i].target.(type) {
	case *string:
		if value.IsNull() {
			return wants("text")
		}
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
			d.own = append(d.own, key)
		case err != nil || !value.IsInt():
			return wants("an integer")
		}
		*target = n
	case *int64:
		if value.Text == "auto" && key == "device.memory" {
			*target = installedMemory()
			d.own = append(d.own, key)
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

// corePeak is the float32 FLOP/s of one core of this machine, estimated from its vector unit: two fused multiply-adds
// of 16 or 8 elements per cycle, or what the portable kernels reach.
func corePeak() float64 {
	switch {
	case cpu.X86.HasAVX512F && cpu.X86.HasBMI2:
		return 220e9
	case cpu.X86.HasAVX2 && cpu.X86.HasFMA:
		return 110e9
	}
	return 7e9
}

// installedMemory is the memory of this machine in bytes, 8 GiB if it cannot be read.
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
