package train

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/autopar/autopar/data"
)

// printf writes whole lines to the log. A failure to write them does not stop the run.
func (r *run) printf(format string, args ...any) { fmt.Fprintf(r.opts.Log, format, args...) }

// printHeader prints what will run, in nanoGPT's words where it has any.
func (r *run) printHeader(peak float64) {
	m, p := r.Config.Model, r.Plan
	decay, rest := m.ParamGroups()
	r.printf("tokens per iteration will be: %s\n", grouped(int64(r.TokensPerStep())))
	r.printf("number of parameters: %.2fM\n", float64(m.NumParamsNoPosition())/1e6)
	if m.LoRARank > 0 {
		r.printf("all frozen but adapters of rank %d beside %s\n", m.LoRARank, strings.Join(m.Adapted(), ", "))
	}
	if known := r.bins.Known; known > 0 && m.VocabSize >= known+padding {
		r.printf("model.vocab_size is %s, but the data has %s symbols (%s): the others are learnt never to come\n",
			grouped(int64(m.VocabSize)), grouped(int64(known)), filepath.Join(r.Config.Data.Dir, data.MetaFile))
	}
	r.printf("num decayed parameter tensors: %d, with %s parameters\n", decay.Tensors, grouped(decay.Elements))
	r.printf("num non-decayed parameter tensors: %d, with %s parameters\n", rest.Tensors, grouped(rest.Elements))
	r.printf("ranks: %d in units of %d; %s, micro-batches of %d; at most %.1f MiB each\n",
		p.RuntimeNGPUs, p.PlanNGPUs, strings.ReplaceAll(p.Degrees(), " x ", ", "), p.MicroBatch, float64(r.PeakBytes())/(1<<20))
	note := ""
	if r.opts.PeakFLOPS == 0 {
		note = " (this device's peak is not known: nanoGPT's constant, an A100 in bfloat16)"
	}
	r.printf("mfu is of %d x %.4g FLOP/s%s\n", r.exec.Ranks(), peak, note)
}

// padding is more than a vocabulary is padded by, as in nanoGPT, to a multiple of 64.
const padding = 64

// grouped prints 802944 as 802,944.
func grouped(n int64) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", grouped(n/1000), n%1000)
}

// report logs a step and writes its metrics.
func (r *run) report(st StepStats) error {
	mfu := r.mfu.update(st.Duration)
	ms := float64(st.Duration) / float64(time.Millisecond)
	scaler := ""
	if st.LossScale > 0 {
		scaler = fmt.Sprintf(", loss_scale %g, skipped %d", st.LossScale, st.Skipped)
	}
	r.printf("iter %d: loss %.4f, time %.2fms, mfu %.2f%%, lr %.4e, grad_norm %.4f%s\n", st.Iter, st.Loss, ms, 100*mfu, st.LR, st.GradNorm, scaler)
	m := StepMetrics{
		Iter: st.Iter, Loss: st.Loss, LR: st.LR, GradNorm: st.GradNorm, TimeMS: ms, MeanMS: float64(r.unlogged) / float64(time.Millisecond) / float64(r.updates),
		TokensPerS: float64(r.TokensPerStep()) / st.Duration.Seconds(), MFU: mfu, PeakBytes: r.PeakBytes(),
		CommBytes: st.CommBytes, Collectives: st.Collectives, LossScale: st.LossScale, SkippedSteps: st.Skipped,
	}
	r.unlogged, r.updates = 0, 0
	looked := r.stragglers.due()
	for _, s := range r.stragglers.take() {
		r.printf("%s of %d ranks\n", s, r.exec.Ranks())
		if s.times > m.StragglerFactor {
			m.Straggler, m.StragglerFactor = &s.rank, s.times
		}
	}
	if slow := r.stragglers.slow(); looked && slow != nil && r.opts.Slow != nil && r.opts.Slow(slow, time.Duration(r.last-r.result.Steps)*st.Duration) {
		r.stop()
	}
	return r.metrics.write(m)
}

// mfu is the model FLOPs utilization of the whole job, smoothed as in nanoGPT's estimate_mfu: the
// FLOPs that the model needs (without recomputation) over what all ranks could do at their peak
// [Chowdhery et al. 2022, appendix B].
type mfu struct {
	flopsPerStep float64
	peak         float64 // FLOP/s of all ranks
	running      float64 // -1 before the first estimate
	steps        int     // made by this process
}

// warmSteps is how many steps are left out before the first estimate, as in nanoGPT.
const warmSteps = 5

// update adds the time of a logged step and returns the running estimate.
func (m *mfu) update(d time.Duration) float64 {
	if m.steps <= warmSteps {
		return m.running
	}
	now := m.flopsPerStep / d.Seconds() / m.peak
	if m.running < 0 {
		m.running = now
	} else {
		m.running = 0.9*m.running + 0.1*now
	}
	return m.running
}
