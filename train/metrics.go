package train

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/autopar/autopar/infile"
	"github.com/autopar/autopar/wholefile"
)

// MetricsFile is the name of the metrics file in the directory of a run. It has one JSON object per
// line: a StepMetrics for every logged iteration and an EvalMetrics for every evaluation. A float32
// is printed so that it parses back to the same bits.
const MetricsFile = "metrics.jsonl"

// StepMetrics is one logged iteration.
type StepMetrics struct {
	Iter        int     `json:"iter"`
	Loss        float32 `json:"loss"`
	LR          float64 `json:"lr"`
	GradNorm    float32 `json:"grad_norm"` // before clipping; 0 in a step that the loss scaler skipped
	TimeMS      float64 `json:"time_ms"`
	MeanMS      float64 `json:"mean_ms"`      // of the updates since the last logged iteration, this one included
	TokensPerS  float64 `json:"tokens_per_s"` // of all ranks
	MFU         float64 `json:"mfu"`          // a fraction of all ranks' peak; -1 in the first iterations
	PeakBytes   int64   `json:"peak_bytes"`   // the largest arena of a rank
	CommBytes   int64   `json:"comm_bytes"`   // of this step, on all ranks
	Collectives int     `json:"collectives"`  // of this step, on all ranks

	// In a float16 run: the scale of the loss after this step, and how many steps were skipped so
	// far.
	LossScale    float32 `json:"loss_scale,omitempty"`
	SkippedSteps int     `json:"skipped_steps,omitempty"`

	// In a run of several processes, if there are stragglers among the steps since the last look:
	// the slowest of them, and how many times as long as at the median speed it computed.
	Straggler       *int    `json:"straggler,omitempty"`
	StragglerFactor float64 `json:"straggler_factor,omitempty"`
}

// EvalMetrics is one evaluation.
type EvalMetrics struct {
	Iter      int     `json:"iter"`
	TrainLoss float32 `json:"train_loss"`
	ValLoss   float32 `json:"val_loss"`
}

// metricsLog appends to metrics.jsonl and to the events file of TensorBoard. A nil *metricsLog
// writes nothing.
type metricsLog struct {
	f      *os.File
	events *eventLog
}

// openMetrics opens the metrics of a run that begins at iteration from. Records of later iterations
// belong to a run that this one replaces, and are cut off. While the files are open no other run
// can write to the directory.
func openMetrics(dir string, from int) (*metricsLog, error) {
	if why := wholefile.Obstacle(dir); why != "" {
		return nil, &InputError{What: "out", Msg: fmt.Sprintf("%s cannot be a directory: %s", dir, why)}
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("train: %w", err)
	}
	f, _, err := openLog(dir, MetricsFile, func(f *bufio.Reader) (int64, error) { return metricsBefore(f, from) })
	if err != nil {
		return nil, err
	}
	events, err := openEvents(dir, from)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &metricsLog{f, events}, nil
}

// Writing reports whether a run is writing to a directory.
func Writing(dir string) bool {
	f, err := infile.Open(filepath.Join(dir, MetricsFile))
	if err != nil {
		return false
	}
	defer f.Close()
	return taken(f, false)
}

// UpdateTime returns the mean time, in seconds, of the updates that the metrics of a directory list from an iteration on,
// or 0 if it lists none, or has no metrics: a run that failed before it trained has written none.
func UpdateTime(dir string, from int) (float64, error) {
	f, err := infile.Open(filepath.Join(dir, MetricsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("train: %w", err)
	}
	defer f.Close()
	sum, last := 0.0, from-1 // the time up to the last iteration that is listed
	for lines := bufio.NewScanner(f); ; {
		if !lines.Scan() {
			if err := lines.Err(); err != nil {
				return 0, fmt.Errorf("train: %s: %w", f.Name(), err)
			}
			return sum / 1e3 / float64(max(1, last+1-from)), nil
		}
		var step StepMetrics // of an evaluation it has no time
		if json.Unmarshal(lines.Bytes(), &step) == nil && step.Iter > last && step.TimeMS > 0 {
			sum += cmp.Or(step.MeanMS, step.TimeMS) * float64(step.Iter-last) // older versions have written no mean
			last = step.Iter
		}
	}
}

// asks is how long a process that only asks, with [Writing], may keep a run from holding a file.
const asks = 200 * time.Millisecond

// openLog opens a file that a run appends to, truncated to the bytes that before returns. If
// another run has it open, the error is an [*InputError].
func openLog(dir, name string, before func(*bufio.Reader) (int64, error)) (f *os.File, keep int64, err error) {
	path := filepath.Join(dir, name)
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() { // opening a pipe would block
		return nil, 0, &InputError{What: "out", Msg: path + " is not a regular file"}
	}
	if f, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o666); err != nil {
		return nil, 0, fmt.Errorf("train: %w", err)
	}
	for asked := time.Now(); taken(f, true); time.Sleep(time.Millisecond) {
		if time.Since(asked) > asks {
			return nil, 0, errors.Join(&InputError{What: "out", Msg: fmt.Sprintf("another run is writing to %s; wait for its end, or name another directory", dir)}, f.Close())
		}
	}
	if keep, err = before(bufio.NewReader(f)); err == nil {
		err = f.Truncate(keep)
	}
	if err == nil {
		_, err = f.Seek(keep, io.SeekStart)
	}
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("train: %w", err), f.Close())
	}
	return f, keep, nil
}

// metricsBefore returns how many bytes of a metrics.jsonl come before those of iteration from, and
// end with a whole line. A line that is no record, as one that somebody has added or that a disk has
// damaged, stays where it is if records follow that stay.
func metricsBefore(r *bufio.Reader, from int) (keep int64, err error) {
	for read := int64(0); ; {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return keep, nil // a line without newline was being written
		}
		if err != nil {
			return 0, err
		}
		read += int64(len(line))
		var at struct {
			Iter *int `json:"iter"`
		}
		if json.Unmarshal(line, &at) != nil || at.Iter == nil {
			continue
		}
		if *at.Iter >= from {
			return keep, nil
		}
		keep = read
	}
}

func (m *metricsLog) write(record any) error {
	if m == nil {
		return nil
	}
	line, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("train: %s: %w", MetricsFile, err)
	}
	if _, err := m.f.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("train: %w", err)
	}
	if err := m.events.write(line); err != nil {
		return fmt.Errorf("train: %w", err)
	}
	return nil
}

// moved lists the files that are not at their names any more.
func (m *metricsLog) moved() (names []string) {
	if m == nil {
		return nil
	}
	for _, f := range []*os.File{m.f, m.events.f} {
		written, err := f.Stat()
		if there, gone := os.Stat(f.Name()); err == nil && (gone != nil || !os.SameFile(written, there)) {
			names = append(names, f.Name())
		}
	}
	return names
}

func (m *metricsLog) close() error {
	if m == nil {
		return nil
	}
	return errors.Join(m.f.Close(), m.events.f.Close())
}
