package cost

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/config/strictyaml"
)

// This file lists the figures of a cluster that predictions depend on and that are not known exactly. Sensitivities
// and robust planning (package planner), and the fit to published runs (package measured) change a cluster through
// it.

// Resource is the hardware resource whose speed a figure of a cluster states.
type Resource uint8

// The resources.
const (
	Arithmetic Resource = iota // the rate of products, attention and other kernels
	HBM                        // device memory
	Launch                     // the start of a kernel
	IntraLink                  // between the devices of a node
	InterLink                  // between nodes
	HostLink                   // between a device and the memory of its host
	NumResources
)

func (r Resource) String() string {
	return [...]string{"compute", "HBM", "launch overhead", "link in node", "link between nodes", "host link"}[r]
}

// Constant is an uncertain figure of a cluster.
type Constant struct {
	Key string // its path in the YAML file, such as device.efficiency.matmul
	// Uncertainty is the relative standard deviation of the figure.
	Uncertainty float64

	share bool // it is an efficiency: at most 1
	at    func(*Cluster) *float64
}

// Relative uncertainties of figures for which the cluster states none. A fit on the published runs leaves about as
// much (bench/validate.md).
const (
	efficiencyUncertainty = 0.05 // of the share of a peak that kernels reach
	memoryUncertainty     = 0.05 // of the share of the memory bandwidth
	linkUncertainty       = 0.10 // of the share of a link's bandwidth
	latencyUncertainty    = 0.20 // of a link's latency
	launchUncertainty     = 0.20 // of the time to start a kernel
	halfUncertainty       = 0.20 // of the size at which products reach half their rate
)

// Constants lists the uncertain figures that a cluster states, in the order of its YAML. Peaks are not among them:
// their uncertainty is part of that of the efficiency. Each has the uncertainty that the cluster states for it, or
// else the default for its kind.
func (c *Cluster) Constants() []Constant {
	return slices.DeleteFunc(c.constants(), func(k Constant) bool { return *k.at(c) == 0 })
}

// constants lists all uncertain figures, stated or not.
func (c *Cluster) constants() []Constant {
	if len(c.Pools) > 0 {
		return c.poolConstants()
	}
	all := []Constant{
		{Key: "device.launch_overhead", Uncertainty: launchUncertainty, at: func(c *Cluster) *float64 { return &c.Device.LaunchOverhead }},
		{Key: "device.efficiency.matmul", Uncertainty: efficiencyUncertainty, share: true, at: func(c *Cluster) *float64 { return &c.Device.Efficiency.Matmul }},
		{Key: "device.efficiency.matmul_half_flops", Uncertainty: halfUncertainty, at: func(c *Cluster) *float64 { return &c.Device.Efficiency.MatmulHalf }},
		{Key: "device.efficiency.matmul_f8", Uncertainty: efficiencyUncertainty, share: true, at: func(c *Cluster) *float64 { return &c.Device.Efficiency.MatmulF8 }},
		{Key: "device.efficiency.tile_fill", Uncertainty: halfUncertainty, at: func(c *Cluster) *float64 { return &c.Device.Efficiency.TileFill }},
		{Key: "device.efficiency.threads", Uncertainty: efficiencyUncertainty, share: true, at: func(c *Cluster) *float64 { return &c.Device.Efficiency.Threads }},
		{Key: "device.efficiency.beside", Uncertainty: efficiencyUncertainty, share: true, at: func(c *Cluster) *float64 { return &c.Device.Efficiency.Beside }},
		{Key: "device.efficiency.attention", Uncertainty: efficiencyUncertainty, share: true, at: func(c *Cluster) *float64 { return &c.Device.Efficiency.Attention }},
		{Key: "device.efficiency.vector", Uncertainty: efficiencyUncertainty, share: true, at: func(c *Cluster) *float64 { return &c.Device.Efficiency.Vector }},
		{Key: "device.efficiency.memory", Uncertainty: memoryUncertainty, share: true, at: func(c *Cluster) *float64 { return &c.Device.Efficiency.Memory }},
	}
	link := func(key string, of func(*Cluster) *Link) {
		all = append(all,
			Constant{Key: key + ".efficiency", Uncertainty: linkUncertainty, share: true, at: func(c *Cluster) *float64 { return &of(c).Efficiency }},
			Constant{Key: key + ".latency", Uncertainty: latencyUncertainty, at: func(c *Cluster) *float64 { return &of(c).Latency }})
	}
	switch {
	case len(c.Levels) > 0: // then IntraNode and InterNode are copies of levels
		for i := range c.Levels {
			all = append(all,
				Constant{Key: levelKey(i) + ".efficiency", Uncertainty: linkUncertainty, share: true, at: func(c *Cluster) *float64 { return &c.Levels[i].Efficiency }},
				Constant{Key: levelKey(i) + ".latency", Uncertainty: latencyUncertainty, at: func(c *Cluster) *float64 { return &c.Levels[i].Latency }})
		}
	case c.Device.Shared:
		link("intra_node", func(c *Cluster) *Link { return &c.IntraNode })
	default:
		link("intra_node", func(c *Cluster) *Link { return &c.IntraNode })
		link("inter_node", func(c *Cluster) *Link { return &c.InterNode })
	}
	if c.Host != nil {
		link("host", func(c *Cluster) *Link { return c.Host })
	}
	for i := range all {
		if u, stated := c.Uncertainty[all[i].Key]; stated {
			all[i].Uncertainty = u
		}
	}
	return all
}

// levelResource tells whether a level of the network is inside a node or between nodes.
func (c *Cluster) levelResource(level int) Resource {
	if n := c.Levels[level].Devices; n > 0 && n <= c.DevicesPerNode {
		return IntraLink
	}
	return InterLink
}

// Scale multiplies the figure in a cluster by a positive factor. An efficiency stays at most 1.
func (k Constant) Scale(c *Cluster, by float64) {
	at := k.at(c)
	*at *= by
	if k.share {
		*at = min(*at, 1)
	}
	c.derive()
}

// derive updates the fields that summarize the levels of the network, or the pools.
func (c *Cluster) derive() {
	if len(c.Levels) > 0 {
		c.deriveNode()
	}
	for _, p := range c.Pools {
		p.Cluster.derive()
	}
	if len(c.Pools) > 0 {
		c.derivePools()
	}
}

// Clone returns a cluster that shares nothing with c.
func (c *Cluster) Clone() *Cluster {
	d := *c
	d.Device.FLOPS, d.Device.Kernels, d.Uncertainty = maps.Clone(c.Device.FLOPS), maps.Clone(c.Device.Kernels), maps.Clone(c.Uncertainty)
	d.Levels, d.Pools = slices.Clone(c.Levels), slices.Clone(c.Pools)
	for i := range d.Pools {
		d.Pools[i].Cluster = d.Pools[i].Cluster.Clone()
	}
	if c.Host != nil {
		host := *c.Host
		d.Host = &host
	}
	if c.Device.Cache != nil {
		cache := *c.Device.Cache
		d.Device.Cache = &cache
	}
	return &d
}

// Faster returns a cluster on which one resource is faster by a factor: rates are multiplied by it, times divided.
func (c *Cluster) Faster(r Resource, by float64) *Cluster { return c.scaled(r, by, by) }

// Wider is [Cluster.Faster] with the latencies of links as they are.
func (c *Cluster) Wider(r Resource, by float64) *Cluster { return c.scaled(r, by, 1) }

// scaled is Faster, with the latencies of links divided by a factor of their own.
func (c *Cluster) scaled(r Resource, by, latency float64) *Cluster {
	d := c.Clone()
	if r == Launch {
		d.Software.Host /= by
		d.Software.Sync /= by
	}
	link := func(l *Link) { l.Bandwidth, l.Latency = l.Bandwidth*by, l.Latency/latency }
	if len(c.Pools) > 0 {
		for i := range d.Pools {
			d.Pools[i].Cluster = d.Pools[i].Cluster.scaled(r, by, latency)
		}
		if r == InterLink {
			link(&d.Between)
		}
		d.derive()
		return d
	}
	for i := range d.Levels {
		if l := &d.Levels[i]; c.levelResource(i) == r {
			l.Bandwidth, l.Latency = l.Bandwidth*by, l.Latency/latency
		}
	}
	switch r {
	case Arithmetic:
		for dtype := range d.Device.FLOPS {
			d.Device.FLOPS[dtype] *= by
		}
		d.Device.Pack /= by
	case HBM:
		d.Device.MemoryBandwidth *= by
		if d.Device.Cache != nil {
			d.Device.Cache.Bandwidth *= by
			d.Device.Cache.Remote *= by
		}
	case Launch:
		d.Device.LaunchOverhead /= by
		d.Device.Turn /= by
		d.Device.Fork /= by
	case IntraLink:
		link(&d.IntraNode)
	case InterLink:
		link(&d.InterNode)
	case HostLink:
		if d.Host != nil {
			link(d.Host)
		}
	}
	return d
}

// validateUncertainty checks the stated uncertainties.
func (c *Cluster) validateUncertainty() error {
	for _, key := range slices.Sorted(maps.Keys(c.Uncertainty)) {
		if msg := c.refuseUncertainty(key); msg != "" {
			return &FieldError{"uncertainty." + key, msg}
		}
	}
	return nil
}

// refuseUncertainty returns what is wrong with a stated uncertainty, or "".
func (c *Cluster) refuseUncertainty(key string) string {
	var known []string
	for _, k := range c.constants() {
		known = append(known, k.Key)
	}
	switch u := c.Uncertainty[key]; {
	case !slices.Contains(known, key):
		return fmt.Sprintf("is not a figure that can be uncertain; did you mean %s? There are %s", config.Nearest(key, known), strings.Join(known, ", "))
	case !(u >= 0 && u <= 1):
		return fmt.Sprintf("is %v, must be between 0 and 1: a relative standard deviation", u)
	}
	return ""
}

// uncertainty reads the optional section of that name. Its keys are those of other figures: uncertainty:
// {device.efficiency.matmul: 0.03}.
func (d *decoder) uncertainty(node ast.Node) error {
	entries, err := strictyaml.Entries(node, d.file, "uncertainty")
	if err != nil {
		return err
	}
	d.c.Uncertainty = map[string]float64{}
	all := &Cluster{Host: &Link{}, Uncertainty: d.c.Uncertainty} // accepts keys of sections that the file may have further down
	for _, e := range entries {
		value, ok := strictyaml.ScalarOf(e.Value)
		if ok {
			d.c.Uncertainty[e.Name], ok = value.Float()
		}
		if !ok {
			return e.At.Refuse("uncertainty."+e.Name, "wants a number, got %s", strictyaml.Describe(e.Value))
		}
		if msg := all.refuseUncertainty(e.Name); msg != "" && !strings.HasPrefix(e.Name, "levels[") {
			return e.At.Refuse("uncertainty."+e.Name, "%s", msg)
		}
	}
	return nil
}
