package train

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/autopar/autopar/infile"
)

// MetricsFile is the name of the metrics in the directory of a run: one JSON object per line, a StepMetrics for every
// logged iteration and an EvalMetrics for every evaluation. A float32 is printed so that it parses back to the same bits.
const MetricsFile = "metrics.jsonl"

// StepMetrics is one logged iteration.
type StepMetrics struct {
	Iter        int     `json:"iter"`
	Loss        float32 `json:"loss"`
	LR          float64 `json:"lr"`
	GradNorm    float32 `json:"grad_norm"` // before clipping; 0 in a step that the loss scaler skipped
	TimeMS      float64 `json:"time_ms"`
	TokensPerS  float64 `json:"tokens_per_s"` // of all ranks
	MFU         float64 `json:"mfu"`          // a fraction of all ranks' peak; -1 in the first iterations
	PeakBytes   int64   `json:"peak_bytes"`   // the largest arena of a rank
	CommBytes   int64   `json:"comm_bytes"`   // of this step, on all ranks
	Collectives int     `json:"collectives"`  // of this step, on all ranks

	// Of a float16 run: the scale of the loss after this step, and the steps skipped so far.
	LossScale    float32 `json:"loss_scale,omitempty"`
	SkippedSteps int     `json:"skipped_steps,omitempty"`

	// The rank that computed for longest beside the median since the last look, and how many times as long, if it is a
	// straggler; in runs of several processes.
	Straggler       *int    `json:"straggler,omitempty"`
	StragglerFactor float64 `json:"straggler_factor,omitempty"`
}

// EvalMetrics is one evaluation.
type EvalMetrics struct {
	Iter      int     `json:"iter"`
	TrainLoss float32 `json:"train_loss"`
	ValLoss   float32 `json:"val_loss"`
}

// metricsLog appends to metrics.jsonl and to the events of TensorBoard. A nil *metricsLog writes nothing.
type metricsLog struct {
	f      *os.File
	events *eventLog
}

// openMetrics opens the metrics of a run that begins at iteration from. What the files have of later iterations belongs to
// a run that this one replaces, and is cut off. While they are open no other run writes to the directory.
func openMetrics(dir string, from int) (*metricsLog, error) {
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
	return taken(f)
}

// UpdateTime is the mean time, in seconds, of the updates from an iteration on that the metrics of a directory list; 0 of
// none.
func UpdateTime(dir string, from int) (float64, error) {
	f, err := infile.Open(filepath.Join(dir, MetricsFile))
	if err != nil {
		return 0, fmt.Errorf("train: %w", err)
	}
	defer f.Close()
	sum, n := 0.0, 0
	for lines := bufio.NewScanner(f); ; {
		if !lines.Scan() {
			if err := lines.Err(); err != nil {
				return 0, fmt.Errorf("train: %s: %w", f.Name(), err)
			}
			return sum / 1e3 / float64(max(1, n)), nil
		}
		var step StepMetrics // of an evaluation it has no time
		if json.Unmarshal(lines.Bytes(), &step) == nil && step.Iter >= from && step.TimeMS > 0 {
			sum += step.TimeMS
			n++
		}
	}
}

// openLog opens a file that a run appends to, cut to as many bytes as stay. A run that has it open is an [*InputError].
func openLog(dir, name string, before func(*bufio.Reader) (int64, error)) (f *os.File, keep int64, err error) {
	path := filepath.Join(dir, name)
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() { // to open a pipe is to wait
		return nil, 0, &InputError{What: "out", Msg: path + " is not a regular file"}
	}
	if f, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o666); err != nil {
		return nil, 0, fmt.Errorf("train: %w", err)
	}
	if taken(f) {
		return nil, 0, errors.Join(&InputError{What: "out", Msg: fmt.Sprintf("another run is writing to %s; wait for its end, or name another directory", dir)}, f.Close())
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

// metricsBefore returns how many bytes of a metrics.jsonl are whole lines of iterations before from.
func metricsBefore(r *bufio.Reader, from int) (keep int64, err error) {
	for {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return keep, nil // what has no newline was being written
		}
		if err != nil {
			return 0, err
		}
		var at struct {
			Iter *int `json:"iter"`
		}
		if json.Unmarshal(line, &at) != nil || at.Iter == nil || *at.Iter >= from {
			return keep, nil
		}
		keep += int64(len(line))
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

func (m *metricsLog) close() error {
	if m == nil {
		return nil
	}
	return errors.Join(m.f.Close(), m.events.f.Close())
}
