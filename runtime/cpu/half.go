package cpu

import (
	"unsafe"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu/kernel"
)

// Two-byte types are stored as such and computed in float32. A launch widens its operands into
// scratch memory, runs the float32 kernel there, and rounds the results to nearest even into the
// arena. So every op has one kernel, all sums inside it are float32, and a result is rounded once.

// scratchBase is the offset that stands for the first byte of scratch memory, far beyond any arena.
const scratchBase = int64(1) << 60

// formatOf returns the kernels' name of a two-byte type.
func formatOf(d ir.DType) kernel.Format {
	if d == ir.F16 {
		return kernel.F16
	}
	return kernel.BF16
}

// halves returns the elements of a two-byte tensor.
func (d *Device) halves(t runtime.Tensor) []uint16 {
	n := t.Slab.Elems()
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*uint16)(unsafe.Pointer(&d.arenas[t.Space][t.Offset/4])), n)
}

// isHalf reports whether any operand or result is of a two-byte type.
func isHalf(k *runtime.Kernel) bool {
	for i := range k.Args {
		if k.Args[i].DType.Half() {
			return true
		}
	}
	for i := range k.Results {
		if k.Results[i].DType.Half() {
			return true
		}
	}
	return false
}

// launchHalf runs a kernel with two-byte operands or results.
func (d *Device) launchHalf(k *runtime.Kernel, run launch) error {
	switch k.Node.Op {
	case ir.OpCast:
		if !k.Accum[0] && k.Args[0].Offset != k.Results[0].Offset {
			d.convert(k.Results[0], k.Args[0])
			return nil
		}
	case ir.OpFetch, ir.OpStash: // bits, not numbers
		return run(d, k)
	}
	w := &d.wide
	w.Node, w.Accum, w.Position = k.Node, k.Accum, k.Position
	w.Args = append(w.Args[:0], k.Args...)
	w.Results = append(w.Results[:0], k.Results...)
	end := scratchBase
	place := func(t *runtime.Tensor) {
		t.DType, t.Offset = ir.F32, end
		end += (t.Bytes() + align - 1) / align * align
	}
	for i := range w.Args {
		if w.Args[i].DType.Half() {
			place(&w.Args[i])
		}
	}
	for i := range w.Results {
		r := &w.Results[i]
		if !r.DType.Half() {
			continue
		}
		// A result at the place of an operand has the same place as its copy. An empty operand has no place.
		at := -1
		for j := range k.Args {
			if k.Args[j].Offset == r.Offset && k.Args[j].DType == r.DType && k.Args[j].Bytes() > 0 {
				at = j
			}
		}
		if at >= 0 {
			r.DType, r.Offset = ir.F32, w.Args[at].Offset
		} else {
			place(r)
		}
	}
	if n := int((end - scratchBase) / 4); n > len(d.scratch) {
		d.scratch = make([]float32, n)
	}
	for i := range k.Args {
		if k.Args[i].DType.Half() {
			kernel.Widen(d.pool, formatOf(k.Args[i].DType), d.floats(w.Args[i]), d.halves(k.Args[i]))
		}
	}
	for i := range k.Results {
		if k.Accum[i] && k.Results[i].DType.Half() {
			kernel.Widen(d.pool, formatOf(k.Results[i].DType), d.floats(w.Results[i]), d.halves(k.Results[i]))
		}
	}
	if err := run(d, w); err != nil {
		return err
	}
	for i := range k.Results {
		if k.Results[i].DType.Half() {
			kernel.Narrow(d.pool, formatOf(k.Results[i].DType), d.halves(k.Results[i]), d.floats(w.Results[i]))
		}
	}
	return nil
}

// reduceHalf is reduceFixed for two-byte types: they are added in float32, and the sum is rounded
// once.
func (d *Device) reduceHalf(c *runtime.Collective, dst []uint16, from int) {
	format := formatOf(c.Members[c.Position].In.DType)
	for len(dst) > 0 {
		n := min(len(dst), blockElems)
		block := d.floatBlock()
		acc, term := block[:n], block[blockElems:][:n]
		for i, m := range c.Members {
			other := d.backend.devices[m.Rank]
			in := other.halves(m.In)[from : from+n]
			if i == 0 {
				kernel.Widen(d.pool, format, acc, in)
				continue
			}
			kernel.Widen(d.pool, format, term, in)
			if c.Attr.Reduce == ir.Max {
				kernel.MaxInto(d.pool, acc, term)
			} else {
				kernel.AddInto(d.pool, acc, term)
			}
		}
		kernel.Narrow(d.pool, format, dst[:n], acc)
		dst, from = dst[n:], from+n
	}
}

// floatBlock returns the block of a reduction as 2*blockElems floats.
func (d *Device) floatBlock() []float32 {
	if d.block == nil {
		d.block = make([]int64, blockElems)
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(d.block))), 2*blockElems)
}

// convert copies a tensor to another place and type.
func (d *Device) convert(to, from runtime.Tensor) {
	switch {
	case to.DType == from.DType:
		copy(d.words(to), d.words(from))
	case !from.DType.Half():
		kernel.Narrow(d.pool, formatOf(to.DType), d.halves(to), d.floats(from))
	case !to.DType.Half():
		kernel.Widen(d.pool, formatOf(from.DType), d.floats(to), d.halves(from))
	default: // bfloat16 to binary16, or back
		src, dst := d.halves(from), d.halves(to)
		for n := min(len(src), blockElems); n > 0; n = min(len(src), blockElems) {
			block := d.floatBlock()[:n]
			kernel.Widen(d.pool, formatOf(from.DType), block, src[:n])
			kernel.Narrow(d.pool, formatOf(to.DType), dst[:n], block)
			src, dst = src[n:], dst[n:]
		}
	}
}
