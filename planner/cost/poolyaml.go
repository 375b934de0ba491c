package cost

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/autopar/autopar/config/strictyaml"
)

// This file reads clusters of pools, from the command line or from a cluster file.

// loadPools returns a cluster of pools written as a100-40g:32+h100:16. Devices of different pools are linked by the
// slowest link between nodes of any pool.
func loadPools(text string, files *[]string) (*Cluster, error) {
	refuse := func(format string, args ...any) error {
		return &Error{Msg: fmt.Sprintf("cluster %q: ", text) + fmt.Sprintf(format, args...)}
	}
	var pools []Pool
	for _, part := range strings.Split(text, "+") {
		at := strings.LastIndexByte(part, ':')
		if at < 0 {
			return nil, refuse("%q has no number of devices; want NAME:DEVICES+NAME:DEVICES, such as a100-40g:32+h100:16", part)
		}
		devices, err := strconv.Atoi(part[at+1:])
		if err != nil {
			return nil, refuse("%q is no number of devices; want NAME:DEVICES+NAME:DEVICES, such as a100-40g:32+h100:16", part[at+1:])
		}
		k, err := load(part[:at], true, files)
		if err != nil {
			return nil, err
		}
		pools = append(pools, Pool{k, devices})
	}
	if len(pools) == 1 {
		return nil, refuse("is of one kind; want %s alone, whose number of devices is that of the ranks", text[:strings.LastIndexByte(text, ':')])
	}
	c := Join(text, nil, pools...)
	if err := c.Validate(); err != nil {
		return nil, refuse("%s", strings.TrimPrefix(err.Error(), "cluster: "))
	}
	return c, nil
}

// pools reads the list of pools. Each is a mapping with cluster and devices.
func (d *decoder) pools(node ast.Node) error {
	if d.isPool {
		return d.at["pools"].Refuse("pools", "has no meaning in a pool of another cluster; want a cluster of one kind of device")
	}
	list, ok := node.(*ast.SequenceNode)
	if !ok {
		return d.at["pools"].Refuse("pools", "wants a list of pools, got %s", strictyaml.Describe(node))
	}
	d.c.Pools, d.poolNames = make([]Pool, len(list.Values)), make([]string, len(list.Values))
	for i, item := range list.Values {
		path := poolKey(i)
		d.at[path] = strictyaml.OriginOf(d.file, item)
		if err := d.mapping(path, item); err != nil {
			return err
		}
	}
	return nil
}

// join loads the clusters of the pools, and has them run the software of the whole. Relative file names are relative
// to this file.
func (d *decoder) join() error {
	for _, key := range slices.Sorted(maps.Keys(d.at)) {
		switch top, _, _ := strings.Cut(key, "."); {
		case top == "name", top == "source", top == "software", top == "between", strings.HasPrefix(top, "pools"):
		default:
			return d.at[top].Refuse(top, "has no meaning beside pools, which have their own: say it in the cluster of a pool")
		}
	}
	if len(d.c.Pools) == 0 {
		return d.at["pools"].Refuse("pools", "wants a list of pools")
	}
	for i := range d.c.Pools {
		key := poolKey(i) + ".cluster"
		if !d.writes(key) {
			return d.origin(key).Refuse(key, "is missing")
		}
		name := d.poolNames[i]
		if strings.ContainsAny(name, `./\`) && !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(d.file), name)
		}
		k, err := load(name, true, d.files)
		var bad *Error
		if errors.As(err, &bad) && bad.Line == 0 { // the error is not inside the pool's file
			return d.at[key].Refuse(key, "%v", err)
		}
		if err != nil {
			return err
		}
		d.c.Pools[i].Cluster = k
	}
	for _, p := range d.c.Pools {
		if d.software != "" && !p.Cluster.Device.Shared {
			p.Cluster.Software = d.c.Software
		}
	}
	var between *Link
	if d.writes("between") {
		between = &d.c.Between
	}
	source := d.c.Source
	d.c = Join(d.c.Name, between, d.c.Pools...)
	d.c.Source = source
	return nil
}

// poolConstants lists the uncertain figures of all pools, and of the link between them.
func (c *Cluster) poolConstants() []Constant {
	var all []Constant
	for i := range c.Pools {
		for _, k := range c.Pools[i].Cluster.constants() {
			of := k.at
			k.Key = poolKey(i) + "." + k.Key
			k.at = func(c *Cluster) *float64 { return of(c.Pools[i].Cluster) }
			all = append(all, k)
		}
	}
	return append(all,
		Constant{Key: "between.efficiency", Uncertainty: linkUncertainty, share: true, at: func(c *Cluster) *float64 { return &c.Between.Efficiency }},
		Constant{Key: "between.latency", Uncertainty: latencyUncertainty, at: func(c *Cluster) *float64 { return &c.Between.Latency }})
}
