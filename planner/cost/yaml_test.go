package cost

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
)

func TestBuiltins(t *testing.T) {
	require.Equal(t, []string{"a100-40g", "a100-80g", "a10g", "b200", "cpu", "h100", "h100-96g", "h100-autopar", "h200", "h200-autopar", "v100", "v100-32g"}, Names())
	for _, name := range Names() {
		c, err := Load(name)
		require.NoError(t, err, name)
		require.Equal(t, name, c.Name)
		require.NotEmpty(t, c.Source)
	}
	h, err := Load("h100")
	require.NoError(t, err)
	require.Equal(t, 67e12, h.PeakFLOPS("f32", 64))
	require.Equal(t, 3350e9, h.Device.MemoryBandwidth)
	require.Equal(t, 8, h.DevicesPerNode)
}

func TestSharedMachineIsDivided(t *testing.T) {
	c, err := Load("cpu")
	require.NoError(t, err)
	require.Equal(t, c.PeakFLOPS("f32", 1)/4, c.PeakFLOPS("f32", 4))
	require.Equal(t, c.Device.Memory/4, c.MemoryPerRank(4))
	one, four := NewModel(c, 1), NewModel(c, 4)
	require.Greater(t, four.kernel(&work{class: product, dtype: ir.F32, flops: 1e9}), 3*one.kernel(&work{class: product, dtype: ir.F32, flops: 1e9}))
}

func TestStrictYAML(t *testing.T) {
	source, err := Source("h100")
	require.NoError(t, err)
	for _, tt := range []struct{ old, new, want string }{
		{"memory_bandwidth: 3350e9", "memory_bandwith: 3350e9", "x.yaml:10:3: device.memory_bandwith: unknown key; did you mean device.memory_bandwidth?"},
		{"intra_node: {bandwidth: 450e9", "intra_node: {bandwidth: 0", "x.yaml:16:14: intra_node.bandwidth: is 0 bytes/s, must be between"},
		{"intra_node: {bandwidth: 450e9", "intra_node: {bandwidth: -1", "intra_node.bandwidth: is -1 bytes/s"},
		{"devices_per_node: 8", "devices_per_node: '8'", "x.yaml:15:1: devices_per_node: wants an integer"},
		{"devices_per_node: 8", "devices_per_node: 0", "x.yaml:15:1: devices_per_node: is 0"},
		{"devices_per_node: 8", "", "x.yaml:4:1: devices_per_node: is missing"},
		{"name: h100\n", "", "x.yaml:4:1: name: is missing"},
		{"name: h100", "name:", "x.yaml:4:1: name: wants text, got null"},
		{"devices_per_node: 8", "devices_per_node: 8\ndevices_per_node: 9", "x.yaml:16:1: devices_per_node: duplicate key, first given on line 15"},
		{"devices_per_node: 8", "devices_per_node: [8]", "wants one value"},
		{"f32: 67e12", "f33: 67e12", "device.flops.f33: unknown key; did you mean device.flops.f32?"},
		{"f32: 67e12", "f32: .inf", "device.flops.f32"},
		{"bf16: 989e12", "bf61: 989e12", "device.flops.bf61: unknown key; did you mean device.flops.bf16?"},
		{"  efficiency:", "  efficency:", "device.efficency: unknown key; did you mean device.efficiency?"},
		{"host:", "hots:", "hots: unknown key; did you mean host?"},
		{"host:", "uncertianty: {}\nhost:", "uncertianty: unknown key; did you mean uncertainty?"},
		{"bf16: 989e12", "bf16: 1e308", "x.yaml:9:52: device.flops.bf16: is 1e+308 FLOP/s, must be between 1e+06 and 1e+21"},
		{"reserve: 2GiB", "reserve: auto", `x.yaml:14:3: device.reserve: wants a size such as 16GiB, 512MiB or bytes, got "auto"`},
		{"79.1GiB", "-79.1GiB", `x.yaml:8:3: device.memory: wants a size such as 16GiB, 512MiB or bytes, got "-79.1GiB"`},
		{"79.1GiB", "0", "x.yaml:8:3: device.memory: is 0 bytes, must be between"},
		{"devices_per_node: 8", "devices_per_node: 8\nnics_per_node: -1", "x.yaml:16:1: nics_per_node: is -1, must be between"},
		{"devices_per_node: 8", "devices_per_node: 8\noversubscription: 0.5", "x.yaml:16:1: oversubscription: is 0.5, must be between 1 and 1000"},
		{"devices_per_node: 8", "devices_per_node: 8\noversubscription: 2", "nodes_per_rack: is missing; oversubscription is of what leaves a rack"},
		{"devices_per_node: 8", "devices_per_node: 8\nnodes_per_rack: 2", "x.yaml:16:1: nodes_per_rack: is 2, which means nothing without oversubscription"},
		{"devices_per_node: 8", "devices_per_node: 8\nlevels: [{name: all, bandwidth: 1e9, efficiency: 1, latency: 0}]", "x.yaml:15:1: devices_per_node: has no meaning beside levels"},
		{"79.1GiB", "79.1GB s", "wants a size such as 16GiB"},
		{"name: h100", "name: [h100", "is not YAML"},
	} {
		text := strings.Replace(string(source), tt.old, tt.new, 1)
		require.NotEqual(t, string(source), text, tt.old)
		_, err := Parse("x.yaml", []byte(text))
		require.ErrorContains(t, err, tt.want)
	}
	for _, tt := range []struct{ of, old, new, want string }{
		{"cpu", "intra_node:", "devices_per_node: 8\nintra_node:", "devices_per_node: has no meaning where device.shared is true: all ranks are on one machine"},
		{"cpu", "intra_node:", "inter_node: {bandwidth: 1e9, efficiency: 1, latency: 0}\nintra_node:", "inter_node: has no meaning where device.shared is true"},
		{"h100", "f32: 67e12", "f32: auto", "device.flops.f32: is auto, that of this machine, where device.shared is false; wants a number"},
		{"h100", "memory: 79.1GiB", "memory: auto", "device.memory: is auto, that of this machine"},
	} {
		source, err := Source(tt.of)
		require.NoError(t, err)
		text := strings.Replace(string(source), tt.old, tt.new, 1)
		require.NotEqual(t, string(source), text, tt.old)
		_, err = Parse("x.yaml", []byte(text))
		require.ErrorContains(t, err, tt.want)
	}
	for _, name := range []string{"H100", "h100-80g", "dgx-h100", "H100-80GB-SXM", "h100-80gb-sxm"} {
		c, err := Load(name)
		require.NoError(t, err)
		require.Equal(t, "h100", c.Name)
	}
	_, err = Load("a100-80gb")
	require.ErrorContains(t, err, "did you mean a100-80g?")
	for name, want := range map[string]string{
		"h10": "h100", "NVIDIA A100-SXM4-80GB": "a100-80g", "NVIDIA H100 80GB HBM3": "h100-80g", "Tesla V100-SXM2-32GB": "v100-32g", "gb200": "b200",
	} {
		_, err = Load(name)
		require.ErrorContains(t, err, fmt.Sprintf("no built-in cluster %q; did you mean %s?", name, want))
	}
	path := filepath.Join(t.TempDir(), "mine.yaml")
	require.NoError(t, os.WriteFile(path, source, 0o644))
	_, err = Load(path)
	require.NoError(t, err)
	_, err = Load(path + ".gone")
	require.ErrorContains(t, err, "cannot be read")
}

// TestImpossibleFigures: every figure of a cluster inside a plan file is checked too, including those that cluster
// files choose by a name.
func TestImpossibleFigures(t *testing.T) {
	for _, tt := range []struct {
		cluster, want string
		do            func(c *Cluster)
	}{
		{"h100", "device.flops.bf17: is no element type; there are f32, tf32", func(c *Cluster) { c.Device.FLOPS["bf17"] = 1e12 }},
		{"cpu", "device.kernels.gelo: is no op of which a rate can be stated; did you mean gelu?", func(c *Cluster) { c.Device.Kernels = map[string]float64{"gelo": 0.5} }},
		{"h100", "software.loss: is -1, must be between 0 and 1000", func(c *Cluster) { c.Software.Loss = -1 }},
		{"h100", "software.host: is NaN, must be between 0 and 1", func(c *Cluster) { c.Software.Host = math.NaN() }},
		{"h100", "software.buffer: is +Inf, must be", func(c *Cluster) { c.Software.Buffer = math.Inf(1) }},
	} {
		c, err := Load(tt.cluster)
		require.NoError(t, err)
		tt.do(c)
		require.ErrorContains(t, c.Validate(), tt.want)
	}
	for _, s := range Generations() {
		c := round()
		c.Software = s
		require.NoError(t, c.Validate(), s.Name)
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range Names() {
		data, err := Source(name)
		require.NoError(f, err)
		f.Add(data)
	}
	f.Add([]byte("device: {flops: {f32: 1e400}}"))
	f.Add([]byte("name: p\npools: [{cluster: h100, devices: 1}, {cluster: v100, devices: 2}]\nbetween: {bandwidth: 1e9, efficiency: 1, latency: 0}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse("f.yaml", data)
		if err == nil && c.Validate() != nil {
			t.Fatalf("accepted %+v", c)
		}
	})
}
