package cost

import (
	"fmt"
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// Kind says which part of a [Breakdown] an instruction's time belongs to.
type Kind uint8

// The kinds.
const (
	Compute Kind = iota
	Communication
	Optimizer
)

// Program prices the instructions of a program. Its figures do not depend on the
// size of micro-batches, so one Program serves a plan at every size: see
// [Program.Instr].
type Program struct {
	*Model
	plan   *partition.Plan
	groups [][]Group // by position in the pipeline and mesh axis: the slowest of the axis
	sigs   map[*ir.Node]*ir.Signature
	cross  map[[2]int]bool  // between two stages
	works  map[workKey]work // of a program that is priced again: see [Program.On]
}

// workKey is all that the work of a kernel depends on in a program.
type workKey struct {
	node  *ir.Node
	batch ir.Axis // of the mesh, that of micro-batches
	at    ir.Coord
	more  bool // it adds to its results
}

// NewProgram prepares to price programs made by a plan.
func NewProgram(c *Cluster, p *partition.Plan, mesh ir.Mesh) *Program {
	m := &Program{Model: NewModel(c, p.RuntimeNGPUs), plan: p, sigs: map[*ir.Node]*ir.Signature{}, cross: map[[2]int]bool{}}
	for s := range p.PP() {
		var groups []Group
		for axis := range mesh.Axes {
			groups = append(groups, m.group(mesh, s, axis))
		}
		m.groups = append(m.groups, groups)
	}
	return m
}

// On returns the same program's prices on a cluster with other figures.
func (m *Program) On(c *Cluster) *Program {
	if !m.Nodes(c) {
		panic("BUG: nodes of another size have other groups")
	}
	if m.works == nil {
		m.works = map[workKey]work{}
	}
	other := *m
	other.Model = NewModel(c, m.plan.RuntimeNGPUs)
	return &other
}

// Nodes reports whether a cluster's nodes are those of the program's.
func (m *Program) Nodes(c *Cluster) bool {
	return c.DevicesPerNode == m.cluster.DevicesPerNode && c.Device.Shared == m.cluster.Device.Shared
}

// group returns the most spread of the groups over an axis. All ranks of a stage
// do the same work, and a group that waits for a slower one later is no faster;
// where a plan does not fit the nodes this is an upper bound.
func (m *Program) group(mesh ir.Mesh, stage, axis int) Group {
	worst := Group{Size: 1, Nodes: 1, PerNode: 1}
	if mesh.Axes[axis].Time {
		return worst
	}
	for d := range mesh.Devices() {
		c := mesh.Coord(d)
		if c[axis] != 0 {
			continue
		}
		ranks := map[int]int{} // by node
		most := 0
		for _, e := range mesh.Group(c, axis) {
			node := m.cluster.node(m.plan.WorldRank(stage, e))
			ranks[node]++
			most = max(most, ranks[node])
		}
		g := Group{Size: mesh.Axes[axis].Size, Nodes: len(ranks), PerNode: most}
		if g.Nodes > worst.Nodes || worst.Size == 1 || g.Nodes == worst.Nodes && g.PerNode > worst.PerNode {
			worst = g
		}
	}
	return worst
}

// crossing reports whether any transfer between two stages leaves its node.
func (m *Program) crossing(from, to int) bool {
	key := [2]int{from, to}
	crossing, known := m.cross[key]
	if !known {
		devices := m.plan.DataParallel() * m.plan.ContextParallel() * m.plan.TP
		for d := 0; d < devices && !crossing; d++ {
			crossing = m.cluster.node(m.plan.WorldRank(from, d)) != m.cluster.node(m.plan.WorldRank(to, d))
		}
		m.cross[key] = crossing
	}
	return crossing
}

// Instr returns the time of an instruction at a position of a mesh, and what
// kind of time it is. The mesh is the program's, or one that differs from it in
// the micro-batch axis.
func (m *Program) Instr(in *codegen.Instr, mesh ir.Mesh, at ir.Coord) (Picoseconds, Kind) {
	n := in.Node
	kind := Compute
	if n.Phase == ir.Update {
		kind = Optimizer
	}
	switch n.Op {
	case ir.OpInput, ir.OpSlice, ir.OpFold, ir.OpUnfold, ir.OpToPartial:
		return m.kernel(&work{bytes: 2 * localBytes(n.Results[0], mesh, at)}), kind // read and written
	case ir.OpAccumulate:
		return m.kernel(&work{bytes: 3 * localBytes(n.Results[0], mesh, at)}), kind
	case ir.OpSend:
		return m.send(n, mesh, at), Communication
	case ir.OpFetch, ir.OpStash:
		return m.HostCopy(localBytes(n.Results[0], mesh, at)), Communication
	case ir.OpRecv:
		return 0, Communication // the sender writes it where it belongs
	}
	if n.Op.Class() == ir.Comm {
		axis := mesh.Axis(n.Attr.(ir.CommAttr).Axis)
		position, _ := m.plan.Position(n.Stage)
		t := m.Collective(n.Op, collectiveBytes(n, mesh, at), m.groups[position][axis])
		if m.software.AsyncTP && mesh.Axes[axis].Name == partition.AxisTP {
			t = m.beside(n, t, mesh, at)
		}
		return t, Communication
	}
	return m.compute(in, mesh, at, len(n.Args)), kind
}

// beside is what is left of the time of a collective over tensor-parallel ranks in
// the backward pass when it runs beside a product that does not need its result
// (Korthikanti et al. 2022, section 4.2.2, as in Megatron-LM): the sum of the
// gradient of an input beside the product for that of the weight, which is as long
// as its own; a gather of what the forward pass made beside the product before. In
// chunks also what a product needs or makes runs beside it, but for the first.
func (m *Program) beside(n *ir.Node, t Picoseconds, mesh ir.Mesh, at ir.Coord) Picoseconds {
	def := n.Args[0].Def
	isProduct := def.Op == ir.OpMatMul
	product := func() Picoseconds {
		return m.compute(&codegen.Instr{Node: def, Accum: make([]codegen.Accum, len(def.Results))}, mesh, at, len(def.Args))
	}
	hidden := Picoseconds(0)
	switch {
	case n.Phase == ir.Backward && n.Op == ir.OpAllGather && def.Phase == ir.Forward:
		hidden = t
	case n.Phase == ir.Backward && n.Op != ir.OpAllGather && isProduct && def.Attr.(ir.MatMulAttr).Form == ir.MatMulNN:
		hidden = product()
	case m.software.ChunkedTP && n.Op == ir.OpReduceScatter && isProduct:
		hidden = min(t, product()) * (tpChunks - 1) / tpChunks
	case m.software.ChunkedTP && n.Op == ir.OpAllGather && n.Block() != "":
		hidden = t * (tpChunks - 1) / tpChunks
	}
	return max(t-hidden, picoseconds(m.collective))
}

// tpChunks is in how many parts a product and its collective are pipelined
// (Transformer Engine's communication overlap).
const tpChunks = 4

// send is the time of a transfer to another stage, and with [Software.Scatter] of
// gathering there what the ranks of a tensor-parallel group sent in parts.
func (m *Program) send(n *ir.Node, mesh ir.Mesh, at ir.Coord) Picoseconds {
	to := n.Attr.(ir.P2PAttr).Stage
	bytes, crossing := localBytes(n.Results[0], mesh, at), m.crossing(n.Stage, to)
	tp := mesh.Axis(partition.AxisTP)
	if m.software.AsyncSend && m.plan.Chunks() > 1 {
		return m.Transfer(0, crossing)
	}
	if !crossing || !m.software.Scatter || tp < 0 || n.Results[0].Spec[tp].Kind == ir.Shard {
		return m.Transfer(bytes, crossing)
	}
	position, _ := m.plan.Position(to)
	g := m.groups[position][tp]
	return m.Transfer(ceil(bytes, int64(g.Size)), true) + m.Collective(ir.OpAllGather, bytes, g)
}

// Bucket returns the time of collectives of one kind that are made together: that
// of one of as many bytes.
func (m *Program) Bucket(instrs []codegen.Instr, mesh ir.Mesh, at ir.Coord) Picoseconds {
	n := instrs[0].Node
	var bytes int64
	for i := range instrs {
		bytes += collectiveBytes(instrs[i].Node, mesh, at)
	}
	position, _ := m.plan.Position(n.Stage)
	return m.Collective(n.Op, bytes, m.groups[position][mesh.Axis(n.Attr.(ir.CommAttr).Axis)])
}

// collectiveBytes is the size of the tensor of a collective. See [Model.Collective].
func collectiveBytes(n *ir.Node, mesh ir.Mesh, at ir.Coord) int64 {
	at[mesh.Axis(n.Attr.(ir.CommAttr).Axis)] = 0 // the group waits for its largest part
	if n.Op == ir.OpReduceScatter || n.Op == ir.OpAllToAll {
		return localBytes(n.Args[0], mesh, at)
	}
	return localBytes(n.Results[0], mesh, at)
}

// AddN returns the time of an add_n as if it had the given number of operands.
func (m *Program) AddN(in *codegen.Instr, mesh ir.Mesh, at ir.Coord, operands int) Picoseconds {
	if in.Node.Op != ir.OpAddN {
		panic(fmt.Sprintf("BUG: %s is %s, not add_n", in.Node.Name, in.Node.Op))
	}
	return m.compute(in, mesh, at, operands)
}

// Share returns the time of a compute instruction that does one part in a number
// of its work and traffic.
func (m *Program) Share(in *codegen.Instr, mesh ir.Mesh, at ir.Coord, parts int) Picoseconds {
	w := m.work(in, mesh, at)
	w.parts = float64(parts)
	return m.kernel(&w)
}

// Over returns the time of a collective over a mesh axis of a stage: see
// [Model.Collective].
func (m *Program) Over(op ir.Op, bytes int64, stage, axis int) Picoseconds {
	position, _ := m.plan.Position(stage)
	return m.Collective(op, bytes, m.groups[position][axis])
}

// compute prices a kernel at its local shapes. operands differs from the node's
// for an add_n only.
func (m *Program) compute(in *codegen.Instr, mesh ir.Mesh, at ir.Coord, operands int) Picoseconds {
	n := in.Node
	w := m.work(in, mesh, at)
	if n.Op == ir.OpAddN && operands != len(n.Args) {
		one := localBytes(n.Results[0], mesh, at)
		w.bytes += int64(operands-len(n.Args)) * one
		w.flops = w.flops / float64(len(n.Args)) * float64(operands)
	}
	t := m.kernel(&w) + m.terms(n, mesh, at)
	if m.software.WholeBlock {
		t += m.unread(n, mesh, at)
	}
	return t
}

// unread is the time of what recomputation does in vain after an activation: the
// last product of the block and its sum over tensor-parallel ranks, which no
// gradient needs. The product has as many operations as that for the gradient of
// its input, which the gradient of the activation reads.
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
	if tp < 0 || mesh.Axes[tp].Size == 1 {
		return t
	}
	position, _ := m.plan.Position(n.Stage)
	op := ir.OpAllReduce
	if m.plan.SequenceParallel {
		op = ir.OpReduceScatter
	}
	return t + m.Collective(op, localBytes(product.Args[0], mesh, at), m.groups[position][tp])
}

// work returns what a kernel does at its local shapes, if it is one per op.
func (m *Program) work(in *codegen.Instr, mesh ir.Mesh, at ir.Coord) work {
	if m.works == nil {
		return m.workOf(in, mesh, at)
	}
	key := workKey{node: in.Node, at: at}
	if mb := mesh.Axis(partition.AxisMB); mb >= 0 {
		key.batch = mesh.Axes[mb]
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
	sig, ok := m.sigs[n]
	if !ok {
		sig = ir.SignatureOf(n)
		m.sigs[n] = sig
	}
	w := work{node: n, class: classOf(n.Op), dtype: n.Args[0].Type.DType, host: n.Phase != ir.Update}
	args, results := make([][]int, len(n.Args)), make([][]int, len(n.Results))
	var last, first int64 // elements of the last operand and the first result
	for i, a := range n.Args {
		s := mesh.Local(a.Type.Shape, a.Spec, at)
		args[i], last = s.Local, s.Elems()
		w.bytes += last * a.Type.DType.Size()
	}
	for i, r := range n.Results {
		s := mesh.Local(r.Type.Shape, r.Spec, at)
		results[i] = s.Local
		size := s.Elems() * r.Type.DType.Size()
		w.bytes += size
		if i == 0 {
			first = s.Elems()
		}
		if in.Accum[i] != codegen.Overwrite {
			w.bytes += size // read before it is added to
		}
	}
	w.flops = sig.FLOPs(args, results)
	switch n.Op {
	case ir.OpEmbedding: // it reads the rows it picks, not the table
		w.bytes = 2 * localBytes(n.Results[0], mesh, at)
	case ir.OpMatMul:
		if terms := w.flops / 2 / float64(first); first > 0 && terms > 0 {
			w.cols = int64(float64(last) / terms)
			w.rows = first / max(w.cols, 1)
		}
		w.block = n.Block() != ""
	case ir.OpAttention, ir.OpAttentionKV:
		w.scores, w.keys = scoresOf(args, results[1])
	case ir.OpAttentionGrad:
		w.scores, w.keys = scoresOf(args, args[3])
		w.backward = true
	case ir.OpAttentionKVGrad:
		w.scores, w.keys = scoresOf(args, args[4])
		w.backward = true
	}
	return w
}

// scoresOf returns how many scores attention has without a mask, and of how many
// keys, from the shape [B,NH,T] of its log-sum-exp and, in context parallelism, that
// of keys and values [B,S,2,NH,D].
func scoresOf(args [][]int, lse []int) (scores, keys float64) {
	keys = float64(lse[2])
	for _, a := range args {
		if len(a) == 5 && a[2] == 2 {
			keys = float64(a[1])
		}
	}
	return float64(lse[0]) * float64(lse[1]) * float64(lse[2]) * keys, keys
}

// terms is the time to add the terms of a fixed-point sum, one a sequence: each is
// written and read as f32, the sum read and written.
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
	return mesh.Local(v.Type.Shape, v.Spec, at).Elems() * v.Type.DType.Size()
}

// Canonical returns, for every position of the device axes of a mesh, the first
// position at which every instruction of the program takes the same time: on
// each axis, sizes that are cut alike. Micro-batches of one size are alike too.
func Canonical(prog *codegen.Program) func(ir.Coord) ir.Coord {
	mesh := prog.Mesh
	same := make([][]int, len(mesh.Axes)) // by axis and position
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

// outerParts returns the sizes of what an axis cuts of a value: its dimension, or
// the largest and smallest part that the axes outside leave of it.
func outerParts(mesh ir.Mesh, v *ir.Value, axis int) []int {
	d := int(v.Spec[axis].Dim)
	large, small := v.Type.Shape[d], v.Type.Shape[d]
	for _, outer := range v.Spec.ShardAxes(d) {
		if a := mesh.Axes[outer]; outer < axis && !a.Time {
			large, small = a.Cut(large, 0).Len, a.Cut(small, a.Size-1).Len
		}
	}
	return []int{large, small}
}

// SameGroups reports whether collectives take the same time in two stages.
func (m *Program) SameGroups(a, b int) bool { return slices.Equal(m.groups[a], m.groups[b]) }
