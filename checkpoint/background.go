package checkpoint

import (
	"errors"
	"fmt"
	"time"
)

// Background writes the checkpoints of a run while the run goes on. Only copying a snapshot into memory holds the run up,
// and a snapshot that comes before the one before it is on disk. What is written, and when it counts, is as with [Save].
//
// It is for one goroutine. Of several processes all make the same calls.
type Background struct {
	Dir    string // of the run
	Keep   Retention
	Memory *Memory
	// Patience is how long a snapshot without a byte may take to get to disk. Each 10 MB may take a second more.
	Patience time.Duration

	// Done, when set, is told by the methods below of each checkpoint that is on disk, and of a [*StaleError] or nil.
	Done func(step int, path string, stale error)

	writing chan written // of the snapshot that is on its way; nil when none is
	step    int          // its step
	bound   time.Duration
	begun   time.Time
}

// written is how writing a snapshot has ended.
type written struct {
	path string
	err  error
}

// Save copies a snapshot and begins to write it, when the one before has been written.
func (b *Background) Save(s Snapshot) error {
	if err := b.Wait(); err != nil {
		return err
	}
	copied, err := b.Memory.Hold(s)
	if err != nil {
		return fmt.Errorf("checkpoint: step %d: copying it: %w", s.Step, err)
	}
	b.begin(copied)
	return nil
}

// Resume begins to write a snapshot that the memory holds already.
func (b *Background) Resume(h *Held, s Snapshot) { b.begin(h.Snapshot(s)) }

func (b *Background) begin(s Snapshot) {
	b.step, b.begun, b.bound = s.Step, time.Now(), s.bound(b.Patience)
	writing := make(chan written, 1)
	b.writing = writing
	go func() {
		path, err := Save(b.Dir, s, b.Keep)
		writing <- written{path, err}
	}()
}

// Poll returns why a snapshot could not be written. It does not wait.
func (b *Background) Poll() error {
	select {
	case w := <-b.writing:
		return b.end(w)
	default:
		return nil
	}
}

// Wait is Poll when nothing is on its way any more. It gives up on a disk, or another process, that takes too long.
func (b *Background) Wait() error {
	if b.writing == nil {
		return nil
	}
	late := time.NewTimer(time.Until(b.begun.Add(b.bound)))
	defer late.Stop()
	select {
	case w := <-b.writing:
		return b.end(w)
	case <-late.C:
		return fmt.Errorf("checkpoint: step %d is not in %s after %v", b.step, b.Dir, b.bound.Round(time.Millisecond))
	}
}

func (b *Background) end(w written) error {
	b.writing = nil
	if w.path == "" {
		return w.err
	}
	if b.Done != nil {
		b.Done(b.step, w.path, w.err)
	}
	return nil
}

// Close waits, and gives the memory back if nobody reads it any more.
func (b *Background) Close() error {
	err := b.Wait()
	if b.writing == nil {
		err = errors.Join(err, b.Memory.Close())
	}
	return err
}
