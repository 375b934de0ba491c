package measured

import (
	"fmt"
	"math"
	"slices"

	"github.com/autopar/autopar/planner/cost"
)

// Constants are the figures of the cost model that predictions depend on: clusters by name, and generations of software.
type Constants struct {
	Clusters map[string]*cost.Cluster
	Software []cost.Software
}

// NewConstants returns the built-in constants.
func NewConstants() *Constants {
	k := &Constants{Clusters: map[string]*cost.Cluster{}, Software: cost.Generations()}
	for _, name := range cost.Names() {
		c, err := cost.Load(name)
		if err != nil {
			panic("BUG: " + err.Error())
		}
		k.Clusters[name] = c
	}
	return k
}

// clone returns a copy whose figures can be set without changing k.
func (k *Constants) clone() *Constants {
	out := &Constants{Clusters: map[string]*cost.Cluster{}, Software: slices.Clone(k.Software)}
	for name, c := range k.Clusters {
		copied := *c
		out.Clusters[name] = &copied
	}
	return out
}

// Parameter is a constant that is fitted, within a plausible range.
type Parameter struct {
	Name, Unit  string
	Least, Most float64
	// Prior is the value according to other sources than the table. A weak pull towards it decides if the rows do not.
	Prior float64
	Basis string // where the prior comes from
	at    func(*Constants) []*float64
}

// value is the value that constants have for the parameter.
func (p *Parameter) value(k *Constants) float64 { return *p.at(k)[0] }

func (p *Parameter) set(k *Constants, v float64) {
	for _, at := range p.at(k) {
		*at = v
	}
}

// sigma is the spread of the prior: a quarter of the range, in logarithms.
func (p *Parameter) sigma() float64 { return math.Log(p.Most/p.Least) / 4 }

// devices returns a function that finds a figure in the clusters of the given names.
func devices(figure func(*cost.Cluster) *float64, names ...string) func(*Constants) []*float64 {
	return func(k *Constants) []*float64 {
		var all []*float64
		for _, name := range names {
			all = append(all, figure(k.Clusters[name]))
		}
		return all
	}
}

// software returns a function that finds a figure in the software generations of the given names.
func software(figure func(*cost.Software) *float64, names ...string) func(*Constants) []*float64 {
	return func(k *Constants) []*float64 {
		var all []*float64
		for i := range k.Software {
			if slices.Contains(names, k.Software[i].Name) {
				all = append(all, figure(&k.Software[i]))
			}
		}
		if len(all) != len(names) {
			panic(fmt.Sprintf("BUG: software %v", names))
		}
		return all
	}
}

// Parameters are the constants that are fitted to the rows. V100, A10G and B200 have too few rows, or none: figures that are
// not in their datasheets are those of the A100 and H100, except for products on the V100, which others have measured (see its
// cluster file).
func Parameters() []Parameter {
	ampere, hopper, slow := []string{"a100-80g", "a100-40g", "a10g", "v100", "v100-32g"}, []string{"h100", "h200", "b200"}, []string{"h100-96g"}
	hoppers := slices.Concat(hopper, slow)
	gpus := slices.Concat(ampere, hoppers)
	switched := slices.DeleteFunc(slices.Clone(ampere), func(name string) bool { return name == "v100" }) // its links have levels
	matmul := func(c *cost.Cluster) *float64 { return &c.Device.Efficiency.Matmul }
	attention := func(c *cost.Cluster) *float64 { return &c.Device.Efficiency.Attention }
	links := func(c *cost.Cluster) *float64 { return &c.IntraNode.Efficiency }
	network := func(c *cost.Cluster) *float64 { return &c.InterNode.Efficiency }
	return []Parameter{
		{"products, A100", "of the peak", 0.7, 0.92, 0.82, "cuBLAS on large squares, 250 to 265 TFLOP/s", devices(matmul, ampere[:3]...)},
		{"products, H100", "of the peak", 0.55, 0.85, 0.7, "cuBLAS on large squares at 700 W, 650 to 750 TFLOP/s", devices(matmul, hopper...)},
		{"products, H100 at 500 W", "of the peak", 0.4, 0.75, 0.57, "the H100's by the power", devices(matmul, slow...)},
		{"8-bit products, H100", "of the peak", 0.4, 0.85, 0.65, "Transformer Engine, 1.2 to 1.4 PFLOP/s", devices(func(c *cost.Cluster) *float64 { return &c.Device.Efficiency.MatmulF8 }, hopper...)},
		{"8-bit products, H100 at 500 W", "of the peak", 0.3, 0.75, 0.5, "the H100's by the power", devices(func(c *cost.Cluster) *float64 { return &c.Device.Efficiency.MatmulF8 }, slow...)},
		{"tile fill", "terms", 30, 300, 150, "latency of a load and of writing a tile", devices(func(c *cost.Cluster) *float64 { return &c.Device.Efficiency.TileFill }, gpus...)},
		{"attention, A100", "of the peak", 0.5, 0.75, 0.62, "figure 5 of Dao 2023", devices(attention, ampere...)},
		{"attention, H100", "of the peak", 0.3, 0.6, 0.38, "figure 7 of Dao 2023", devices(attention, hopper...)},
		{"attention, H100 at 500 W", "of the peak", 0.2, 0.5, 0.3, "the H100's by the power", devices(attention, slow...)},
		{"memory", "of the bandwidth", 0.7, 0.92, 0.85, "STREAM on GPUs", devices(func(c *cost.Cluster) *float64 { return &c.Device.Efficiency.Memory }, gpus...)},
		{"kernels beside a collective", "of their rate alone", 0.6, 0.95, 0.81, "18.9 % slower on average, 40 % at most (Lee et al. 2025, arXiv 2507.03114)", devices(func(c *cost.Cluster) *float64 { return &c.Device.Efficiency.Beside }, gpus...)},
		{"links in a node, A100", "of the bandwidth", 0.65, 0.88, 0.78, "all_reduce of 1 GB over 8 A100s, 230 GB/s", devices(links, switched...)},
		{"links in a node, H100", "of the bandwidth", 0.65, 0.9, 0.78, "as the A100's", devices(links, hoppers...)},
		{"network, A100", "of the bandwidth", 0.35, 0.92, 0.7, "all_reduce over many nodes", devices(network, switched...)},
		{"network, H100", "of the bandwidth", 0.35, 0.92, 0.7, "as the A100's", devices(network, hoppers...)},
		{"FlashAttention-1", "of FlashAttention-2", 0.4, 0.8, 0.55, "figure 5 of Dao 2023", software(func(s *cost.Software) *float64 { return &s.Flash }, "torch", "scaling", "fused-amp")},
		{"RMSNorm of torch", "times one kernel's traffic", 6, 20, 12, "counted kernels", software(func(s *cost.Software) *float64 { return &s.RMSNorm }, "torch", "scaling")},
		{"elementwise of torch", "times one kernel's traffic", 0.8, 2, 1.1, "counted kernels", software(func(s *cost.Software) *float64 { return &s.Elementwise }, "torch", "scaling")},
		{"host of torch", "s an op", 4e-6, 30e-6, 10e-6, "two to three launches of 4 us", software(func(s *cost.Software) *float64 { return &s.Host }, "torch", "scaling")},
		{"wait of Megatron-DeepSpeed", "s a kernel", 2e-6, 100e-6, 30e-6, "an op: 10 us of the host, and two to three launches that it waits for, of 8 us", software(func(s *cost.Software) *float64 { return &s.Sync }, "megatron-deepspeed", "megatron-deepspeed-bf16")},
		{"network of DeepSpeed", "of others'", 0.2, 1, 0.6, "unknown; Scaling's too", software(func(s *cost.Software) *float64 {
			if s.Name == "scaling" {
				return &s.Network
			}
			return &s.Replicas
		}, "deepspeed-2021", "megatron-deepspeed", "scaling")},
	}
}
