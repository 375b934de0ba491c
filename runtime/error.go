package runtime

import (
	"fmt"
	goruntime "runtime"
	"strconv"
	"strings"
	"time"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
)

// StepError is the first failure of a step, which stopped all ranks.
type StepError struct {
	Rank int
	Step int64 // the program's step input if it has one, else what [Executor.Number] set, else how many steps were run before
	Task codegen.Task
	// Node is the instruction that the rank was running, nil between instructions.
	Node *ir.Node
	Err  error
}

func (e *StepError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "rank %d, step %d, %s", e.Rank, e.Step, e.Task)
	if e.Node != nil {
		fmt.Fprintf(&b, ", %s %s", e.Node.Op, e.Node.Name)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	return b.String()
}

func (e *StepError) Unwrap() error { return e.Err }

// Panicked returns the error for what recover has returned, with the place of the panic. It is for
// goroutines of ranks and streams, where nobody else could recover.
func Panicked(x any) error {
	stack := make([]byte, 4096)
	return fmt.Errorf("panic: %v\n%s", x, stack[:goruntime.Stack(stack, false)])
}

// WaitError says that a device waited too long for other ranks. Any call that waits may return it.
type WaitError struct {
	Ranks []int // waited for
	After time.Duration
}

func (e *WaitError) Error() string {
	names := make([]string, len(e.Ranks))
	for i, r := range e.Ranks {
		names[i] = strconv.Itoa(r)
	}
	return fmt.Sprintf("waited %v for rank %s", e.After, strings.Join(names, ", "))
}

// StreamError is a failure of a collective or transfer on a stream. The rank learns of it when it
// waits for that stream.
type StreamError struct {
	Stream Stream
	Node   *ir.Node
	Err    error
}

func (e *StreamError) Error() string { return fmt.Sprintf("%s %s: %v", e.Node.Op, e.Node.Name, e.Err) }

func (e *StreamError) Unwrap() error { return e.Err }
