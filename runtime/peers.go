// This file is for runs of several processes, one rank in each: they agree on the program when they
// load it, and exchange scalar outputs and counters at the end of every step, over the connections
// of package launch.

package runtime

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"time"

	"github.com/autopar/autopar/codegen"
)

// shared is what the processes of a run have told each other after the last step.
type shared struct {
	counters []Counters      // by rank
	computed []time.Duration // by rank
	stop     bool            // the context of at least one process was cancelled
}

// Cancelled returns [context.Canceled] if the next step must not start. In a run of one process
// that is so when ctx is cancelled. In a run of several it is so when the context of any process
// was cancelled at the end of the last step, so that all of them stop before the same step.
func (e *Executor) Cancelled(ctx context.Context) error {
	switch {
	case e.opts.Peers == nil:
		return ctx.Err()
	case e.shared.stop:
		return context.Canceled
	}
	return nil
}

// share gives all processes the scalar outputs and counters of a step, and whether any is
// cancelled.
func (e *Executor) share(ctx context.Context, p *program) error {
	mine := []byte{0}
	if ctx.Err() != nil {
		mine[0] = 1
	}
	mine, err := binary.Append(mine, binary.LittleEndian, e.here[0].counters.words())
	if err != nil {
		return err
	}
	mine = binary.LittleEndian.AppendUint64(mine, uint64(e.here[0].computed))
	for _, o := range p.scalars {
		if e.local(o.rank) != nil {
			mine = binary.LittleEndian.AppendUint32(mine, math.Float32bits(p.outputs[o.name]))
		}
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.opts.Timeout)
	defer cancel()
	all, err := e.opts.Peers.Gather(bounded, mine)
	if err != nil {
		return fmt.Errorf("the end of the step: %w", err)
	}
	e.shared.counters, e.shared.computed, e.shared.stop = make([]Counters, len(all)), make([]time.Duration, len(all)), false
	const head = 1 + 8*len(counterWords{}) + 8
	for rank, b := range all {
		if len(b) < head {
			return fmt.Errorf("rank %d tells %d bytes of the step, want at least %d", rank, len(b), head)
		}
		e.shared.stop = e.shared.stop || b[0] != 0
		var words counterWords
		if _, err := binary.Decode(b[1:], binary.LittleEndian, &words); err != nil {
			return err
		}
		e.shared.counters[rank] = words.counters()
		e.shared.computed[rank] = time.Duration(binary.LittleEndian.Uint64(b[head-8:]))
		all[rank] = b[head:]
	}
	for _, o := range p.scalars {
		b := all[o.rank]
		if len(b) < 4 {
			return fmt.Errorf("rank %d does not tell output %s", o.rank, o.name)
		}
		p.outputs[o.name], all[o.rank] = math.Float32frombits(binary.LittleEndian.Uint32(b)), b[4:]
	}
	return nil
}

// counterWords are the fields of [Counters] as they are sent.
type counterWords [6]int64

func (c Counters) words() counterWords {
	return counterWords{int64(c.Collectives), c.CollectiveBytes, int64(c.Transfers), c.TransferBytes, int64(c.HostCopies), c.HostBytes}
}

func (w counterWords) counters() Counters {
	return Counters{int(w[0]), w[1], int(w[2]), w[3], int(w[4]), w[5]}
}

// ProgramError says that a process has loaded another program than rank 0.
type ProgramError struct {
	Rank int
	Name string
}

func (e *ProgramError) Error() string {
	return fmt.Sprintf("runtime: rank %d has another program %s than rank 0: all processes need the same plan and the same version of autopar", e.Rank, e.Name)
}

// agree waits until all processes have loaded a program and have arenas for it. It fails with a
// [*ProgramError] if they have loaded different ones.
func (e *Executor) agree(prog *codegen.Program) error {
	if e.opts.Peers == nil {
		return nil
	}
	plan, err := json.Marshal(prog.Plan) // it also says, for one, where in its group each rank is
	if err != nil {
		return err
	}
	h := fnv.New128a()
	fmt.Fprintln(h, prog.Graph.Name, string(plan))
	for _, s := range prog.Stages {
		fmt.Fprintln(h, s.Arena(), s.Host)
		for phase, body := range s.Bodies {
			for i := range body.Instrs {
				in := &body.Instrs[i]
				fmt.Fprintln(h, phase, in.Node.Op, in.Node.Name, in.Node.Attr, in.Results, in.Args)
				for _, v := range in.Node.Results {
					fmt.Fprintln(h, v.Type, v.Spec)
				}
			}
		}
	}
	told := map[*codegen.Task]int{} // alike ranks have the same slice
	for i := range prog.Schedules {
		tasks := prog.Schedules[i].Tasks
		if _, ok := told[&tasks[0]]; !ok {
			told[&tasks[0]] = i
			fmt.Fprintln(h, tasks)
		}
		fmt.Fprintln(h, told[&tasks[0]])
	}
	ctx, cancel := context.WithTimeout(context.Background(), e.opts.Timeout)
	defer cancel()
	all, err := e.opts.Peers.Gather(ctx, h.Sum(nil))
	if err != nil {
		return fmt.Errorf("runtime: loading %s: %w", prog.Graph.Name, err)
	}
	for rank, other := range all {
		if !bytes.Equal(all[0], other) {
			return &ProgramError{rank, prog.Graph.Name}
		}
	}
	return nil
}
