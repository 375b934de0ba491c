package kernel

// combineBlock is how many elements Combine takes at a time, so that a sum is still in the
// first-level cache when it is copied to the last output.
const combineBlock = 2048

// Combine sets all outs to the elementwise sum of ins in their order, or to their maximum. An out
// may be one of the ins; otherwise all are disjoint. Memory is read once and written once.
func Combine(p *Pool, largest bool, outs, ins [][]float32) {
	for _, x := range ins {
		checkLen("Combine", "one of ins", x, len(outs[0]))
	}
	for _, x := range outs {
		checkLen("Combine", "one of outs", x, len(outs[0]))
	}
	p = p.orInline()
	p.task.combine = combineTask{outs: outs, ins: ins, f: p.combination(largest)}
	p.run(&p.task.combine, len(outs[0]), max(combineElems/len(ins), 1))
}

// combineElems is how many elements of all ins are worth a chunk. Two tensors of 64 KiB, of which
// two ranks make a half each (runtime/cpu), are not worth dividing further: a second core would
// cost more than it saves.
const combineElems = 1 << 15

// CombineAlone is Combine to one output, which is none of ins, in the calling goroutine alone. It
// is for functions that [Pool.Each] calls.
func CombineAlone(p *Pool, largest bool, out []float32, ins [][]float32) {
	f := p.combination(largest)
	for lo := 0; lo < len(out); lo += combineBlock {
		hi := min(lo+combineBlock, len(out))
		combineTo(out[lo:hi], out[lo:hi], ins, lo, f)
	}
}

func (p *Pool) combination(largest bool) func(dst, a, b []float32) {
	if largest {
		return p.isa.max
	}
	return p.isa.add
}

type combineTask struct {
	outs, ins [][]float32
	f         func(dst, a, b []float32)
}

func (t *combineTask) do(w *worker, lo, hi int) {
	acc := w.scratch(combineBlock) // an out may be one of ins, so it is written last
	for ; lo < hi; lo += combineBlock {
		end := min(lo+combineBlock, hi)
		dst := t.outs[0][lo:end]
		combineTo(dst, acc[:end-lo], t.ins, lo, t.f)
		for _, out := range t.outs[1:] {
			copy(out[lo:end], dst)
		}
	}
}

// combineTo sets dst to the combination of elements lo and on of ins. acc is scratch memory.
func combineTo(dst, acc []float32, ins [][]float32, lo int, f func(dst, a, b []float32)) {
	hi, last := lo+len(dst), len(ins)-1
	if last == 0 {
		copy(dst, ins[0][lo:hi])
		return
	}
	sum := ins[0][lo:hi]
	for _, x := range ins[1:last] {
		f(acc, sum, x[lo:hi])
		sum = acc
	}
	f(dst, sum, ins[last][lo:hi])
}
