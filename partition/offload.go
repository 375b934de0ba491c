package partition

import (
	"fmt"
	"strings"

	"github.com/autopar/autopar/ir"
)

// Offload says what is kept in the host memory of its rank instead of on its device (Ren et al. 2021,
// ZeRO-Offload; Rajbhandari et al. 2021, ZeRO-Infinity). Only the placement is theirs: every kernel still runs
// on the device.
type Offload string

// The choices of offload.
const (
	OffloadNone      Offload = ""          // nothing; "none" is the same
	OffloadOptimizer Offload = "optimizer" // the moments of AdamW, and master copies of weights
	OffloadParams    Offload = "params"    // also the parameters
)

// String returns the name of the choice on the command line.
func (o Offload) String() string {
	if o == OffloadNone {
		return "none"
	}
	return string(o)
}

// Moves reports whether anything is kept in host memory.
func (o Offload) Moves() bool { return o == OffloadOptimizer || o == OffloadParams }

// offload moves what the plan offloads to host memory. Parameters are fetched for each block just before its
// first use, in the forward pass, in the backward pass, and once more for the optimizer unless there is a
// master copy. Optimizer state is fetched only for the optimizer. New values are stashed as soon as they are
// made. What is fetched is the rank's shard; if ZeRO gathers it, that happens on the device. Specs do not
// change. The graph is changed in place.
func offload(g *ir.Graph, what Offload) {
	if !what.Moves() {
		return
	}
	o := &offloader{dst: make([]*ir.Node, 0, len(g.Nodes)), fetched: map[fetchKey]*ir.Value{}, names: map[string]int{}}
	state := map[*ir.Value]bool{}
	for _, n := range g.Nodes {
		if n.Op != ir.OpAdamW {
			continue
		}
		for _, a := range n.Args[:3] {
			if leaf := origin(a); leaf.Def.Attr.(ir.ParamAttr).State {
				state[leaf] = true
			}
		}
	}
	for _, n := range g.Nodes {
		attr, isParam := n.Attr.(ir.ParamAttr)
		if isParam && (state[n.Results[0]] || what == OffloadParams && !attr.State) {
			attr.Host = true
			n.Attr = attr
		}
	}
	stashes := map[*ir.Value][]int{} // by new value: indices of updates
	for i, u := range g.Updates {
		if u.Param.OnHost() {
			stashes[u.New] = append(stashes[u.New], i)
		}
	}
	for _, n := range g.Nodes {
		for i, a := range n.Args {
			if a.OnHost() {
				n.Args[i] = o.fetch(a, n)
			}
		}
		o.dst = append(o.dst, n)
		for _, r := range n.Results {
			for _, i := range stashes[r] {
				g.Updates[i].New = o.copy(ir.OpStash, g.Updates[i].Param.Name(), r, n)
			}
		}
	}
	g.Nodes = o.dst
	g.Renumber()
}

// origin returns the leaf that a value is a part of.
func origin(v *ir.Value) *ir.Value {
	for v.Def.Op.Class() == ir.Comm {
		v = v.Def.Args[0]
	}
	return v
}

type offloader struct {
	dst     []*ir.Node
	fetched map[fetchKey]*ir.Value
	names   map[string]int
}

// fetchKey is what one fetch serves: a block in one phase, all slices of the loss, or outside of both
// one node. All of it is on one stage.
type fetchKey struct {
	value *ir.Value
	phase ir.Phase
	user  string
}

func (o *offloader) fetch(v *ir.Value, user *ir.Node) *ir.Value {
	key := fetchKey{v, user.Phase, user.Block()}
	if key.user == "" {
		key.user = user.Name
		if strings.Contains(user.Name, sliceSuffix) {
			key.user = sliceSuffix
		}
	}
	if _, ok := o.fetched[key]; !ok {
		o.fetched[key] = o.copy(ir.OpFetch, v.Name(), v, user)
	}
	return o.fetched[key]
}

// copy appends a copy of v between host and device, on the stage and in the phase
// of the node that it is made for or made by. of is the name of the leaf that it
// belongs to.
func (o *offloader) copy(op ir.Op, of string, v *ir.Value, beside *ir.Node) *ir.Value {
	name := fmt.Sprintf("%s@%s", of, op)
	again := o.names[name]
	if o.names[name]++; again > 0 {
		name = fmt.Sprintf("%s_%d", name, again)
	}
	n := &ir.Node{Op: op, Args: []*ir.Value{v}, Phase: beside.Phase, Stage: beside.Stage, Name: name, Pos: v.Def.Pos}
	n.Results = []*ir.Value{{Type: v.Type, Def: n, Spec: v.Spec}}
	o.dst = append(o.dst, n)
	return n.Results[0]
}
