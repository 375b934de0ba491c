package cost

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// This file prices the instructions of a compiled program. It determines the local shapes of each, its bytes and
// operations, and the group or route of its communication, and passes these to Model. planner/sim runs programs at
// these prices; the search uses them for floors and for skeletons of stages.

// Kind is the part of a [Breakdown] that an instruction's time belongs to.
type Kind uint8

// The kinds.
const (
	Compute Kind = iota
	Communication
	Optimizer
)

// Program prices the instructions of a program. Its figures do not depend on the size of micro-batches, so one
// Program serves a plan at every size: see [Program.Instr]. It is not safe for concurrent use.
type Program struct {
	*Model
	plan    *partition.Plan
	mesh    ir.Mesh
	stage   int         // the stage that all instructions are priced for; -1: each for its own
	at      int         // the place of that stage: see [Program.place]
	layout  *poolLayout // nil with one kind of device
	groups  map[groupKey]Group
	routes  map[routeKey]Route
	works   map[workKey]work // kept if the program is priced again on another cluster: see [Program.On]
	scratch *scratch
}

// workKey is all that the work of a kernel depends on within a program.
type workKey struct {
	node  *ir.Node
	batch [2]int // size and chunk of the mesh axis of micro-batches
	at    ir.Coord
	more  bool // it adds to its results

	part, parts int // of an instruction that is made in parts
}

// scratch is scratch space for local shapes while a kernel is priced.
type scratch struct {
	dims   [48]int
	shapes [12][]int
}

// groupKey is a mesh axis at a place: see [Program.place].
type groupKey struct{ place, axis int }

// routeKey is the place of a stage and the distance in positions to the stage that it sends to.
type routeKey struct{ place, hop int }

// NewProgram prepares to price programs that a plan makes. It panics if the cluster's pools do not hold the plan: see
// [Cluster.Holds].
func NewProgram(c *Cluster, p *partition.Plan, mesh ir.Mesh) *Program {
	return NewModel(c, p.RuntimeNGPUs).Program(p, mesh)
}

// Program is [NewProgram] with given prices, for a plan with as many ranks as the prices are for.
func (m *Model) Program(p *partition.Plan, mesh ir.Mesh) *Program {
	p = p.Even() // shares are in the mesh, and ranks lie where they do without
	prog := &Program{
		Model: m, plan: p, mesh: mesh, stage: -1, layout: newPoolLayout(m.cluster, p),
		groups: map[groupKey]Group{}, routes: map[routeKey]Route{}, scratch: &scratch{},
	}
	if prog.layout != nil {
		prog.Model = prog.layout.model(1<<len(m.cluster.Pools) - 1)
	}
	return prog
}

// On returns prices of the same program on a cluster that differs in its figures, but not in the devices of its
// nodes.
func (m *Program) On(c *Cluster) *Program {
	if m.works == nil {
		m.works = map[workKey]work{}
	}
	if m.layout != nil || len(c.Pools) > 0 {
		other := NewProgram(c, m.plan, m.mesh)
		other.works, other.scratch = m.works, m.scratch
		return other
	}
	other := *m
	other.Model = NewModel(c, m.plan.RuntimeNGPUs)
	other.groups, other.routes = map[groupKey]Group{}, map[routeKey]Route{}
	if slices.EqualFunc(m.rungs, other.rungs, func(a, b rung) bool { return a.devices == b.devices && a.ports == b.ports }) {
		other.groups = m.groups
	}
	if m.stage >= 0 {
		return other.As(m.stage)
	}
	return &other
}

// As returns the same prices, with all instructions priced as if they belonged to one stage.
func (m *Program) As(stage int) *Program {
	as := *m
	position, _ := m.plan.Position(stage)
	as.stage, as.at = stage, m.place(position)
	if m.layout != nil {
		as.Model = m.layout.model(m.Kinds(stage))
	}
	return &as
}

// each returns the prices for instructions of a stage, where stages lie on different kinds of devices.
func (m *Program) each(stage int) *Program {
	if m.layout == nil || m.stage >= 0 {
		return m
	}
	return m.As(stage)
}

// Offset returns a number that tells where the ranks of a pipeline position lie in the units of the network, and on
// which kinds of devices. Positions with the same offset take the same time for everything that they compute and
// communicate, except for transfers between the two ends of the pipeline.
func (m *Program) Offset(position int) int {
	if m.layout != nil {
		return m.classes()[position]
	}
	return m.offset(m.plan.WorldRank(position, 0))
}

func (m *Program) offset(rank int) int {
	return rank % m.layout.period(m.rungs)
}

// place returns what the groups and routes of a position follow from: its offset in the units of the network, or with
// several pools the position itself.
func (m *Program) place(position int) int {
	if m.layout != nil {
		return position
	}
	return m.Offset(position)
}

// group returns the slowest of the groups over an axis, at the position that an instruction is priced for. All ranks
// of a stage do the same work, and a group that waits for a slower one later gains nothing by being faster. If a plan
// does not fit the nodes, this is an upper bound.
func (m *Program) group(n *ir.Node, axis int) Group {
	stage := m.stage
	if stage < 0 {
		stage = n.Stage
	}
	return m.groupOf(stage, axis)
}

// Ways encodes all groups and routes over which programs of the plan communicate. Plans with equal ways take the same
// time for it.
func (m *Program) Ways() string {
	var b []byte
	number := func(n int) { b = strconv.AppendInt(append(b, ' '), int64(n), 10) }
	positions := m.plan.PP()
	var offsets []int // those met so far
	seen := map[routeKey]bool{}
	for at := range positions {
		offset := m.Offset(at)
		k := slices.Index(offsets, offset)
		if k < 0 {
			k = len(offsets)
			offsets = append(offsets, offset)
			number(int(m.Kinds(at)))
			for axis := range m.mesh.Axes {
				g := m.groupOf(at, axis)
				number(g.Size)
				for l, parts := range g.Fan {
					number(parts)
					if u := g.Uneven[l]; u != (Uneven{}) {
						number(u.Few)
						number(u.Around)
						number(u.Apart)
					}
				}
			}
		}
		b = append(b, '|')
		number(k)
		ends := append(make([]int, 0, 3), at+1, at-1)
		if at == 0 || at == positions-1 { // the two ends of the pipeline send to each other
			ends = append(ends, positions-1-at)
		}
		for _, to := range ends {
			if key := (routeKey{m.place(at), to - at}); to >= 0 && to < positions && to != at && !seen[key] {
				seen[key] = true
				way := m.route(at, to)
				b = append(b, '>')
				number(to - at)
				for _, senders := range way {
					number(senders)
				}
			}
		}
	}
	return string(b)
}

// Grouped returns the same prices for stage 0, with the given groups over some axes.
func (m *Program) Grouped(groups map[int]Group) *Program {
	as := m.As(0)
	as.groups = map[groupKey]Group{}
	for axis, g := range groups {
		as.groups[groupKey{m.place(0), axis}] = g
	}
	return as
}

// Near returns the same prices, with kernels priced as if all that they read and write lay in the cache. A part of a
// kernel then takes at least that part of its time.
func (m *Program) Near() *Program {
	near := *m
	near.Model = m.Model.asNear()
	return &near
}

// Cached reports whether kernels are faster if their operands lie in a cache.
func (m *Model) Cached() bool {
	return m.cache.Bandwidth > 0 || slices.ContainsFunc(m.kinds, (*Model).Cached)
}

func (m *Model) asNear() *Model {
	near := *m
	near.near, near.kinds = true, nil
	for _, k := range m.kinds {
		near.kinds = append(near.kinds, k.asNear())
	}
	return &near
}

// Group returns the group over an axis at the stage that instructions are priced for.
func (m *Program) Group(axis int) Group { return m.groupOf(m.stage, axis) }

func (m *Program) groupOf(stage, axis int) Group {
	key := groupKey{m.at, axis}
	if stage != m.stage {
		position, _ := m.plan.Position(stage)
		key.place = m.place(position)
	}
	g, known := m.groups[key]
	if !known {
		position, _ := m.plan.Position(stage)
		g = m.widest(position, axis)
		m.groups[key] = g
	}
	return g
}

// widest combines the groups over an axis that wait for each other: see [Group.slowest]. It looks at one of those
// that begin at the same place in a unit of the network, as they are alike.
func (m *Program) widest(position, axis int) Group {
	worst := Group{Size: 1}
	if m.mesh.Axes[axis].Time {
		return worst
	}
	if m.mesh.Axes[axis].Size == 1 {
		return spread(m.rungs, []int{0}) // it does not matter where that rank lies
	}
	type start struct{ rank, shard int }
	seen := map[start]bool{}
	stride := 1
	for a := axis + 1; a < len(m.mesh.Axes); a++ {
		if !m.mesh.Axes[a].Time {
			stride *= m.mesh.Axes[a].Size
		}
	}
	size, across := m.mesh.Axes[axis].Size, partition.FollowsBatch(m.mesh.Axes[axis])
	stage, ranks := m.plan.StageRanks(position), make([]int, size)
	// add looks at the group that begins with a device.
	add := func(d int) {
		at := start{m.offset(stage.Of(d)), 0}
		if across { // data-parallel ranks may lie in several units of the plan
			at.shard = d / m.plan.TP % m.plan.DP
		}
		if seen[at] {
			return
		}
		seen[at] = true
		for i := range ranks {
			ranks[i] = m.layout.address(stage.Of(d + i*stride))
		}
		if g := spread(m.rungs, ranks); worst.Size == 1 {
			worst = g
		} else {
			worst = worst.slowest(g)
		}
	}
	if across {
		for from := 0; from < m.mesh.Devices(); from += stride * size {
			for d := from; d < from+stride; d++ {
				add(d)
			}
		}
		return worst
	}
	// Groups inside one data-parallel rank begin at the same places again after a period: see route.
	whole, inner, of := m.layout.period(m.rungs), m.plan.ContextParallel()*m.plan.TP, m.plan.DP
	if m.plan.RankOrder == "" {
		of = min(of, multiple(inner, whole)/inner)
	}
	for unit := range min(m.plan.Units(), multiple(m.plan.PlanNGPUs, whole)/m.plan.PlanNGPUs) {
		for dp := range of {
			for _, d := range m.plan.Devices(unit*m.plan.DP + dp) {
				if d/stride%size == 0 {
					add(d)
				}
			}
		}
	}
	return worst
}

// route returns how transfers between two stages go.
func (m *Program) route(from, to int) Route {
	at, _ := m.plan.Position(from)
	end, _ := m.plan.Position(to)
	key := routeKey{m.place(at), end - at}
	way, known := m.routes[key]
	if !known {
		way = route(m.rungs, m.layout, m.plan, from, to)
		m.routes[key] = way
	}
	return way
}

// Send returns the time of a transfer from one stage to another.
func (m *Program) Send(n *ir.Node, mesh ir.Mesh, at ir.Coord, from, to int) Picoseconds {
	return m.crowded(m.send(n, mesh, at, from, to), n.Phase, mesh)
}

// Hand is the time of a transfer of so many bytes from one stage to another, if all ranks are busy and send all of it.
func (m *Program) Hand(bytes int64, from, to int) Picoseconds {
	as := m.each(from)
	if as.sendsLater() {
		bytes = 0
	}
	return as.Transfer(bytes, m.route(from, to))
}

// sendsLater reports whether the software sends what interleaved stages hand on beside their work.
func (m *Program) sendsLater() bool { return m.software.AsyncSend && m.plan.Chunks() > 1 }

// send is [Program.Send] if all ranks are busy. With [Software.Scatter], the ranks of a tensor-parallel group send
// parts, and the receivers gather them.
func (m *Program) send(n *ir.Node, mesh ir.Mesh, at ir.Coord, from, to int) Picoseconds {
	bytes, way := localBytes(n.Results[0], mesh, at), m.route(from, to)
	m = m.each(from)
	tp := mesh.Axis(partition.AxisTP)
	inside := way == Route{way[0]} // the transfer does not leave units of the innermost level
	if m.sendsLater() || inside || !m.software.Scatter || tp < 0 || n.Results[0].Spec[tp].Kind == ir.Shard {
		return m.Hand(bytes, from, to)
	}
	g := m.groupOf(to, tp)
	return m.Transfer(ceil(bytes, int64(g.Size)), way) + m.As(to).Collective(ir.OpAllGather, bytes, g)
}

// instr is [Program.Instr] if all ranks are busy.
func (m *Program) instr(in *codegen.Instr, mesh ir.Mesh, at ir.Coord) (Picoseconds, Kind) {
	n := in.Node
	m = m.each(n.Stage)
	kind := Compute
	if n.Phase == ir.Update {
		kind = Optimizer
	}
	if share, parts := in.ShareOf(mesh, n.Results[0], at); parts && share.Len == 0 {
		if n.Op.Class() == ir.Comm {
			kind = Communication
		}
		return 0, kind // there are fewer sequences than parts
	}
	switch n.Op {
	case ir.OpInput, ir.OpSlice, ir.OpFold, ir.OpUnfold, ir.OpToPartial:
		if !in.Moves(mesh) {
			return 0, kind
		}
		return m.kernel(&work{copy: n.Op, bytes: 2 * localBytes(n.Results[0], mesh, at)}), kind // read and written
	case ir.OpAccumulate:
		return m.kernel(&work{copy: n.Op, bytes: 3 * localBytes(n.Results[0], mesh, at)}), kind
	case ir.OpSend:
		return m.send(n, mesh, at, n.Stage, n.Attr.(ir.P2PAttr).Stage), Communication
	case ir.OpFetch, ir.OpStash:
		return m.HostCopy(localBytes(n.Results[0], mesh, at)), Communication
	case ir.OpRecv:
		return 0, Communication // the sender writes it where it belongs
	}
	if n.Op.Class() == ir.Comm {
		axis := mesh.Axis(n.Attr.(ir.CommAttr).Axis)
		bytes := collectiveBytes(in, mesh, at)
		t := m.synchronized(n, bytes, m.inPlace(in, mesh, at), m.share(n, bytes), m.group(n, axis))
		if m.software.AsyncTP && in.Beside == 0 && in.Parts == 0 && mesh.Axes[axis].Name == partition.AxisTP {
			t = m.beside(n, t, mesh, at)
		}
		return t, Communication
	}
	return m.compute(in, mesh, at, len(n.Args)), kind
}

// Bucket returns the time of one instruction or of a [codegen.Bucket] of collectives. A bucket takes as long as one
// collective of as many bytes, or as several if the software's buffers are smaller.
func (m *Program) Bucket(instrs []codegen.Instr, mesh ir.Mesh, at ir.Coord) (Picoseconds, Kind) {
	if len(instrs) == 1 {
		return m.Instr(&instrs[0], mesh, at)
	}
	n := instrs[0].Node
	m = m.each(n.Stage)
	bytes, inPlace, share := int64(0), int64(0), 0.0
	for i := range instrs {
		one := collectiveBytes(&instrs[i], mesh, at)
		bytes += one
		inPlace += m.inPlace(&instrs[i], mesh, at)
		share += m.share(n, one)
	}
	if m.software.Buffer == 0 || !ofReplicas(n, mesh) { // then all go at once
		share = 1
	}
	return m.crowded(m.synchronized(n, bytes, inPlace, share, m.group(n, mesh.Axis(n.Attr.(ir.CommAttr).Axis))), n.Phase, mesh), Communication
}

// Slowed is [Model.Slows] on the device of a collective.
func (m *Program) Slowed(n *ir.Node, time Picoseconds) Picoseconds {
	return m.each(n.Stage).Slows(time)
}

// InOrder returns the time of instructions one after another, none of them in a bucket.
func (m *Program) InOrder(instrs []codegen.Instr, mesh ir.Mesh, at ir.Coord) (sum Picoseconds) {
	for i := range instrs {
		t, _ := m.Instr(&instrs[i], mesh, at)
		sum += t
	}
	return sum
}

// inPlace is how many bytes of the result of an all_gather every rank already has in place.
func (m *Program) inPlace(in *codegen.Instr, mesh ir.Mesh, at ir.Coord) int64 {
	if in.Node.Op != ir.OpAllGather || in.Moves(mesh) {
		return 0
	}
	axis := mesh.Axis(in.Node.Attr.(ir.CommAttr).Axis)
	at[axis] = mesh.Axes[axis].Size - 1 // the smallest part
	return localBytes(in.Node.Args[0], mesh, at)
}

// synchronized is the time of a collective as the software makes it. Every rank has inPlace bytes of the result in
// place; share is the tensor's share of the hops of its buffer.
func (m *Program) synchronized(n *ir.Node, bytes, inPlace int64, share float64, g Group) Picoseconds {
	if !ofReplicas(n, m.mesh) {
		return m.collective(n.Op, bytes, inPlace, g, crossing{hops: share, network: 1})
	}
	if wide, size := int64(m.software.Reduce), n.Args[0].Type.DType.Size(); wide > size && (n.Op == ir.OpReduceScatter || n.Op == ir.OpAllReduce) {
		bytes = wide * (bytes / size)
	}
	return m.collective(m.replicas(n.Op), bytes, inPlace, g, crossing{hops: share, network: m.beyond()})
}

// ofReplicas reports whether a collective is one of ranks that have the same parameters, of these or their gradients:
// of data-parallel ranks, or of context-parallel ones unless what they exchange are activations.
func ofReplicas(n *ir.Node, mesh ir.Mesh) bool {
	axis := mesh.Axes[mesh.Axis(n.Attr.(ir.CommAttr).Axis)]
	if axis.Name == partition.AxisCP {
		return n.Args[0].Spec[mesh.Axis(partition.AxisMB)].Kind != ir.Shard
	}
	return partition.FollowsBatch(axis)
}

// share is a tensor's share of the hops of a collective.
func (m *Program) share(n *ir.Node, bytes int64) float64 {
	if !ofReplicas(n, m.mesh) {
		return 1
	}
	return m.buffered(bytes)
}

// buffered is a tensor's share of the software's buffer for what ranks with the same parameters exchange; 1 without one,
// or if the tensor is larger.
func (m *Model) buffered(bytes int64) float64 {
	if m.software.Buffer == 0 {
		return 1
	}
	return min(1, float64(bytes)/m.software.Buffer)
}

// beyond is the factor on the rate of the network between nodes for collectives of ranks with the same parameters.
func (m *Model) beyond() float64 { return cmp.Or(m.software.Replicas, 1) }

// crossing is how the software sends one tensor through the network over ranks with the same parameters.
func (m *Model) crossing(bytes int64) crossing {
	return crossing{hops: m.buffered(bytes), network: m.beyond()}
}

// Replicas returns the least time of a collective of a parameter or gradient over ranks that have the same.
func (m *Model) Replicas(op ir.Op, bytes int64, g Group) Picoseconds {
	return m.collective(m.replicas(op), bytes, own(op, bytes, g.Size), g, m.crossing(bytes))
}

// Sharers returns the least time of a collective of a parameter or gradient over ranks that share the work of a data-parallel one.
func (m *Model) Sharers(op ir.Op, bytes int64, g Group) Picoseconds {
	return m.collective(op, bytes, own(op, bytes, g.Size), g, crossing{hops: 1, network: 1})
}

// Nearest is a lower bound of [Model.Replicas] over so many ranks, wherever they lie, on a cluster with one kind of
// device.
func (m *Model) Nearest(op ir.Op, bytes int64, ranks int) Picoseconds {
	return m.nearest(m.replicas(op), bytes, ranks, m.crossing(bytes))
}

// own is an upper bound of what each of so many ranks has of the result of a collective before it starts, in bytes.
func own(op ir.Op, bytes int64, ranks int) int64 {
	if op != ir.OpAllGather {
		return 0
	}
	return bytes / int64(ranks)
}

// replicas returns the collective that the software makes in place of one over data-parallel ranks.
func (m *Model) replicas(op ir.Op) ir.Op {
	if m.software.AllReduce && op == ir.OpReduceScatter {
		return ir.OpAllReduce
	}
	return op
}

// collectiveBytes is the size of the tensor of a collective, as [Model.Collective] takes it.
func collectiveBytes(in *codegen.Instr, mesh ir.Mesh, at ir.Coord) int64 {
	n := in.Node
	at[mesh.Axis(n.Attr.(ir.CommAttr).Axis)] = 0 // the group waits for its largest part
	if n.Op == ir.OpReduceScatter || n.Op == ir.OpAllToAll {
		return instrBytes(in, n.Args[0], mesh, at)
	}
	return instrBytes(in, n.Results[0], mesh, at)
}

// instrBytes is how many bytes of an operand or result an instruction processes.
func instrBytes(in *codegen.Instr, v *ir.Value, mesh ir.Mesh, at ir.Coord) int64 {
	return in.Elems(mesh, v, at) * v.Type.DType.Size()
}

// AddN returns the time of an add_n as if it had the given number of operands.
func (m *Program) AddN(in *codegen.Instr, mesh ir.Mesh, at ir.Coord, operands int) Picoseconds {
	if in.Node.Op != ir.OpAddN {
		panic(fmt.Sprintf("BUG: %s is %s, not add_n", in.Node.Name, in.Node.Op))
	}
	return m.crowded(m.each(in.Node.Stage).compute(in, mesh, at, operands), in.Node.Phase, mesh)
}

// compute prices a kernel at its local shapes. operands differs from the number in the node only for an add_n.
func (m *Program) compute(in *codegen.Instr, mesh ir.Mesh, at ir.Coord, operands int) Picoseconds {
	n := in.Node
	w := m.work(in, mesh, at)
	if n.Op == ir.OpAddN && operands != len(n.Args) {
		more := int64(operands-len(n.Args)) * localBytes(n.Results[0], mesh, at)
		w.bytes += more
		if across(n) {
			w.across += more
		}
		w.flops = w.flops / float64(len(n.Args)) * float64(operands)
	}
	t := m.kernel(&w) + m.terms(n, mesh, at)
	if m.software.WholeBlock {
		t += m.unread(n, mesh, at)
	}
	return t
}

// unread is the time that recomputation wastes after an activation function: on the last product of the block and its
// sum over tensor-parallel ranks, which no gradient needs. The product has as many operations as that for the
// gradient of its input, which the gradient of the activation function reads.
func (m *Program) unread(n *ir.Node, mesh ir.Mesh, at ir.Coord) Picoseconds {
	var dy, x *ir.Value
	switch n.Op {
	case ir.OpGELUGrad:
		dy, x = n.Args[0], n.Args[1]
	case ir.OpSwiGLUGrad:
		dy, x = n.Args[1], n.Args[0]
	default:
		return 0
	}
	product := dy.Def
	if x.Def.Phase != ir.Backward || product.Op != ir.OpMatMul {
		return 0
	}
	t := m.compute(&codegen.Instr{Node: product, Accum: make([]codegen.Accum, 1)}, mesh, at, len(product.Args))
	tp := mesh.Axis(partition.AxisTP)
	if split := ir.ShardOn(len(x.Type.Shape) - 1); tp < 0 || mesh.Axes[tp].Size == 1 || x.Spec[tp] != split {
		return t // the product is not a sum over ranks
	}
	op := ir.OpAllReduce
	if m.plan.SequenceParallel {
		op = ir.OpReduceScatter
	}
	return t + m.Collective(op, localBytes(product.Args[0], mesh, at), m.group(n, tp))
}

// beside is what remains of the time t of a collective over tensor-parallel ranks that runs beside a product which
// does not need its result (Korthikanti et al. 2022, section 4.2.2, as in Megatron-LM). In the backward pass, the
// reduction of an input's gradient runs beside the product for the weight's gradient, which takes as long as the one
// for the input's gradient; an all-gather of what the forward pass made runs beside the product before it. In chunks,
// a collective also runs beside the product that makes its operand or needs its result, except for one chunk.
func (m *Program) beside(n *ir.Node, t Picoseconds, mesh ir.Mesh, at ir.Coord) Picoseconds {
	def := n.Args[0].Def
	isProduct, backward := def.Op == ir.OpMatMul, n.Phase == ir.Backward || n.Phase == ir.WeightGrad
	product := func() Picoseconds {
		return m.compute(&codegen.Instr{Node: def, Accum: make([]codegen.Accum, len(def.Results))}, mesh, at, len(def.Args))
	}
	hidden := Picoseconds(0)
	switch {
	case backward && n.Op == ir.OpAllGather && def.Phase == ir.Forward:
		hidden = t
	case backward && n.Op != ir.OpAllGather && isProduct && def.Attr.(ir.MatMulAttr).Form == ir.MatMulNN:
		hidden = product()
	case m.software.ChunkedTP && n.Op == ir.OpReduceScatter && isProduct:
		hidden = min(t, product()) * (tpChunks - 1) / tpChunks
	case m.software.ChunkedTP && n.Op == ir.OpAllGather && (n.Block() != "" || backward): // not before the head
		hidden = t * (tpChunks - 1) / tpChunks
	}
	return max(t-hidden, picoseconds(m.launch), m.Slows(t))
}

// tpChunks is the number of parts in which a product and its collective are pipelined (Transformer Engine's
// communication overlap).
const tpChunks = 4

// work returns what an op does at its local shapes if it is one kernel.
func (m *Program) work(in *codegen.Instr, mesh ir.Mesh, at ir.Coord) work {
	if m.works == nil {
		return m.workOf(in, mesh, at)
	}
	key := workKey{node: in.Node, at: at, part: in.Part, parts: in.Parts}
	if mb := mesh.Axis(partition.AxisMB); mb >= 0 {
		key.batch = [2]int{mesh.Axes[mb].Size, mesh.Axes[mb].Chunk}
	}
	for _, a := range in.Accum {
		key.more = key.more || a != codegen.Overwrite
	}
	w, known := m.works[key]
	if !known {
		w = m.workOf(in, mesh, at)
		m.works[key] = w
	}
	return w
}

func (m *Program) workOf(in *codegen.Instr, mesh ir.Mesh, at ir.Coord) work {
	n := in.Node
	w := work{node: n, class: classOf(n.Op), dtype: n.Args[0].Type.DType, host: n.Phase != ir.Update}
	dims, local := m.scratch.dims[:0], m.scratch.shapes[:0]
	for _, vs := range [2][]*ir.Value{n.Args, n.Results} {
		for _, v := range vs {
			from := len(dims)
			dims = mesh.LocalShape(dims, v.Type.Shape, v.Spec, at)
			if share, parts := in.ShareOf(mesh, v, at); parts {
				dims[from] = share.Len
			}
			local = append(local, dims[from:])
			w.bytes += ir.Elems(dims[from:]) * v.Type.DType.Size()
		}
	}
	args, results := local[:len(n.Args)], local[len(n.Args):]
	if across(n) {
		for i, v := range n.Args {
			w.across += ir.Elems(args[i]) * v.Type.DType.Size()
		}
		if w.class != product {
			w.across = w.bytes
		}
	}
	for i, r := range n.Results {
		if in.Accum[i] != codegen.Overwrite { // it is read before it is added to
			w.bytes += ir.Elems(results[i]) * r.Type.DType.Size()
		}
	}
	w.flops = ir.SignatureOf(n).FLOPs(args, results)
	switch n.Op {
	case ir.OpEmbedding: // it reads the rows that it picks, not the whole table
		w.bytes = 2 * localBytes(n.Results[0], mesh, at)
	case ir.OpRowPick: // it reads one logit of a row and its number, not all of them
		w.bytes = 3 * localBytes(n.Results[0], mesh, at)
	case ir.OpMatMul:
		made := ir.Elems(results[0])
		if terms := w.flops / 2 / float64(made); made > 0 && terms > 0 {
			w.cols = int64(float64(ir.Elems(args[1])) / terms)
			w.rows = made / max(w.cols, 1)
		}
		if w.block = n.Block() != ""; w.block {
			w.cast = castElements(n, args, mesh)
		}
	case ir.OpAttention:
		w.scoresOf(results[1], keysOf(n, results[1][len(results[1])-1]))
	case ir.OpAttentionGrad:
		w.scoresOf(args[3], keysOf(n, args[3][len(args[3])-1]))
	case ir.OpAttentionKV:
		w.scoresOf(results[1], keysOf(n, args[1][1]))
	case ir.OpAttentionKVGrad:
		w.scoresOf(args[4], keysOf(n, args[2][1]))
	}
	w.backward = n.Op == ir.OpAttentionGrad || n.Op == ir.OpAttentionKVGrad
	return w
}

// castElements is how many elements of the operands are cast for an 8-bit product. A weight is the same in all
// micro-batches, so it is cast once per step.
func castElements(n *ir.Node, args [][]int, mesh ir.Mesh) float64 {
	mb, elements := mesh.Axis(partition.AxisMB), 0.0
	for i, v := range n.Args {
		uses := 1.0
		if mb >= 0 && v.Spec[mb].Kind != ir.Shard {
			uses = float64(mesh.Axes[mb].Size)
		}
		elements += float64(ir.Elems(args[i])) / uses
	}
	return elements
}

// keysOf is how many keys attention has, of which a row of the batch has some: all of a sequence, which may be several rows.
func keysOf(n *ir.Node, row int) int { return max(1, ir.SequenceParts(n.Attr)) * row }

// scoresOf sets how many scores attention has without a mask, from the shape [B,G...,NH,T] of its log-sum-exp and the
// number of keys.
func (w *work) scoresOf(lse []int, keys int) {
	w.keys, w.scores = float64(keys), float64(keys)
	for _, n := range lse {
		w.scores *= float64(n)
	}
}

// terms is the time to add the terms of a fixed-point sum, one per sequence. Each term is written and read as f32,
// and the sum is read and written.
func (m *Program) terms(n *ir.Node, mesh ir.Mesh, at ir.Coord) Picoseconds {
	if ir.Frac(n.Attr) == 0 {
		return 0
	}
	local := mesh.Local(n.Args[0].Type.Shape, n.Args[0].Spec, at).Local
	var bytes int64
	for _, r := range n.Results {
		if r.Type.DType == ir.Q64 {
			bytes += 3 * localBytes(r, mesh, at) * int64(local[0])
		}
	}
	if n.Op == ir.OpEmbeddingGrad { // it adds rows of its operand to some of its result
		bytes = 5 * localBytes(n.Args[1], mesh, at)
	}
	return picoseconds(float64(bytes) / m.memory)
}

func localBytes(v *ir.Value, mesh ir.Mesh, at ir.Coord) int64 {
	return mesh.LocalElems(v.Type.Shape, v.Spec, at) * v.Type.DType.Size()
}

// Canonical returns a function that maps a position of the mesh to the first position at which every instruction of
// the program takes the same time. Two coordinates on a device axis are alike if every size is cut into equal parts
// there; two micro-batches if they have the same size.
func Canonical(prog *codegen.Program) func(ir.Coord) ir.Coord {
	mesh := prog.Mesh
	same := make([][]int, len(mesh.Axes)) // by axis and coordinate
	mb := mesh.Axis(partition.AxisMB)
	batches := map[int]bool{}
	for axis, a := range mesh.Axes {
		sizes := map[int]bool{}
		for _, n := range prog.Graph.Nodes {
			for _, r := range n.Results {
				if r.Spec[axis].Kind == ir.Shard {
					d := int(r.Spec[axis].Dim)
					for _, size := range outerParts(mesh, r, axis) {
						sizes[size] = true
					}
					if mb >= 0 && r.Spec[mb] == ir.ShardOn(d) {
						batches[r.Type.Shape[d]] = true
					}
				}
			}
		}
		if a.Time {
			continue
		}
		same[axis] = make([]int, a.Size)
		for i := range a.Size {
			same[axis][i] = i
			for j := range i {
				alike := true
				for size := range sizes {
					alike = alike && a.Cut(size, i).Len == a.Cut(size, j).Len
				}
				if alike {
					same[axis][i] = same[axis][j]
					break
				}
			}
		}
	}
	var sizes []int
	for s := range batches {
		sizes = append(sizes, s)
	}
	slices.Sort(sizes)
	return func(c ir.Coord) ir.Coord {
		for axis := range mesh.Axes {
			if same[axis] != nil {
				c[axis] = same[axis][c[axis]]
			}
		}
		if mb < 0 {
			return c
		}
		// Every micro-batch but the last has Chunk sequences.
		for _, s := range sizes {
			for axis, a := range mesh.Axes {
				if partition.FollowsBatch(a) && !a.Time {
					s = a.Cut(s, c[axis]).Len
				}
			}
			if mesh.Axes[mb].Cut(s, c[mb]).Len != mesh.Axes[mb].Cut(s, 0).Len {
				return c
			}
		}
		c[mb] = 0
		return c
	}
}

// outerParts returns the sizes that an axis cuts of a value: its whole dimension, or the parts that outer axes leave
// of it, of which those without shares leave two sizes at most.
func outerParts(mesh ir.Mesh, v *ir.Value, axis int) []int {
	d := int(v.Spec[axis].Dim)
	sizes := []int{v.Type.Shape[d]}
	for _, outer := range v.Spec.ShardAxes(d) {
		a := mesh.Axes[outer]
		if outer >= axis || a.Time {
			continue
		}
		var parts []int
		for _, size := range sizes {
			for i := range a.Size {
				if a.Shares != nil || i == 0 || i == a.Size-1 {
					parts = append(parts, a.Cut(size, i).Len)
				}
			}
		}
		slices.Sort(parts)
		sizes = slices.Compact(parts)
	}
	return sizes
}
