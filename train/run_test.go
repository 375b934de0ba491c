package train

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/checkpoint"
	"github.com/autopar/autopar/checkpoint/safetensors"
	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/data"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/interp"
	"github.com/autopar/autopar/ir/philox"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/runtime/backendtest"
	"github.com/autopar/autopar/runtime/cpu"
)

// deterministic drops what depends on the clock from metrics.
func deterministic(steps map[int]StepMetrics) map[int]StepMetrics {
	out := map[int]StepMetrics{}
	for i, s := range steps {
		s.TimeMS, s.MeanMS, s.TokensPerS, s.MFU = 0, 0, 0, 0
		out[i] = s
	}
	return out
}

// TestFailuresNameTheIteration: an error in an evaluation names the run's step, even if this
// process has made none.
func TestFailuresNameTheIteration(t *testing.T) {
	cfg := tinyConfig(t, textData(t), "train.eval_interval=3")
	out := t.TempDir()
	train(t, cfg, planOf(2, 1, 1), RunOptions{Out: out, Steps: 6})
	backend, err := cpu.New(cpu.Options{})
	require.NoError(t, err)
	fault := backendtest.Fault{Rank: 1, Call: backendtest.Launch, At: 70}
	job, err := NewJob(cfg, planOf(2, 1, 1), JobOptions{Backend: backendtest.Inject(backend, fault)})
	require.NoError(t, err)
	_, err = job.Run(t.Context(), RunOptions{Out: out, Resume: true})
	require.ErrorContains(t, err, "rank 1, step 6, ")
	require.NoError(t, job.Close())
}

// TestResumeIsExact: stopping anywhere and resuming gives the bits of a run that did not stop:
// losses, learning rates, evaluations, weights, moments and the best validation loss. Stop 5 is
// just before an evaluation, stop 11 is not.
func TestResumeIsExact(t *testing.T) {
	cfg := tinyConfig(t, textData(t))
	plan := planOf(2, 2, 1)
	whole, parts := t.TempDir(), t.TempDir()
	want, _ := train(t, cfg, plan, RunOptions{Out: whole})
	require.Equal(t, 13, want.Steps, "max_iters+1 updates")
	for i, stop := range []int{5, 11, 0} {
		r, _ := train(t, cfg, plan, RunOptions{Out: parts, Steps: stop, Resume: i > 0})
		if stop == 0 {
			require.Equal(t, want.Loss, r.Loss)
			require.Equal(t, want.BestVal, r.BestVal)
		}
	}
	steps, evals := readMetrics(t, whole)
	gotSteps, gotEvals := readMetrics(t, parts)
	require.Len(t, steps, 13)
	require.Equal(t, deterministic(steps), deterministic(gotSteps))
	require.Equal(t, evals, gotEvals)
	require.Equal(t, contents(t, whole), contents(t, parts))

	a, err := checkpoint.Open(whole)
	require.NoError(t, err)
	defer a.Close()
	b, err := checkpoint.Open(parts)
	require.NoError(t, err)
	defer b.Close()
	require.Equal(t, a.Manifest, b.Manifest)
	require.Equal(t, 13, a.Step)
}

// TestUnreadableDataKeepsTheUpdates: when a batch cannot be read any more, the updates before are saved.
func TestUnreadableDataKeepsTheUpdates(t *testing.T) {
	for _, after := range []int{5, 6} { // the next to read is an update, or an evaluation
		dir := textData(t)
		cfg := tinyConfig(t, dir)
		whole, out := t.TempDir(), t.TempDir()
		train(t, cfg, planOf(2, 1, 1), RunOptions{Out: whole, Steps: after})
		broken := func(p Progress) {
			if p.Done == after && !p.Evaluating {
				require.NoError(t, os.Truncate(filepath.Join(dir, data.TrainFile), 0))
			}
		}
		_, err := newJob(t, cfg, planOf(2, 1, 1)).Run(t.Context(), RunOptions{Out: out, Progress: broken})
		var unread *data.InputError
		require.ErrorAs(t, err, &unread)
		require.Equal(t, contents(t, whole), contents(t, out))
	}
}

// TestResumeSaysWhatChanged: a run may continue with other settings, but says so. Another plan is
// no change.
func TestResumeSaysWhatChanged(t *testing.T) {
	dir, out := textData(t), t.TempDir()
	train(t, tinyConfig(t, dir), planOf(1, 1, 1), RunOptions{Out: out, Steps: 2})
	_, log := train(t, tinyConfig(t, dir, "parallel.runtime_ngpus=2", "batch.micro=2"), planOf(2, 1, 1), RunOptions{Out: out, Steps: 3, Resume: true})
	require.NotContains(t, log, "changed since")
	changed := tinyConfig(t, dir, "optimizer.learning_rate=2e-2", "model.dropout=0.2", "train.seed=1", "batch.global=8")
	_, log = train(t, changed, planOf(1, 1, 1), RunOptions{Out: out, Steps: 4, Resume: true})
	for _, change := range []string{
		"model.dropout was 0.1, is 0.2", "batch.global was 7, is 8", "optimizer.learning_rate was 0.01, is 0.02", "train.seed was 1337, is 1",
	} {
		require.Contains(t, log, "changed since: "+change+"\n")
	}
	require.Equal(t, 4, strings.Count(log, "changed since"))
	require.NotContains(t, log, "data.sampling")
}

// TestResumeSaysWhatIsPassedOver: with another global batch, another seed, or, where positions have no limit, sequences of another
// length, some of an epoch is left out or drawn again.
func TestResumeSaysWhatIsPassedOver(t *testing.T) {
	dir, out := textData(t), t.TempDir()
	run := func(batch, steps int, changes ...string) string {
		cfg := tinyConfig(t, dir, append(changes, "model.n_head=2", "model.position=rope", "data.sampling=without_replacement", fmt.Sprint("batch.global=", batch))...)
		_, log := train(t, cfg, planOf(1, 1, 1), RunOptions{Out: out, Steps: steps, Resume: steps > 2})
		return log
	}
	run(7, 2)
	require.NotContains(t, run(7, 3), "data.sampling")
	require.Contains(t, run(9, 4), "\ndata.sampling: with batch.global 9, the run goes on at sequence 27 of its epochs, not 21: those between are left out\n")
	require.Contains(t, run(6, 5), "\ndata.sampling: with batch.global 6, the run goes on at sequence 24 of its epochs, not 36: those between are drawn again\n")
	others := func(block, seed int) string {
		return fmt.Sprintf("\ndata.sampling: with model.block_size %d and train.seed %d, epochs have other sequences, in another order: of the text of this one some is left out, some drawn again\n", block, seed)
	}
	require.Contains(t, run(7, 6, "train.seed=2"), others(9, 2))
	require.Contains(t, run(3, 7, "train.seed=2", "model.block_size=14"), others(14, 2))
}

// TestVocabularyOfTheData: a run says if its model has many more symbols than its text, as with the default of model.vocab_size.
func TestVocabularyOfTheData(t *testing.T) {
	dir := textData(t) // of 28 symbols
	for vocab, says := range map[int]bool{28: false, 64: false, 92: true} {
		_, log := train(t, tinyConfig(t, dir, fmt.Sprint("model.vocab_size=", vocab)), planOf(1, 1, 1), RunOptions{Steps: 1})
		text := fmt.Sprintf("\nmodel.vocab_size is %d, but the data has 28 symbols (%s): ", vocab, filepath.Join(dir, "meta.pkl"))
		require.Equal(t, says, strings.Contains(log, text), log)
	}
	require.NoError(t, os.Remove(filepath.Join(dir, "meta.pkl")))
	_, log := train(t, tinyConfig(t, dir, "model.vocab_size=92"), planOf(1, 1, 1), RunOptions{Steps: 1})
	require.NotContains(t, log, "vocab_size")
}

// TestNoUpdatesTakeNoTime: a job that fails before it has any metrics has made no updates, which is no error.
func TestNoUpdatesTakeNoTime(t *testing.T) {
	each, err := UpdateTime(t.TempDir(), 0)
	require.NoError(t, err)
	require.Zero(t, each)
}

// TestUpdateTime: an iteration that is logged stands for those before it, by their mean. A checkpoint is often written in just those
// that are logged.
func TestUpdateTime(t *testing.T) {
	out := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(out, MetricsFile), []byte(`{"iter":0,"time_ms":9,"mean_ms":9}
{"iter":10,"time_ms":30,"mean_ms":12}
{"iter":10,"train_loss":1,"val_loss":1}
{"iter":20,"time_ms":20}
`), 0o644))
	for from, want := range map[int]float64{0: (9 + 120 + 200) / 21e3, 1: (120 + 200) / 20e3, 11: 20e-3, 21: 0} {
		each, err := UpdateTime(out, from)
		require.NoError(t, err)
		require.InDelta(t, want, each, 1e-12, from)
	}
	cfg := tinyConfig(t, textData(t), "train.log_interval=3")
	train(t, cfg, planOf(1, 1, 1), RunOptions{Out: out, Steps: 7})
	steps, _ := readMetrics(t, out)
	require.Equal(t, steps[0].TimeMS, steps[0].MeanMS)
	require.Positive(t, steps[3].MeanMS)
	require.Len(t, steps, 3)
}

// TestResumeCutsMetrics: what a killed run wrote after its checkpoint, including half a line, is
// replaced.
func TestResumeCutsMetrics(t *testing.T) {
	cfg := tinyConfig(t, textData(t))
	out := t.TempDir()
	train(t, cfg, planOf(1, 1, 1), RunOptions{Out: out, Steps: 7})
	path := filepath.Join(out, MetricsFile)
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString(`{"iter":7,"loss":99}` + "\n" + `{"iter":8,"lo`)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	train(t, cfg, planOf(1, 1, 1), RunOptions{Out: out, Steps: 9, Resume: true})
	steps, _ := readMetrics(t, out)
	require.Len(t, steps, 9)
	require.Less(t, steps[7].Loss, float32(9))
}

// TestForeignLineCutsNoMetrics: a line that is no record does not take those that follow with it.
func TestForeignLineCutsNoMetrics(t *testing.T) {
	const before, foreign, after = `{"iter":0,"loss":4}` + "\n", "\n# a note\n", `{"iter":1,"loss":3}` + "\n"
	for text, want := range map[string]string{
		before + foreign + after:                       before + foreign + after,
		before + foreign + after + foreign + before:    before + foreign + after + foreign + before,
		before + foreign + after + foreign:             before + foreign + after,
		before + foreign + `{"iter":2}` + "\n" + after: before,
	} {
		keep, err := metricsBefore(bufio.NewReader(strings.NewReader(text)), 2)
		require.NoError(t, err)
		require.Equal(t, want, text[:keep])
	}
}

// TestAsksWhetherARunWrites: to ask whether a run is writing to a directory keeps none from beginning there, and of two that
// ask neither takes the other for a run.
func TestAsksWhetherARunWrites(t *testing.T) {
	out := t.TempDir()
	m, err := openMetrics(out, 0)
	require.NoError(t, err)
	require.Equal(t, goruntime.GOOS == "linux", Writing(out))
	require.NoError(t, m.close())
	done := make(chan struct{})
	ask := func() (seen bool) {
		for {
			select {
			case <-done:
				return seen
			default:
				seen = Writing(out) || seen
			}
		}
	}
	answers := make(chan bool)
	for range 2 {
		go func() { answers <- ask() }()
	}
	time.Sleep(50 * time.Millisecond)
	close(done)
	for range 2 {
		require.False(t, <-answers)
	}
	done = make(chan struct{})
	go func() { answers <- ask() }()
	for range 100 {
		if m, err = openMetrics(out, 0); err != nil {
			break
		}
		require.NoError(t, m.close())
	}
	close(done)
	<-answers
	require.NoError(t, err)
}

// TestOneRunInADirectory: a run is refused where another one is writing, and changes nothing there.
// When the other has ended, in whatever way, the next may run.
func TestOneRunInADirectory(t *testing.T) {
	if goruntime.GOOS != "linux" {
		t.Skip("directories are held on Linux only")
	}
	cfg := tinyConfig(t, textData(t))
	out := t.TempDir()
	train(t, cfg, planOf(1, 1, 1), RunOptions{Out: out, Steps: 7})
	path := filepath.Join(out, MetricsFile)
	whole, err := os.ReadFile(path)
	require.NoError(t, err)

	other, err := openMetrics(out, 7)
	require.NoError(t, err)
	for _, opts := range []RunOptions{{Out: out, Steps: 9, Resume: true}, {Out: out, Steps: 2}} {
		_, err := newJob(t, cfg, planOf(1, 1, 1)).Run(t.Context(), opts)
		var refused *InputError
		require.ErrorAs(t, err, &refused)
		require.EqualError(t, err, "out: another run is writing to "+out+"; wait for its end, or name another directory")
	}
	left, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, whole, left)

	require.NoError(t, other.close())
	train(t, cfg, planOf(1, 1, 1), RunOptions{Out: out, Steps: 9, Resume: true})
	steps, _ := readMetrics(t, out)
	require.Len(t, steps, 9)
}

// lines is a writer that is given whole lines.
type lines struct{ t *testing.T }

func (l lines) Write(text []byte) (int, error) {
	require.True(l.t, bytes.HasSuffix(text, []byte("\n")), "%q", text)
	return len(text), nil
}

// TestLogOfWholeLines: a bar that stands below the log on a terminal is removed for a line, and would be for each part of one.
func TestLogOfWholeLines(t *testing.T) {
	dir := textData(t)
	for _, dtype := range []string{"float32", "float16"} {
		cfg := tinyConfig(t, dir, "train.dtype="+dtype)
		_, err := newJob(t, cfg, planOf(1, 1, 1)).Run(t.Context(), RunOptions{Steps: 6, Out: t.TempDir(), Log: lines{t}})
		require.NoError(t, err)
	}
}

// TestLog: the loss falls, and the log has nanoGPT's form.
func TestLog(t *testing.T) {
	cfg := tinyConfig(t, textData(t), "train.log_interval=2", "train.max_iters=20")
	out := t.TempDir()
	r, log := train(t, cfg, planOf(1, 1, 1), RunOptions{Out: out})
	require.Regexp(t, `(?m)^step 0: train loss \d+\.\d{4}, val loss \d+\.\d{4}$`, log)
	require.Regexp(t, `(?m)^step 20: train loss \d+\.\d{4}, val loss \d+\.\d{4}$`, log)
	require.Regexp(t, `(?m)^iter 0: loss \d+\.\d{4}, time \d+\.\d\dms, mfu -100\.00%, lr \S+, grad_norm \d+\.\d{4}$`, log)
	require.Regexp(t, `(?m)^iter 6: loss \d+\.\d{4}, time \d+\.\d\dms, mfu \d+\.\d\d%`, log)
	require.Contains(t, log, "mfu is of 1 x 3.12e+14 FLOP/s (this device's peak is not known")
	require.Len(t, regexp.MustCompile(`(?m)^iter `).FindAllString(log, -1), 11)
	require.Contains(t, log, "num decayed parameter tensors: 10, with 11,080 parameters")

	steps, evals := readMetrics(t, out)
	require.Len(t, steps, 11)
	require.Len(t, evals, 5)
	require.InDelta(t, math.Log(65), evals[0].ValLoss, 0.1)
	require.Less(t, evals[20].ValLoss, evals[0].ValLoss-0.3)
	require.Equal(t, evals[20].ValLoss, r.Last.Val)
	require.Equal(t, cfg.Optimizer.LR(8), steps[8].LR)
	require.Zero(t, steps[8].CommBytes)
	require.Positive(t, steps[8].PeakBytes)
	require.Positive(t, steps[8].TokensPerS)
	require.Equal(t, -1.0, steps[4].MFU)
	require.Positive(t, steps[8].MFU)
}

// TestOutBelowAFile: a directory that cannot be made is a wrong request, which another start would not mend.
func TestOutBelowAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, out := range []string{file, filepath.Join(file, "a", "b")} {
		_, err := openMetrics(out, 0)
		require.ErrorAs(t, err, new(*InputError))
		require.EqualError(t, err, "out: "+out+" cannot be a directory: "+file+" is a file")
	}
}

// TestMetricsRoundTrip: float32 values that are awkward in decimal come back with the same bits.
func TestMetricsRoundTrip(t *testing.T) {
	dir := t.TempDir()
	m, err := openMetrics(dir, 0)
	require.NoError(t, err)
	values := []float32{4.1649, 0.1, math.SmallestNonzeroFloat32, math.MaxFloat32, 16777217, 1.0 / 3, float32(math.Copysign(0, -1))}
	for i, x := range values {
		require.NoError(t, m.write(StepMetrics{Iter: i, Loss: x, GradNorm: -x}))
	}
	require.NoError(t, m.close())
	steps, _ := readMetrics(t, dir)
	for i, x := range values {
		require.Equal(t, math.Float32bits(x), math.Float32bits(steps[i].Loss), "%g", x)
	}
}

// TestMetricsThatAreRemoved: a run whose metrics are removed while it writes to them knows.
func TestMetricsThatAreRemoved(t *testing.T) {
	if goruntime.GOOS == "windows" {
		t.Skip("open files cannot be removed")
	}
	dir := t.TempDir()
	m, err := openMetrics(dir, 0)
	require.NoError(t, err)
	require.NoError(t, os.Remove(filepath.Join(dir, MetricsFile)))
	require.NoError(t, m.write(StepMetrics{}))
	require.Equal(t, []string{filepath.Join(dir, MetricsFile)}, m.moved())
	require.NoError(t, m.close())
}

// TestPlansAgree: the same run on other ranks has the same losses, and does communicate.
func TestPlansAgree(t *testing.T) {
	cfg := tinyConfig(t, textData(t))
	one := t.TempDir()
	train(t, cfg, planOf(1, 1, 1), RunOptions{Out: one})
	want, wantEvals := readMetrics(t, one)
	units := planOf(1, 2, 2)
	units.RuntimeNGPUs = 12
	for name, plan := range map[string]*partition.Plan{
		"dp3": planOf(3, 1, 1), "tp4": planOf(1, 4, 1), "pp2 x dp2": planOf(2, 1, 2), "3 units of tp2 x pp2": units,
	} {
		t.Run(name, func(t *testing.T) {
			out := t.TempDir()
			train(t, cfg, plan, RunOptions{Out: out})
			got, evals := readMetrics(t, out)
			for i := range want {
				require.InDelta(t, want[i].Loss, got[i].Loss, 1e-5, "iteration %d", i)
				require.InEpsilon(t, want[i].GradNorm, got[i].GradNorm, 1e-5, "iteration %d", i)
				require.Positive(t, got[i].CommBytes)
				require.Positive(t, got[i].Collectives)
			}
			require.InDelta(t, wantEvals[10].ValLoss, evals[10].ValLoss, 1e-5)
		})
	}
}

// TestReshard: a checkpoint of dp2 x tp2 can be loaded under any plan. Saved again it is equal, bit
// for bit, in weights and moments, and training continues as it would have.
func TestReshard(t *testing.T) {
	cfg := tinyConfig(t, textData(t), "train.max_iters=40", "train.eval_interval=100")
	from := t.TempDir()
	train(t, cfg, planOf(2, 2, 1), RunOptions{Out: from, Steps: 4})
	want := contents(t, from)
	require.Len(t, want, 3*28)
	require.NotEqual(t, make([]float32, len(want["wte.weight.m"])), want["wte.weight.m"], "moments are not zero")

	on := t.TempDir()
	require.NoError(t, os.CopyFS(on, os.DirFS(from)))
	train(t, cfg, planOf(2, 2, 1), RunOptions{Out: on, Steps: 24, Resume: true})
	wantSteps, _ := readMetrics(t, on)

	for name, plan := range map[string][3]int{"one": {1, 1, 1}, "tp4": {1, 4, 1}, "pp2 x dp2": {2, 1, 2}, "dp3": {3, 1, 1}, "tp3": {1, 3, 1}} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t, cfg, planOf(plan[0], plan[1], plan[2]))
			c, err := checkpoint.Open(from)
			require.NoError(t, err)
			defer c.Close()
			require.NoError(t, j.Load(c, true))
			snap, err := j.Snapshot(4)
			require.NoError(t, err)
			again := t.TempDir()
			_, err = checkpoint.Save(again, snap, checkpoint.Retention{})
			require.NoError(t, err)
			require.Equal(t, want, contents(t, again))

			_, err = j.Run(t.Context(), RunOptions{Out: again, Steps: 24, Resume: true})
			require.NoError(t, err)
			steps, _ := readMetrics(t, again)
			require.Len(t, steps, 20)
			for i := 4; i < 24; i++ {
				require.InDelta(t, wantSteps[i].Loss, steps[i].Loss, 1e-5, "iteration %d", i)
			}
		})
	}
}

// TestEvaluate: the printed loss is the mean over the batches, and does not depend on the ranks.
func TestEvaluate(t *testing.T) {
	dir := textData(t)
	cfg := tinyConfig(t, dir)
	one := newJob(t, cfg, planOf(1, 1, 1))
	require.NoError(t, one.Init())
	want, err := one.Evaluate(t.Context(), nil)
	require.NoError(t, err)

	sum := 0.0
	for k := range cfg.Train.EvalIters {
		require.NoError(t, one.batch.read(one.bins.Val, one.samplers[evalValStream], k))
		out, err := one.exec.Step(t.Context(), one.Eval, only(one.batch.feeds(), one.evalsOn))
		require.NoError(t, err)
		sum += float64(out["loss"])
	}
	require.Equal(t, float32(sum/3), want.Val)
	require.InDelta(t, math.Log(65), want.Val, 0.1)
	require.NotEqual(t, want.Train, want.Val)

	for _, plan := range [][3]int{{4, 1, 1}, {2, 2, 1}, {2, 1, 2}} {
		j := newJob(t, cfg, planOf(plan[0], plan[1], plan[2]))
		require.NoError(t, j.Init())
		var calls []int
		got, err := j.Evaluate(t.Context(), func(done, total int) {
			calls = append(calls, done)
			require.Equal(t, 6, total)
		})
		require.NoError(t, err)
		require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6}, calls)
		require.InDelta(t, want.Train, got.Train, 1e-6)
		require.InDelta(t, want.Val, got.Val, 1e-6)
	}
}

// TestCheckpointTimes: a run saves never at iteration 0, if the loss improves, always if asked, at
// intervals, and at the end.
func TestCheckpointTimes(t *testing.T) {
	dir := textData(t)
	saved := func(overrides ...string) []string {
		cfg := tinyConfig(t, dir, append(overrides, "train.max_iters=11")...)
		out := t.TempDir()
		_, log := train(t, cfg, planOf(1, 1, 1), RunOptions{Out: out, Keep: checkpoint.Retention{Last: 100}})
		var names []string
		for _, m := range regexp.MustCompile(`(?m)^saving checkpoint to .*/(.*)$`).FindAllStringSubmatch(log, -1) {
			names = append(names, strings.TrimLeft(strings.TrimPrefix(m[1], "step-"), "0"))
		}
		return names
	}
	require.Equal(t, []string{"5", "10", "12"}, saved())
	require.Equal(t, []string{"12"}, saved("optimizer.learning_rate=0", "optimizer.min_lr=0"))
	require.Equal(t, []string{"5", "10", "12"}, saved("optimizer.learning_rate=0", "optimizer.min_lr=0", "train.always_save_checkpoint=true"))
	require.Equal(t, []string{"4", "5", "8", "10", "12"}, saved("train.checkpoint_interval=4"))

	// A checkpoint at an iteration with an evaluation has its result.
	cfg, out := tinyConfig(t, dir, "train.max_iters=11", "train.checkpoint_interval=5"), t.TempDir()
	train(t, cfg, planOf(1, 1, 1), RunOptions{Out: out, Keep: checkpoint.Retention{Last: 100}})
	c, err := checkpoint.Open(filepath.Join(out, "ckpt", "step-00000010"))
	require.NoError(t, err)
	require.Equal(t, 10, c.BestStep)
	require.NoError(t, c.Close())
}

func TestEvalOnly(t *testing.T) {
	cfg := tinyConfig(t, textData(t), "train.eval_only=true")
	out := t.TempDir()
	r, log := train(t, cfg, planOf(1, 1, 1), RunOptions{Out: out})
	require.Zero(t, r.Steps)
	require.Contains(t, log, "step 0: train loss")
	require.NotContains(t, log, "iter 0:")
	require.NotContains(t, log, "checkpoints:", "it has nothing to save")
	require.NoDirExists(t, filepath.Join(out, "ckpt"))

	// A run that was stopped between two evaluations, or is done, trains nothing when its last step
	// is asked for, and what it left stays.
	trains := tinyConfig(t, cfg.Data.Dir)
	for _, steps := range []int{7, trains.Train.MaxIters + 1} {
		want, _ := train(t, trains, planOf(1, 1, 1), RunOptions{Out: out, Steps: steps})
		before := contents(t, out)
		metrics, err := os.ReadFile(filepath.Join(out, MetricsFile))
		require.NoError(t, err)
		r, log := train(t, cfg, planOf(1, 1, 1), RunOptions{Out: out, Resume: true})
		require.Equal(t, steps, r.Steps)
		require.Contains(t, log, fmt.Sprintf("step %d: train loss", steps))
		require.NotContains(t, log, "iter ")
		require.NotContains(t, log, "nothing to do")
		require.Equal(t, want.Checkpoint, r.Checkpoint)
		_, _ = train(t, cfg, planOf(1, 1, 1), RunOptions{Out: out, InitFrom: out})
		require.Equal(t, before, contents(t, out))
		after, err := os.ReadFile(filepath.Join(out, MetricsFile))
		require.NoError(t, err)
		require.Equal(t, string(metrics), string(after))
	}
}

// TestInterrupt: a cancelled run has finished its step and saved, and continues as if nothing had
// happened.
func TestInterrupt(t *testing.T) {
	cfg := tinyConfig(t, textData(t))
	plan := planOf(2, 1, 1)
	whole, out := t.TempDir(), t.TempDir()
	train(t, cfg, plan, RunOptions{Out: whole})

	ctx, observe := cancelAfter(t.Context(), 8)
	var log bytes.Buffer
	r, err := newJob(t, cfg, plan).Run(ctx, RunOptions{Out: out, Progress: observe, Log: &log})
	require.NoError(t, err)
	require.True(t, r.Interrupted)
	require.Equal(t, 8, r.Steps)
	require.Contains(t, log.String(), "interrupted after 8 iterations, saved in "+r.Checkpoint)

	// If the step in progress is the last, the run is done.
	ctx, observe = cancelAfter(t.Context(), 8)
	log.Reset()
	r, err = newJob(t, cfg, plan).Run(ctx, RunOptions{Steps: 8, Out: t.TempDir(), Progress: observe, Log: &log})
	require.NoError(t, err)
	require.False(t, r.Interrupted)
	require.NotContains(t, log.String(), "interrupted")

	// During an evaluation there is nothing new to save, and the evaluation is made again.
	ctx, cancel := context.WithCancel(t.Context())
	r, err = newJob(t, cfg, plan).Run(ctx, RunOptions{Out: out, Resume: true, Progress: func(p Progress) {
		if p.Evaluating && p.Done == 2 {
			cancel()
		}
	}})
	require.NoError(t, err)
	require.True(t, r.Interrupted)
	require.Equal(t, 10, r.Steps)

	var done []int
	r, _ = train(t, cfg, plan, RunOptions{Out: out, Resume: true, Progress: func(p Progress) {
		if !p.Evaluating {
			done = append(done, p.Done)
		}
	}})
	require.False(t, r.Interrupted)
	require.Equal(t, []int{10, 11}, done[:2], "it begins with what was done before")
	require.Equal(t, contents(t, whole), contents(t, out))
	_, want := readMetrics(t, whole)
	_, got := readMetrics(t, out)
	require.Equal(t, want, got)
}

// TestNewRunReplaces: no checkpoint of an earlier run stays, not even of steps before the first
// that a new run saves. The new run keeps its own.
func TestNewRunReplaces(t *testing.T) {
	cfg := tinyConfig(t, textData(t), "train.checkpoint_interval=2", "train.eval_interval=100")
	for _, blocking := range []bool{false, true} {
		out := t.TempDir()
		steps := func() (names []string) {
			entries, err := os.ReadDir(filepath.Join(out, "ckpt"))
			require.NoError(t, err)
			for _, e := range entries {
				if e.IsDir() {
					names = append(names, e.Name())
				}
			}
			return names
		}
		opts := RunOptions{Out: out, Steps: 1, Blocking: blocking, Keep: checkpoint.Retention{Last: 3}}
		train(t, cfg, planOf(2, 1, 1), opts)
		opts.Steps = 2
		train(t, cfg, planOf(2, 1, 1), opts)
		require.Equal(t, []string{"step-00000002"}, steps(), "the other run's was of step 1")
		opts.Steps, opts.Resume = 5, true
		train(t, cfg, planOf(2, 1, 1), opts)
		require.Equal(t, []string{"step-00000002", "step-00000004", "step-00000005"}, steps())
		opts.Steps, opts.Resume = 6, false
		train(t, cfg, planOf(2, 1, 1), opts)
		require.Equal(t, []string{"step-00000002.1", "step-00000004", "step-00000006"}, steps(), "its own")
	}
}

// TestInterruptedRunSpares: a new run that is interrupted before it was to save leaves the checkpoints of an earlier run, which
// says how to go back to it. If the new run is resumed instead, they go: those of later steps are not its own.
func TestInterruptedRunSpares(t *testing.T) {
	cfg := tinyConfig(t, textData(t), "train.eval_interval=100")
	for _, blocking := range []bool{false, true} {
		out := t.TempDir()
		opts := RunOptions{Out: out, Steps: 5, Blocking: blocking, Keep: checkpoint.Retention{Last: 3}}
		earlier, log := train(t, cfg, planOf(2, 1, 1), opts)
		require.NotContains(t, log, "earlier run")
		before := contents(t, out)
		var said bytes.Buffer
		var ctx context.Context
		opts.Log, opts.Steps = &said, 9
		ctx, opts.Progress = cancelAfter(t.Context(), 2)
		r, err := newJob(t, cfg, planOf(2, 1, 1)).Run(ctx, opts)
		require.NoError(t, err)
		require.Equal(t, filepath.Join(out, "ckpt", "step-00000002"), r.Checkpoint)
		latest := filepath.Join(out, checkpoint.LatestFile)
		require.Contains(t, said.String(), earlier.Checkpoint+" is of an earlier run, which this one replaces when it first saves; --resume would go on with it\n")
		require.Contains(t, said.String(), earlier.Checkpoint+", of an earlier run, is still there: to go back to it write its name to "+latest+"\n")

		own, err := os.ReadFile(latest)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(latest, []byte("step-00000005\n"), 0o644))
		require.Equal(t, before, contents(t, out))
		require.NoError(t, os.WriteFile(latest, own, 0o644))
		opts.Progress, opts.Resume, opts.Steps = nil, true, 7
		_, log = train(t, cfg, planOf(2, 1, 1), opts)
		require.NotContains(t, log, "earlier run")
		require.NoDirExists(t, earlier.Checkpoint)
		require.DirExists(t, r.Checkpoint)
	}
}

// TestOldCheckpointStays: a run continues if an old checkpoint cannot be removed, and says so.
func TestOldCheckpointStays(t *testing.T) {
	cfg := tinyConfig(t, textData(t))
	for _, blocking := range []bool{false, true} {
		out := t.TempDir()
		require.NoError(t, os.MkdirAll(filepath.Join(out, "ckpt", "step-00000001", "manifest.json", "x"), 0o755))
		r, log := train(t, cfg, planOf(2, 1, 1), RunOptions{Out: out, Steps: 3, Blocking: blocking})
		require.Equal(t, filepath.Join(out, "ckpt", "step-00000003"), r.Checkpoint)
		require.Contains(t, log, "saving checkpoint to "+r.Checkpoint+"\ncheckpoint: old ones are not removed: remove "+out)
	}
}

// TestDiverged: a loss that is not finite stops the run, and the checkpoint from before is
// unchanged.
func TestDiverged(t *testing.T) {
	dir := textData(t)
	cfg := tinyConfig(t, dir)
	out := t.TempDir()
	first, _ := train(t, cfg, planOf(1, 1, 1), RunOptions{Out: out, Steps: 6})
	before := contents(t, out)

	wild := tinyConfig(t, dir, "optimizer.learning_rate=1e38", "optimizer.min_lr=1e37", "optimizer.grad_clip=0")
	_, err := newJob(t, wild, planOf(1, 1, 1)).Run(t.Context(), RunOptions{Out: out, Resume: true})
	var diverged *DivergedError
	require.ErrorAs(t, err, &diverged)
	require.Equal(t, 7, diverged.Iter, "one after the update that went wild")
	require.Equal(t, "loss", diverged.Quantity)
	require.ErrorContains(t, err, first.Checkpoint)
	require.Equal(t, before, contents(t, out))

	// A gradient can overflow even if the loss does not.
	file := filepath.Join(t.TempDir(), "large.safetensors")
	require.NoError(t, checkpoint.ExportWeights(file, large{first.Checkpoint, t}, cfg.Model, gpt.NanoGPT))
	_, err = newJob(t, cfg, planOf(1, 1, 1)).Run(t.Context(), RunOptions{InitFrom: file})
	require.ErrorAs(t, err, &diverged)
	require.Equal(t, "grad_norm", diverged.Quantity)
	require.Zero(t, diverged.Iter)
}

// large reads a checkpoint with much too large weights of the final norm.
type large struct {
	dir string
	t   *testing.T
}

func (l large) Read(name string, dtype ir.DType, slab ir.Slab, dst []byte) error {
	c, err := checkpoint.Open(l.dir)
	require.NoError(l.t, err)
	defer c.Close()
	if name != "ln_f.weight" {
		return c.Read(name, dtype, slab, dst)
	}
	for i := 0; i < len(dst); i += 4 {
		binary.LittleEndian.PutUint32(dst[i:], math.Float32bits(1e28))
	}
	return nil
}

// TestStepIsTheGraph: the losses and gradient norms of Job.Step are those of the float64
// interpreter on the sampler's batches. So seed, step, learning rate and the weight of a target are
// fed as the graph expects.
func TestStepIsTheGraph(t *testing.T) {
	cfg := tinyConfig(t, textData(t), "model.dropout=0.3")
	j := newJob(t, cfg, planOf(2, 2, 1))
	require.NoError(t, j.Init())
	B, T := cfg.Batch.Global, cfg.Model.BlockSize
	g, err := cfg.TrainStep()
	require.NoError(t, err)
	state := map[string]interp.Tensor{}
	for _, p := range g.Params() {
		x := interp.Zeros(p.Type)
		attr := p.Def.Attr.(ir.ParamAttr)
		key := philox.Key{Seed: 1337, Op: philox.OpKey(p.Name())}
		for i := range x.F {
			switch attr.Init {
			case ir.InitOnes:
				x.F[i] = 1
			case ir.InitNormal:
				x.F[i] = float64(float32(attr.Std * key.Normal(uint64(i))))
			}
		}
		state[p.Name()] = x
	}
	for it := range 4 {
		feeds := maps.Clone(state)
		ids, targets := make([]int32, B*T), make([]int32, B*T)
		require.NoError(t, j.bins.Train.Fill(ids, targets, j.samplers[trainStream].Batch(it)))
		feeds["ids"], feeds["targets"] = interp.Ints(ids, B, T), interp.Ints(targets, B, T)
		feeds["positions"] = interp.Ints(j.batch.positions, T)
		feeds["seed"], feeds["step"] = interp.IntScalar(1337), interp.IntScalar(int32(it))
		feeds["lr"], feeds["loss_weight"] = interp.Scalar(cfg.Optimizer.LR(it)), interp.Scalar(1/float64(B*T))
		want, err := interp.Run(g, feeds, interp.Options{})
		require.NoError(t, err)
		state = want.State
		got, err := j.Step(t.Context(), it)
		require.NoError(t, err)
		require.InDelta(t, want.Outputs["loss"].F[0], got.Loss, 1e-5, "iteration %d", it)
		require.InEpsilon(t, want.Outputs["grad_norm"].F[0], got.GradNorm, 1e-4, "iteration %d", it)
	}
}

// TestMFU: MFU is that of the whole job: all ranks' sequences, over all ranks' peak.
func TestMFU(t *testing.T) {
	cfg := tinyConfig(t, textData(t))
	out := t.TempDir()
	_, log := train(t, cfg, planOf(2, 2, 1), RunOptions{Out: out, Steps: 8, PeakFLOPS: 1e9})
	require.Contains(t, log, "mfu is of 4 x 1e+09 FLOP/s\n")
	steps, _ := readMetrics(t, out)
	require.Equal(t, -1.0, steps[4].MFU)
	now := func(it int) float64 {
		return float64(cfg.Model.FLOPsPerToken()*7*9) / (steps[it].TimeMS / 1e3) / 4e9
	}
	require.InEpsilon(t, now(5), steps[5].MFU, 1e-9)
	require.InEpsilon(t, 0.9*now(5)+0.1*now(6), steps[6].MFU, 1e-9)
	require.InEpsilon(t, 7*9/(steps[6].TimeMS/1e3), steps[6].TokensPerS, 1e-9)

	gpt2, err := gpt.Preset("gpt2")
	require.NoError(t, err)
	gpt2.Bias = false
	require.EqualValues(t, 875062886400, gpt2.FLOPsPerToken()*1024, "nanoGPT's notebook")
}

// TestInitFrom: a run begins with the weights of another run, or of a file, and fresh moments. With
// decay_lr off the learning rate is constant.
func TestInitFrom(t *testing.T) {
	cfg := tinyConfig(t, textData(t), "train.max_iters=30")
	out := t.TempDir()
	train(t, cfg, planOf(1, 2, 1), RunOptions{Out: out})
	c, err := checkpoint.Open(out)
	require.NoError(t, err)
	defer c.Close()
	file := filepath.Join(t.TempDir(), "model.safetensors")
	require.NoError(t, checkpoint.ExportWeights(file, c, cfg.Model, gpt.GPT2))

	other := tinyConfig(t, textData(t), "optimizer.decay_lr=false", "optimizer.learning_rate=3e-3", "train.seed=7")
	var losses []Losses
	for _, from := range []string{out, file} {
		dir := t.TempDir()
		r, _ := train(t, other, planOf(2, 1, 1), RunOptions{Out: dir, InitFrom: from, Steps: 11})
		steps, evals := readMetrics(t, dir)
		require.Less(t, evals[0].ValLoss, float32(3.6), "begins below ln 65")
		require.Less(t, evals[10].TrainLoss, evals[0].TrainLoss)
		for _, s := range steps {
			require.Equal(t, 3e-3, s.LR)
		}
		losses = append(losses, r.Last)
	}
	require.Equal(t, losses[0], losses[1])

	shorter := tinyConfig(t, textData(t), fmt.Sprint("model.block_size=", cfg.Model.BlockSize/2))
	losses = nil
	for _, from := range []string{out, file} {
		r, _ := train(t, shorter, planOf(1, 2, 1), RunOptions{InitFrom: from, Steps: 1})
		losses = append(losses, r.Last)
	}
	require.Equal(t, losses[0], losses[1], "with the first positions")
	longer := tinyConfig(t, textData(t), fmt.Sprint("model.block_size=", cfg.Model.BlockSize+1))
	_, err = newJob(t, longer, planOf(1, 1, 1)).Run(t.Context(), RunOptions{InitFrom: out, Steps: 1})
	require.ErrorContains(t, err, fmt.Sprintf("its model.block_size is %d, not %d", cfg.Model.BlockSize, cfg.Model.BlockSize+1))
}

func TestRefusals(t *testing.T) {
	dir := textData(t)
	cfg := tinyConfig(t, dir)
	empty := t.TempDir()
	wide := t.TempDir()
	train(t, tinyConfig(t, dir, "model.n_embd=24"), planOf(1, 1, 1), RunOptions{Out: wide, Steps: 1})
	weights, link := filepath.Join(empty, "w.safetensors"), filepath.Join(empty, "link")
	require.NoError(t, safetensors.WriteFile(weights, nil))
	require.NoError(t, os.Symlink(wide, link))
	for name, test := range map[string]struct {
		opts RunOptions
		want string
	}{
		"negative steps":          {RunOptions{Steps: -1}, "steps: is -1"},
		"expected of none":        {RunOptions{Expected: []float64{0}}, "expected: times are [0], want more than 0"},
		"expected of others":      {RunOptions{Expected: []float64{1, 2}}, "expected: has times of 2 ranks, there are 1"},
		"resume without a place":  {RunOptions{Resume: true}, "resume: needs the directory"},
		"resume and init":         {RunOptions{Out: empty, Resume: true, InitFrom: wide}, "resume: cannot be used with init-from"},
		"nothing to resume":       {RunOptions{Out: empty, Resume: true}, "holds no checkpoint"},
		"another model":           {RunOptions{Out: wide, Resume: true}, "step-00000001 holds another model: its model.n_embd is 24, not 20"},
		"init from nothing":       {RunOptions{InitFrom: filepath.Join(empty, "none")}, "init-from: is neither scratch, nor a directory with a checkpoint, nor a file; nothing is downloaded, and a run goes on where it stopped with --resume"},
		"init from another model": {RunOptions{InitFrom: wide}, "init-from: " + wide + "/ckpt/step-00000001 holds another model: its model.n_embd is 24, not 20"},
		"init from itself":        {RunOptions{Out: link, InitFrom: wide}, wide + "/ckpt/step-00000001 is in the directory of this run, whose checkpoints would replace it"},
		"init from an empty file": {RunOptions{InitFrom: weights}, `tensor "wte.weight": is missing`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := newJob(t, cfg, planOf(1, 1, 1)).Run(t.Context(), test.opts)
			require.ErrorContains(t, err, test.want)
		})
	}

	_, err := NewJob(tinyConfig(t, dir, "model.vocab_size=12"), planOf(1, 1, 1), JobOptions{})
	require.ErrorContains(t, err, "is not below vocab_size 12")
	_, err = NewJob(tinyConfig(t, dir, "train.seed=3000000000"), planOf(1, 1, 1), JobOptions{})
	require.ErrorContains(t, err, "train.seed: is 3000000000")
	_, err = NewJob(cfg, planOf(8, 1, 1), JobOptions{})
	require.ErrorContains(t, err, "cannot share a global batch of 7")
	var bad *config.Error
	_, err = NewJob(tinyConfig(t, dir, "train.eval_iters=0"), planOf(1, 1, 1), JobOptions{})
	require.ErrorAs(t, err, &bad)
}

// TestOtherModelOfTheSameTensors: a checkpoint of another model is refused even if its tensors
// would fit the plan's model, because nobody has trained the result. Dropout is not part of a
// model.
func TestOtherModelOfTheSameTensors(t *testing.T) {
	dir := textData(t)
	out := t.TempDir()
	train(t, tinyConfig(t, dir, "model.ffn_hidden=80"), planOf(1, 1, 1), RunOptions{Out: out, Steps: 1})
	ck, err := checkpoint.Open(out)
	require.NoError(t, err)
	defer ck.Close()
	one := planOf(1, 1, 1)
	one.Stages[0].Last = 1
	for set, want := range map[string]string{
		"model.n_layer=1":            "model.n_layer is 2, not 1",
		"model.bias=false":           "model.bias is true, not false",
		"model.activation=gelu_tanh": "model.activation is gelu, not gelu_tanh",
		"model.norm=rmsnorm":         "model.norm is layernorm, not rmsnorm",
		"model.dropout=0.5":          "",
		"model.ffn_hidden=0":         "",
	} {
		t.Run(set, func(t *testing.T) {
			cfg, plan := tinyConfig(t, dir, set), planOf(1, 1, 1)
			if cfg.Model.NLayer == 1 {
				plan = one
			}
			_, resumed := newJob(t, cfg, plan).Run(t.Context(), RunOptions{Out: out, Resume: true, Steps: 1})
			_, begun := newJob(t, cfg, plan).Run(t.Context(), RunOptions{InitFrom: out, Steps: 1})
			_, cut := Reshard(ck, cfg, plan, t.TempDir())
			for what, err := range map[string]error{"resume": resumed, "init-from": begun, "reshard": cut} {
				if want == "" {
					require.NoError(t, err, what)
				} else {
					require.ErrorContains(t, err, what+": "+ck.Dir+" holds another model: its "+want)
				}
			}
		})
	}
}

// TestReshardFiles: a checkpoint that is cut again for a plan has the files that its ranks would
// have saved, and still says under which settings it was made, so that a run with others tells them.
func TestReshardFiles(t *testing.T) {
	dir := textData(t)
	cfg := tinyConfig(t, dir)
	from := t.TempDir()
	train(t, cfg, planOf(2, 2, 1), RunOptions{Out: from, Steps: 3})
	c, err := checkpoint.Open(from)
	require.NoError(t, err)
	defer c.Close()
	to, want := t.TempDir(), t.TempDir()
	plan := planOf(1, 3, 2)
	_, err = Reshard(c, tinyConfig(t, dir, "optimizer.learning_rate=2e-2"), plan, to)
	require.NoError(t, err)
	got, err := checkpoint.Open(to)
	require.NoError(t, err)
	defer got.Close()
	require.Len(t, got.Files, 6)

	j := newJob(t, cfg, plan)
	require.NoError(t, j.Load(c, true))
	snap, err := j.Snapshot(3)
	require.NoError(t, err)
	snap.BestVal, snap.BestStep = c.BestVal, c.BestStep
	_, err = checkpoint.Save(want, snap, checkpoint.Retention{})
	require.NoError(t, err)
	saved, err := checkpoint.Open(want)
	require.NoError(t, err)
	defer saved.Close()
	require.Equal(t, saved.Manifest, got.Manifest)
}
