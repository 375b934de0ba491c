package checkpoint

import (
	"errors"
	"fmt"
	"time"
)

// Background writes the checkpoints of a run while the run goes on. The run waits only while a
// snapshot is copied to memory, and before that until the previous snapshot is on disk. What is
// written is the same as with [Save].
//
// One goroutine uses it. In a run of several processes all make the same calls.
type Background struct {
	Dir    string // of the run
	Keep   Retention
	Memory *Memory
	// Patience bounds how long writing a snapshot is waited for if it has no bytes. Every 10 MB may
	// take a second more.
	Patience time.Duration

	// Done, if set, is called by the methods below for each checkpoint that is on disk. stale is a
	// [*StaleError] or nil.
	Done func(step int, path string, stale error)

	writing chan written // receives the end of the snapshot that is being written; nil if none is
	step    int          // its step
	bound   time.Duration
}

// written is the result of writing a snapshot.
type written struct {
	path string
	err  error
}

// Save waits until the previous snapshot is written, copies this one, and begins to write it.
func (b *Background) Save(s Snapshot) error {
	if err := b.Wait(); err != nil {
		return err
	}
	copied, err := b.Memory.hold(s)
	if err != nil {
		return fmt.Errorf("checkpoint: step %d: copying it: %w", s.Step, err)
	}
	b.begin(copied)
	return nil
}

// Resume begins to write a snapshot that the memory holds already.
func (b *Background) Resume(h *Held, s Snapshot) { b.begin(h.snapshot(s)) }

func (b *Background) begin(s Snapshot) {
	b.step, b.bound = s.Step, s.bound(b.Patience)
	writing := make(chan written, 1)
	b.writing = writing
	go func() {
		path, err := Save(b.Dir, s, b.Keep)
		writing <- written{path, err}
	}()
}

// Poll returns the error of a snapshot that could not be written. It does not wait.
func (b *Background) Poll() error {
	select {
	case w := <-b.writing:
		return b.end(w)
	default:
		return nil
	}
}

// Wait is Poll after waiting until nothing is being written. The wait is bounded, in parts: while the process is stopped, as by
// ^Z, at most one of them ends.
func (b *Background) Wait() error {
	const parts = 10
	for i := 1; b.writing != nil; i++ {
		select {
		case w := <-b.writing:
			return b.end(w)
		case <-time.After(b.bound / parts):
			if i == parts {
				return fmt.Errorf("checkpoint: step %d is not in %s after %v", b.step, b.Dir, b.bound.Round(time.Millisecond))
			}
		}
	}
	return nil
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

// Close waits, and frees the memory unless a snapshot is still being written from it.
func (b *Background) Close() error {
	err := b.Wait()
	if b.writing == nil {
		err = errors.Join(err, b.Memory.Close())
	}
	return err
}
