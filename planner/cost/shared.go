package cost

import (
	"fmt"
	"slices"

	"github.com/goccy/go-yaml/ast"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/config/strictyaml"
	"github.com/autopar/autopar/ir"
)

// OnePass is the algorithm of collectives between ranks that share memory: the last to
// arrive makes what all end with, reading every operand once and writing every result
// once, and those that wait for it help. Its link's bandwidth is of bytes read and
// written by all cores, and its latency that of ranks that meet.
const OnePass = "one_pass"

// inOnePass is the time of a collective by [OnePass]: what a rank loses to a meeting, and its
// share of what all read and write, as all groups are at it together.
func (m *Model) inOnePass(op ir.Op, bytes, there int64, g Group) Picoseconds {
	n := float64(g.Size)
	return picoseconds(passed(op, bytes, there, n)/m.together[0] + m.meeting(n) + m.launch)
}

// passed is how many bytes of memory a collective by [OnePass] moves for each of n ranks. Sums
// take the place of their terms; but what is written to a place of its own a processor reads
// before, line by line, as it knows of no line that all of it will be new. What is there stays.
func passed(op ir.Op, bytes, there int64, n float64) float64 {
	switch op {
	case ir.OpAllReduce:
		return float64(2 * bytes)
	case ir.OpReduceScatter:
		return float64(bytes) + float64(2*bytes)/n
	}
	return float64(3 * (bytes - there))
}

// meeting is the time that each of n ranks loses where they meet. More of them than there
// are cores come one after the other, each when one before has left its core to it.
func (m *Model) meeting(n float64) float64 {
	return m.rungs[0].latency + m.turn*max(0, n/float64(m.cluster.Device.Cores)-1)
}

// share takes the figures that only a shared machine has.
func (m *Model) share(c *Cluster) {
	m.onePass, m.turn = c.Collectives == OnePass, c.Device.Turn
	m.pack = c.Device.Pack * max(1, m.crowd)
	if m.crowd >= 1 {
		return
	}
	m.alone, m.fork = 1/m.crowd, c.Device.Fork
	// Each of a rank's cores does its share of a kernel, and of the operands of that it has
	// written its share itself.
	if m.cache.Remote > 0 {
		m.remote = m.crowd * (1 - m.crowd) / m.cache.Remote
	}
}

// across reports whether the parts of a kernel read what all parts of those before have
// written, or write what they have read. Kernels of a pass divide what they do by tokens,
// each part for those whose values it has near. But gradients of parameters are sums over
// all tokens, what updates parameters writes what all have read, and so does what adds up
// the gradients that those sums were made of.
func across(n *ir.Node) bool {
	switch n.Op {
	case ir.OpMatMul:
		return n.Attr.(ir.MatMulAttr).Form == ir.MatMulTN
	case ir.OpAdd, ir.OpSumTo, ir.OpEmbeddingGrad:
		return n.Phase != ir.Forward
	}
	return n.Phase == ir.Update
}

// packed is how many numbers of both matrices of a product the core packs that packs most
// of so many: where cores divide the rows, its part of the left-hand matrix and all of the
// right-hand one, or, where they divide the columns, its part of that. Then each also reads
// and packs rows that otherwise another would, and those count twice, since they lie near
// that one. Of sums over all tokens each core has some of the terms. More rows, columns or
// terms are never less to pack, and a part of a product no less than its part.
func packed(flops, rows, cols, across, cores float64) (left, right float64) {
	if rows == 0 || cols == 0 {
		return 0, 0
	}
	terms := flops / 2 / rows / cols
	left = terms * rows / cores
	if across > 0 {
		return left, terms * cols / cores
	}
	return left, terms * min(cols, cols/cores+float64(2*rows*(1-1/cores)))
}

// packing is the time in which a core packs its part of a product that so many divide. A
// right-hand matrix that no cache of a core holds comes from memory, and goes there in part:
// the left-hand one is fetched ahead.
func (m *Model) packing(w *work, cores float64) float64 {
	if m.pack == 0 || w.class != product {
		return 0
	}
	left, right := packed(w.flops, float64(w.rows), float64(w.cols), float64(w.across), cores)
	t := float64(m.pack * (left + right))
	if own := min(m.crowd, 1); m.cache.Memory > 0 && !m.near && 2*w.flops > own*float64(m.cache.Memory*w.rows) {
		t += packedBytes * right / float64(m.memory*own)
	}
	return t
}

// packedBytes is how many bytes packing moves for a number: it is read, and written elsewhere.
const packedBytes = 8

// divided is the time of a kernel that takes t on all cores of a rank, beside what each
// packs: what they lose by dividing it, or one of them takes alone. Of what lies near other cores each holds its
// share of the caches at most. But a core that sums products over all tokens packs them
// all for itself, however many.
func (m *Model) divided(w *work, t float64) float64 {
	one := m.packing(w, 1)
	if m.alone == 0 {
		return t + one
	}
	bytes := float64(w.across)
	if w.class != product {
		bytes = min(bytes, float64(m.cache.Memory)*m.crowd)
	}
	return min(t+m.packing(w, m.alone)+m.fork+float64(bytes*m.remote), float64(t*m.alone)+one)
}

// reached is the share of the peak rate that a kernel reaches, by its op where that is
// known.
func (m *Model) reached(w *work, otherwise float64) float64 {
	op := w.copy
	if w.node != nil {
		op = w.node.Op
	}
	if int(op) < len(m.kernels) && m.kernels[op] > 0 {
		return m.kernels[op]
	}
	return otherwise
}

// validateShared checks what only a shared machine may state.
func (c *Cluster) validateShared() error {
	bad := func(key, format string, args ...any) error { return &FieldError{key, fmt.Sprintf(format, args...)} }
	switch {
	case c.Collectives != "" && c.Collectives != OnePass:
		return bad("collectives", "is %s; there is %s, and rings and trees where nothing is said", c.Collectives, OnePass)
	case c.Device.Shared:
		return nil
	case c.Collectives != "":
		return bad("collectives", "is %s, of ranks that share memory: device.shared is false", c.Collectives)
	case len(c.Device.Kernels) > 0:
		return bad("device.kernels", "are of a shared machine: device.shared is false")
	}
	d, e := &c.Device, &c.Device.Efficiency
	for key, figure := range map[string]float64{
		"device.turn": d.Turn, "device.fork": d.Fork, "device.pack": d.Pack, "device.efficiency.threads": e.Threads,
		"device.efficiency.attention_half_keys": e.AttentionHalf, "device.efficiency.attention_grad_half_keys": e.AttentionGradHalf,
	} {
		if figure != 0 {
			return bad(key, "has no meaning where ranks share no cores: device.shared is false")
		}
	}
	return nil
}

// KernelOps lists the ops of which device.kernels may state a rate.
func KernelOps() []string {
	var names []string
	for _, op := range ir.Ops() {
		if op.Class() != ir.Comm && op != ir.OpMatMul {
			names = append(names, op.String())
		}
	}
	return names
}

// kernels reads device.kernels, a share of the peak by the name of an op.
func (d *decoder) kernels(node ast.Node) error {
	entries, err := strictyaml.Entries(node, d.file, "device.kernels")
	if err != nil {
		return err
	}
	d.c.Device.Kernels = map[string]float64{}
	for _, e := range entries {
		key := "device.kernels." + e.Name
		d.at[key] = e.At
		if all := KernelOps(); !slices.Contains(all, e.Name) {
			return e.At.Refuse(key, "is no op of which a rate can be stated; did you mean %s?", config.Nearest(e.Name, all))
		}
		value, ok := strictyaml.ScalarOf(e.Value)
		if ok {
			d.c.Device.Kernels[e.Name], ok = value.Float()
		}
		if !ok {
			return e.At.Refuse(key, "wants a number, got %s", strictyaml.Describe(e.Value))
		}
	}
	return nil
}
