package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"slices"

	"github.com/autopar/autopar/checkpoint"
	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/data"
	"github.com/autopar/autopar/runtime"
)

// Checkpoints of a run: when it saves, in the foreground or background, and how it resumes, from
// disk or from the memory that an earlier start of the same job left on its machines.

// openCheckpoints prepares saving in the background, unless that is not wanted or nothing is saved.
func (r *run) openCheckpoints() {
	r.opts.Keep.New = !r.opts.Resume
	if r.opts.Out == "" || r.opts.Blocking || r.Config.Train.EvalOnly {
		return
	}
	r.memory = checkpoint.NewMemory(r.opts.Memory)
	r.background = &checkpoint.Background{Dir: r.opts.Out, Keep: r.opts.Keep, Memory: r.memory, Patience: r.exec.Timeout(), Done: r.wrote}
}

func (r *run) closeCheckpoints() error {
	if r.background == nil {
		return nil
	}
	return r.background.Close()
}

// reserveMemory allocates the memory for the copy that checkpoints are written from, and reports
// its size.
func (r *run) reserveMemory() error {
	if r.background == nil || r.result.Steps >= r.last {
		return nil
	}
	snap, err := r.Snapshot(0)
	if err != nil {
		return err
	}
	bytes, err := r.memory.Reserve(snap)
	if err != nil {
		return fmt.Errorf("train: the copy of what checkpoints save, which a blocking save does without: %w", err)
	}
	r.printf("checkpoints: written while training goes on, from a copy of %.1f MiB in host memory\n", float64(bytes)/(1<<20))
	return nil
}

// wrote records that a checkpoint is on disk. stale says why old ones could not be removed, which
// does not end the run.
func (r *run) wrote(_ int, dir string, stale error) {
	r.result.Checkpoint = dir
	r.opts.Keep.New, r.opts.Keep.From = false, 0
	r.retain()
	r.printf("saving checkpoint to %s\n", dir)
	if stale != nil {
		r.printf("%v\n", stale)
	}
}

// retain tells who writes in the background which checkpoints are kept.
func (r *run) retain() {
	if r.background != nil {
		r.background.Keep = r.opts.Keep
	}
}

// stopped saves when the run stops before its end. If a new run has not saved before, the checkpoints
// of an earlier run stay: whoever forgets to resume that one and interrupts this one does not lose them.
func (r *run) stopped(ctx context.Context) error {
	if err := r.waitForCheckpoint(); err != nil {
		return err
	}
	r.opts.Keep.Spare = r.opts.Keep.New
	r.retain()
	if err := r.saveAndWait(ctx); err != nil || !r.opts.Keep.Spare || r.result.Checkpoint == "" {
		return err
	}
	if other := checkpoint.Beside(r.result.Checkpoint); other != "" {
		r.printf("%s, of an earlier run, is still there: to go back to it write its name to %s\n", other, filepath.Join(r.opts.Out, checkpoint.LatestFile))
	}
	return nil
}

// pollCheckpoints returns the error of a checkpoint that failed. It does not wait for one that is
// being written.
func (r *run) pollCheckpoints() error {
	if r.background == nil {
		return nil
	}
	return r.background.Poll()
}

// waitForCheckpoint waits until everything saved is on disk.
func (r *run) waitForCheckpoint() error {
	if r.background == nil {
		return nil
	}
	return r.background.Wait()
}

// save saves the current state, unless it is saved already, there is no directory, or no update was
// made. In the background it may still be written when save returns.
func (r *run) save(ctx context.Context) error {
	if err := r.flush(ctx, 0); err != nil {
		return err
	}
	step := r.result.Steps
	if r.opts.Out == "" || step == 0 || r.saved == step {
		return nil
	}
	snap, err := r.snapshot(step)
	if err != nil {
		return err
	}
	if r.background != nil {
		err = r.background.Save(snap)
	} else {
		var dir string
		if dir, err = checkpoint.Save(r.opts.Out, snap, r.opts.Keep); dir != "" {
			r.wrote(step, dir, err)
			err = nil
		}
	}
	if err == nil {
		r.saved = step
	}
	return err
}

func (r *run) saveAndWait(ctx context.Context) error {
	if err := r.save(ctx); err != nil {
		return err
	}
	return r.waitForCheckpoint()
}

// snapshot describes the state of the run.
func (r *run) snapshot(step int) (checkpoint.Snapshot, error) {
	snap, err := r.Snapshot(step)
	if err == nil && !math.IsInf(float64(r.result.BestVal), 0) {
		best := r.result.BestVal
		snap.BestVal, snap.BestStep = &best, r.bestStep
	}
	return snap, err
}

// resume continues from the newest checkpoint on disk.
func (r *run) resume(ctx context.Context) error {
	c, err := checkpoint.Open(r.opts.Out)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := r.sameSource(ctx, c.Dir, sumOf(c)); err != nil {
		return err
	}
	was, err := resumes(c, r.Config.Model, "resume")
	if err != nil {
		return err
	}
	for _, rank := range r.exec.Here() {
		for _, s := range runtime.Shards(r.Train, rank) {
			if err := c.CheckType(s.Name, s.Type.DType); err != nil {
				return err
			}
		}
	}
	others, err := r.otherData(c, was)
	if err != nil {
		return err
	}
	if err := r.Load(c, true); err != nil {
		return err
	}
	r.result.Steps, r.result.Checkpoint, r.saved = c.Step, c.Dir, c.Step
	r.opts.Keep.From = c.Step
	r.retain()
	if _, other := others[data.ValFile]; c.BestVal != nil && !other {
		r.result.BestVal, r.bestStep = *c.BestVal, c.BestStep
	}
	r.printf("resuming at iteration %d from %s\n", c.Step, c.Dir)
	for _, change := range r.Config.Changed(was) {
		r.printf("changed since: %s\n", change)
	}
	if text := passedOver(was, r.Config, c.Step); text != "" {
		r.printf("%s\n", text)
	}
	if !math.IsInf(float64(r.result.BestVal), 1) && otherEvaluation(was, r.Config) {
		r.printf("the best validation loss stays %.4f, of step %d, on other batches of the same data\n", r.result.BestVal, r.bestStep)
	}
	for _, file := range slices.Sorted(maps.Keys(others)) {
		r.printf("changed since: %s was %s, is %s\n", file, others[file], r.contents()[file])
	}
	return nil
}

// passedOver says which sequences a run that continues with other batches leaves out or draws again, or returns "" for none: a batch
// follows from the step, its size, the seed and the length of a sequence, not from what was drawn before. Sequences that are drawn
// with replacement have no order to be kept.
func passedOver(was, is *config.Config, step int) string {
	const once = "without_replacement"
	before, now := step*was.Batch.Global, step*is.Batch.Global
	what := "left out"
	if now < before {
		what = "drawn again"
	}
	switch {
	case step == 0 || was.Data.Sampling != once || is.Data.Sampling != once:
		return ""
	case was.Model.BlockSize != is.Model.BlockSize || was.Train.Seed != is.Train.Seed:
		return fmt.Sprintf("data.sampling: with model.block_size %d and train.seed %d, epochs have other sequences, in another order: of the text of this one some is left out, some drawn again",
			is.Model.BlockSize, is.Train.Seed)
	case before == now:
		return ""
	}
	return fmt.Sprintf("data.sampling: with batch.global %d, the run goes on at sequence %s of its epochs, not %s: those between are %s",
		is.Batch.Global, grouped(int64(now)), grouped(int64(before)), what)
}

// otherEvaluation reports whether a run that continues draws other batches of its data to validate with. The best loss so
// far then counts all the same, as in nanoGPT: to forget it would be to let go of the checkpoint that it is of.
func otherEvaluation(was, is *config.Config) bool {
	return was.Train.Seed != is.Train.Seed || was.Train.EvalIters != is.Train.EvalIters || was.Batch.Global != is.Batch.Global ||
		was.Model.BlockSize != is.Model.BlockSize
}

// otherData lists the data files whose contents differ from those of the checkpoint's run, with
// what they were. If a file was replaced in the same directory, that is an error, because nothing
// says that it is meant to be other data: the sampler would draw other sequences, and the best
// validation loss would be that of another text. Checkpoints of older versions do not say what data
// they had.
func (r *run) otherData(c *checkpoint.Checkpoint, was *config.Config) (map[string]string, error) {
	others := map[string]string{}
	for file, is := range r.contents() {
		if had, told := c.Data[file]; told && had != is {
			others[file] = fmt.Sprintf("%.60s", had)
		}
	}
	dir := r.Config.Data.Dir
	if len(others) > 0 && filepath.Clean(was.Data.Dir) == filepath.Clean(dir) {
		file := slices.Sorted(maps.Keys(others))[0]
		return nil, &InputError{What: "resume", Msg: fmt.Sprintf("%s has other data than the run of %s: %s, not %q; to go on with other data have it in a directory of its own, as data.dir, or begin with these weights anew, as --init-from",
			filepath.Join(dir, file), c.Dir, r.contents()[file], others[file])}
	}
	return others, nil
}

// found is what a process finds when a run begins: in its memory, on disk, and how much memory
// there is.
type found struct {
	room
	Step int    // step of the state in memory that it can continue from, or -1
	Why  string // what is wrong with the state in memory
	Disk int    // step of the newest checkpoint on disk, or -1
}

// resumeFromMemory continues from the state that an earlier start of the job left in memory. It
// does so only if every process has the same step of this very run and nothing newer is on disk. It
// then writes what is not on disk yet.
func (r *run) resumeFromMemory(ctx context.Context) (bool, error) {
	snap, err := r.Snapshot(0)
	if err != nil {
		return false, err
	}
	mine := found{Step: -1, Disk: -1}
	var held *checkpoint.Held
	if r.background != nil && r.opts.Memory != nil {
		if held, err = r.memory.Held(); err != nil {
			mine.Why = err.Error()
		} else if held != nil && held.Fits(snap) {
			mine.Step = held.Step
		}
	}
	if mine.room, err = r.findRoom(snap); err != nil {
		return false, err
	}
	dir := ""
	if r.opts.Resume {
		path, step, err := checkpoint.Newest(r.opts.Out)
		if err == nil {
			dir, mine.Disk = path, step
		} else if !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	all, err := r.tell(ctx, mine)
	if err != nil {
		return false, err
	}
	for rank, other := range all {
		if other.Why != "" {
			r.printf("what rank %d has in memory is not whole: %s\n", rank, other.Why)
		}
	}
	if err := r.shareRoom(all); err != nil {
		return false, err
	}
	// All processes go by what rank 0 sees on disk.
	step, disk := all[0].Step, all[0].Disk
	for _, other := range all {
		if other.Step != step || step < max(1, disk) {
			return false, sameOnDisk(all)
		}
	}
	if err := r.Load(held, true); err != nil {
		return false, err
	}
	r.result.Steps, r.saved = step, step
	if r.opts.Resume {
		r.opts.Keep.From = step
		r.retain()
	}
	if held.BestVal != nil {
		r.result.BestVal, r.bestStep = *held.BestVal, held.BestStep
	}
	r.printf("resuming at iteration %d from memory\n", step)
	if step == disk {
		r.result.Checkpoint = dir
	} else {
		r.background.Resume(held, snap)
	}
	return true, nil
}

// sameOnDisk returns an error if a process would resume from another checkpoint than rank 0.
func sameOnDisk(all []found) error {
	for rank, other := range all {
		if other.Disk != all[0].Disk {
			return fmt.Errorf("train: resume: the newest checkpoint that rank %d finds is of step %d, that of rank 0 of step %d (-1 is none): all processes need one output directory",
				rank, other.Disk, all[0].Disk)
		}
	}
	return nil
}

// tell returns what all processes have found, by rank.
func (r *run) tell(ctx context.Context, mine found) ([]found, error) {
	text, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	texts, err := r.gather(ctx, text)
	if err != nil {
		return nil, fmt.Errorf("train: what the processes have in memory: %w", err)
	}
	all := make([]found, len(texts))
	for rank, text := range texts {
		if err := json.Unmarshal(text, &all[rank]); err != nil {
			return nil, fmt.Errorf("train: what rank %d has in memory: %w", rank, err)
		}
	}
	return all, nil
}
