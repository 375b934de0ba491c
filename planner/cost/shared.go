package cost

import (
	"fmt"
	"slices"

	"github.com/goccy/go-yaml/ast"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/config/strictyaml"
	"github.com/autopar/autopar/ir"
)

// This file prices what is special about a shared machine, whose ranks run on the same processors: collectives
// through shared memory, kernels that several cores divide, and the packing of matrix products. crowd.go adds how
// ranks that wait leave their cores to the others.

// OnePass is the algorithm of collectives between ranks that share memory. The last rank to arrive computes the
// results for all, reading every operand once and writing every result once, and the ranks that wait for it help. The
// bandwidth of IntraNode is then the bytes/s read and written by all cores, and its latency that of a meeting of
// ranks.
const OnePass = "one_pass"

// inOnePass is the time of a collective by [OnePass]: a rank's share of all bytes read and written, since all groups
// are at it together, and what the rank loses by the meeting.
func (m *Model) inOnePass(op ir.Op, bytes, inPlace int64, g Group) Picoseconds {
	n := float64(g.Size)
	return picoseconds(passed(op, bytes, inPlace, n)/m.together[0] + m.meeting(n) + m.launch)
}

// passed returns how many bytes of memory a collective by [OnePass] moves for each of n ranks. A sum is written over
// one of its terms. A result that is written elsewhere costs one more read: the processor reads each cache line
// before it writes to it, as it cannot know that the whole line will be overwritten. Bytes that are already in place
// are not moved.
func passed(op ir.Op, bytes, inPlace int64, n float64) float64 {
	switch op {
	case ir.OpAllReduce:
		return float64(2 * bytes)
	case ir.OpReduceScatter:
		return float64(bytes) + float64(2*bytes)/n
	}
	return float64(3 * (bytes - inPlace))
}

// meeting is the time that each of n ranks loses when they meet. If there are more ranks than cores they arrive one
// after the other, each when an earlier one has left its core to it.
func (m *Model) meeting(n float64) float64 {
	return m.rungs[0].latency + m.turn*max(0, n/float64(m.cluster.Device.Cores)-1)
}

// share sets the figures that only a shared machine has.
func (m *Model) share(c *Cluster) {
	m.onePass, m.turn = c.Collectives == OnePass, c.Device.Turn
	m.pack = c.Device.Pack * max(1, m.ranksPerCore)
	if m.ranksPerCore >= 1 {
		return
	}
	m.alone, m.fork = 1/m.ranksPerCore, c.Device.Fork
	// Each of a rank's cores computes its share of a kernel, and has written the same share of the kernel's operands
	// itself.
	if m.cache.Remote > 0 {
		m.remote = m.ranksPerCore * (1 - m.ranksPerCore) / m.cache.Remote
	}
}

// across reports whether the cores of a rank exchange data in a kernel, that is, whether each reads what all of them
// wrote in earlier kernels, or writes what all of them have read. Most kernels of a pass do not: they are divided by
// tokens, and each core takes those whose values are in its own cache. But gradients of parameters are sums over all
// tokens. The update writes parameters that all cores have read. And the additions of the backward pass write
// activation gradients that all cores have read for such sums.
func across(n *ir.Node) bool {
	switch n.Op {
	case ir.OpMatMul:
		return n.Attr.(ir.MatMulAttr).Form == ir.MatMulTN
	case ir.OpAdd, ir.OpSumTo, ir.OpEmbeddingGrad:
		return n.Phase != ir.Forward
	}
	return n.Phase == ir.Update
}

// packed returns how many elements of the left-hand and of the right-hand matrix of a product the busiest core packs
// if the given number of cores divide the product.
//
// If they divide its rows, each packs its rows of the left-hand matrix and the whole right-hand one. If they divide
// its columns, each packs its columns of the right-hand matrix, and all rows of the left-hand one; the rows beyond
// its share count twice, as they lie in the caches of other cores. The smaller number counts. Products that sum over
// all tokens (across > 0) are divided by terms, so each core packs its terms of both matrices.
//
// More rows, columns or terms are never less to pack, and part of a product never has more to pack than the product.
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

// packing is the time in which a core packs its part of a product that the given number of cores divide. A right-hand
// matrix that does not fit into the cache of a core is read from memory, and partly written there. The left-hand
// matrix is prefetched.
func (m *Model) packing(w *work, cores float64) float64 {
	if m.pack == 0 || w.class != product {
		return 0
	}
	left, right := packed(w.flops, float64(w.rows), float64(w.cols), float64(w.across), cores)
	t := float64(m.pack * (left + right))
	if own := min(m.ranksPerCore, 1); m.cache.Memory > 0 && !m.near && 2*w.flops > own*float64(m.cache.Memory*w.rows) {
		t += packedBytes * right / float64(m.memory*own)
	}
	return t
}

// packedBytes is how many bytes packing moves per element: it is read, and written elsewhere.
const packedBytes = 8

// divided is the time of a kernel that takes t on all cores of a rank, not counting packing. It is the smaller of the
// time on all cores, with what is lost by dividing the kernel, and the time on one core.
//
// Another core's cache holds at most its share of the whole, which bounds the bytes that come from there. The bound
// does not apply to products: a core that sums over all tokens packs all of them for itself, however many they are.
func (m *Model) divided(w *work, t float64) float64 {
	one := m.packing(w, 1)
	if m.alone == 0 {
		return t + one
	}
	bytes := float64(w.across)
	if w.class != product {
		bytes = min(bytes, float64(m.cache.Memory)*m.ranksPerCore)
	}
	return min(t+m.packing(w, m.alone)+m.fork+float64(bytes*m.remote), float64(t*m.alone)+one)
}

// reached is the share of the peak rate that a kernel reaches: the one that the cluster states for its op, or else
// the given one.
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

// validateShared refuses figures that only a shared machine may state.
func (c *Cluster) validateShared() error {
	bad := func(key, format string, args ...any) error { return &FieldError{key, fmt.Sprintf(format, args...)} }
	switch {
	case c.Collectives != "" && c.Collectives != OnePass:
		return bad("collectives", "is %s; there is %s, and rings and trees where nothing is said", c.Collectives, OnePass)
	case c.Device.Shared && c.Device.Efficiency.Beside != 0:
		return bad("device.efficiency.beside", "has no meaning where ranks share processors, which a collective takes: device.shared is true")
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

// KernelOps lists the names of the ops for which device.kernels may state a rate.
func KernelOps() []string {
	var names []string
	for _, op := range ir.Ops() {
		if op.Class() != ir.Comm && op != ir.OpMatMul {
			names = append(names, op.String())
		}
	}
	return names
}

// kernels reads device.kernels, which maps names of ops to shares of the peak rate.
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
