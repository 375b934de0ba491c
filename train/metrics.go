package train

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
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

// openMetrics opens the metrics of a run that begins at iteration from. What the file has of later iterations belongs to
// a run that this one replaces, and is cut off.
func openMetrics(dir string, from int) (*metricsLog, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("train: %w", err)
	}
	path := filepath.Join(dir, MetricsFile)
	keep, err := metricsBefore(path, from)
	if err != nil {
		return nil, fmt.Errorf("train: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("train: %w", err)
	}
	if err := f.Truncate(keep); err != nil {
		return nil, errors.Join(fmt.Errorf("train: %w", err), f.Close())
	}
	if _, err := f.Seek(keep, io.SeekStart); err != nil {
		return nil, errors.Join(fmt.Errorf("train: %w", err), f.Close())
	}
	events, err := openEvents(dir, from)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("train: %w", err), f.Close())
	}
	return &metricsLog{f, events}, nil
}

// metricsBefore returns how many bytes of the file are whole lines of iterations before from.
func metricsBefore(path string, from int) (int64, error) {
	f, err := infile.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	keep := int64(0)
	for r := bufio.NewReader(f); ; {
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
