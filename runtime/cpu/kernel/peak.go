package kernel

// peakRounds is how many rounds of multiply-adds a thread does per chunk: some microseconds.
const peakRounds = 1 << 13

// MultiplyAdd runs vector multiply-adds in registers on all threads of p, in chunks of some
// microseconds, and returns how many floating-point operations that is. Timed, it gives the peak
// that the planner's efficiencies refer to.
func MultiplyAdd(p *Pool, chunks int) (flop float64) {
	p = p.orInline()
	p.run(&p.task.peak, chunks, 1)
	return float64(chunks) * peakRounds * float64(p.isa.multiplyAddFLOP)
}

type peakTask struct{}

func (*peakTask) do(w *worker, lo, hi int) { w.isa.multiplyAdd((hi - lo) * peakRounds) }
