package runtime

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/partition/partitiontest"
)

// idle is a device that is only told what it will do. Its transfers are meetings.
type idle struct{ Device }

func (idle) Alloc(Space, int64) error                 { return nil }
func (idle) Prepare([]*Collective, []*Transfer) error { return nil }
func (idle) Meets() bool                              { return true }
func (idle) Expect(*Transfer) error                   { return nil }
func (idle) Close() error                             { return nil }
func (idle) Join() (bool, error)                      { return false, nil }
func (idle) Check(*Kernel) error                      { return nil }
func (idle) Fuse([]*Kernel, map[*ir.Value]int) error  { return nil }

// loadedOn returns an executor of so many ranks from first on, which has loaded a program and runs nothing.
func loadedOn(t testing.TB, prog *codegen.Program, first, end int) *Executor {
	t.Helper()
	e := &Executor{
		opts: Options{Timeout: time.Hour}, first: first, done: make(chan int, end-first), timer: time.NewTimer(time.Hour),
		programs: map[*codegen.Program]*program{}, groups: map[string]int{}, meets: true,
	}
	for s := range e.events {
		e.events[s] = make([]int64, len(prog.Schedules))
	}
	for r := first; r < end; r++ {
		here := &rank{id: r, exec: e, device: idle{}, jobs: make(chan job, 1), exited: make(chan struct{})}
		e.here = append(e.here, here)
		go here.serve()
	}
	defer func() { require.NoError(t, e.Close()) }()
	require.NoError(t, e.Add(prog))
	return e
}

// mixed draws a program of a few ranks, nil for a plan that is not valid.
func mixed(t *testing.T, rng *rand.Rand) *codegen.Program {
	cfg := gpt.Config{
		NLayer: 8, NHead: 4, NEmbd: 16, BlockSize: 8, VocabSize: 13, Dropout: 0.2 * float64(rng.IntN(2)), Bias: true,
		Activation: gpt.GELU, Norm: gpt.LayerNorm, Position: gpt.Learned, TieEmbeddings: rng.IntN(2) > 0,
	}
	batch := 5 + rng.IntN(20)
	g, err := gpt.TrainStep(cfg, gpt.Optimizer{Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, GradClip: 1}, batch, cfg.BlockSize)
	require.NoError(t, err)
	pp := []int{1, 2, 2, 4}[rng.IntN(4)]
	stages, flag := pp, func() bool { return rng.IntN(2) > 0 }
	p := &partition.Plan{
		DP: 1 + rng.IntN(3), TP: 1 + rng.IntN(2), CP: 1 + rng.IntN(2), MicroBatch: 1 + rng.IntN(3), ZeRO: rng.IntN(4), Placements: partitiontest.Megatron(),
		SequenceParallel: flag(), Overlap: flag(), OverlapTP: flag(), OverlapP2P: flag(), RankOrder: []string{"", "dp-tp"}[rng.IntN(2)],
	}
	if p.TP > 1 && flag() {
		p.TPPieces = 2
	}
	if p.TP > 1 && !p.SequenceParallel {
		p.BatchParallel = flag()
	}
	if pp == 1 {
		p.OverlapP2P = false
	}
	if p.TP == 1 {
		p.SequenceParallel, p.OverlapTP = false, false
	}
	if p.Schedule = []partition.Schedule{partition.GPipe, partition.OneFOneB, partition.ZeroBubble, partition.Interleaved, partition.EagerOneFOneB, partition.EagerZeroBubble}[rng.IntN(6)]; p.Schedule == partition.Interleaved {
		p.Interleave = 2
		stages *= 2
	}
	p.PlanNGPUs = p.DP * p.TP * p.CP * pp
	p.RuntimeNGPUs = p.PlanNGPUs * (1 + rng.IntN(2))
	if p.DP > 1 && flag() {
		p.RuntimeNGPUs = p.PlanNGPUs
		p.BatchShares = slices.Repeat([]int{1}, p.DP)
		p.BatchShares[0] = 4
	}
	for i := range stages {
		st := partition.Stage{First: i * cfg.NLayer / stages, Last: (i + 1) * cfg.NLayer / stages}
		st.Recompute = rng.IntN(1 + st.Last - st.First)
		p.Stages = append(p.Stages, st)
	}
	prog, err := codegen.Compile(g, p, batch, nil)
	if err != nil {
		return nil
	}
	return prog
}

// counted numbers groups and wires as they occur to all ranks, action by action, and counts the events of each.
type counted struct {
	groups map[string]int
	wires  map[wire]int
	events [Host][]int64
	ends   [][]int64 // of the compute stream, at the end of each task of each rank
}

func count(prog *codegen.Program) *counted {
	c := &counted{groups: map[string]int{}, wires: map[wire]int{}}
	for r := range prog.Schedules {
		s := &prog.Schedules[r]
		var events [Host]int64
		var ends []int64
		for _, t := range s.Tasks {
			for _, in := range prog.Stages[s.Stage].Run(t) {
				if !s.Runs(&in, t) || in.Idle() {
					continue
				}
				switch n := in.Node; {
				case n.Op == ir.OpSend:
					numbered(c.wires, wire{n, r, prog.Peer(s, n)})
				case n.Op == ir.OpRecv:
					numbered(c.wires, wire{n.Args[0].Def, prog.Peer(s, n), r})
				case codegen.Collective(n.Op):
					ranks, _ := prog.Group(s, n)
					numbered(c.groups, fmt.Sprint(streamOf(&in), ranks))
				}
				stream := Compute
				switch {
				case in.Async && !in.Fused:
					stream = Communication
				case in.Beside > 0:
					stream = Exchange
				case in.Posted:
					stream = Transfers
				}
				if stream != Compute {
					events[stream]++
					events[Compute]++
				}
			}
			events[Compute]++
			ends = append(ends, events[Compute])
		}
		c.ends = append(c.ends, ends)
		for s, n := range events {
			c.events[s] = append(c.events[s], n)
		}
	}
	return c
}

// after returns the compute event of the peer that a send waits for: the end of the task that frees the place.
func (c *counted) after(prog *codegen.Program, s *codegen.Schedule, t codegen.Task, n *ir.Node) int64 {
	peer := prog.Peer(s, n)
	chunk, room := prog.Stages[prog.Schedules[peer].Stage].RoomFor(n)
	if n.Op == ir.OpRecv || room == 0 || t.MicroBatch < room {
		return 0
	}
	frees := codegen.Task{Phase: codegen.Releases(prog.Plan, true), Chunk: chunk, MicroBatch: t.MicroBatch - room}
	return c.ends[peer][slices.Index(prog.Schedules[peer].Tasks, frees)]
}

func numbered[K comparable](known map[K]int, k K) {
	if _, ok := known[k]; !ok {
		known[k] = len(known)
	}
}

// TestOwnRanks loads random programs in processes for one rank each, and in one for all ranks. All must number groups and wires, and
// count events, as they occur to all ranks; and a rank must have the same actions in both. Every micro-batch has the actions that
// it would have if they were made for it alone, but for where its rows lie in the batch.
func TestOwnRanks(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 5))
	shared, tested := 0, 0
	for tested < 40 {
		prog := mixed(t, rng)
		if prog == nil {
			continue
		}
		tested++
		want := count(prog)
		all := loadedOn(t, prog, 0, len(prog.Schedules))
		for range 4 {
			r := rng.IntN(len(prog.Schedules))
			own := loadedOn(t, prog, r, r+1)
			require.Equal(t, want.groups, own.groups)
			require.Equal(t, len(want.wires), own.wires)
			p := own.programs[prog]
			require.Equal(t, want.events, p.events)
			for other := range p.tasks {
				require.Equal(t, other == r, p.tasks[other] != nil)
			}
			require.True(t, reflect.DeepEqual(all.programs[prog].tasks[r], p.tasks[r]), "actions of rank %d of %d", r, len(prog.Schedules)) // to print them takes minutes
			shared += compareAlone(t, own, prog, r, want)
		}
	}
	require.Greater(t, shared, 10000, "micro-batches share actions")
}

// compareAlone compares the actions of a rank with those that each of its tasks would have alone. It returns how many are shared.
func compareAlone(t *testing.T, e *Executor, prog *codegen.Program, r int, want *counted) (shared int) {
	l := newLoader(e, &program{src: prog, byName: map[string]*input{}})
	l.inputs()
	l.wires = want.wires
	s := &prog.Schedules[r]
	seen := map[*action]bool{}
	for i, task := range e.programs[prog].tasks[r] {
		require.Equal(t, s.Tasks[i], task.Task)
		actions := slices.DeleteFunc(slices.Clone(task.actions), func(a *action) bool { return a.expects })
		if i == 0 {
			actions = actions[len(l.prepare(s, prog.Stages[s.Stage], task.Task)):]
		}
		var got []any // what actions do, with the others of their buckets
		for _, a := range actions {
			switch {
			case a.collective != nil:
				got = append(got, a.collective)
				for _, more := range a.collective.More {
					got = append(got, more)
				}
			case a.transfer != nil:
				got = append(got, a)
			case a.kernel != nil:
				got = append(got, a.kernel)
			default:
				got = append(got, a)
			}
			if seen[a] {
				shared++
			}
			seen[a] = true
		}
		for _, in := range prog.Stages[s.Stage].Run(task.Task) {
			if !s.Runs(&in, task.Task) || in.Idle() {
				continue
			}
			one, err := l.action(s, prog.Stages[s.Stage], task.Task, &in)
			require.NoError(t, err)
			require.NotEmpty(t, got)
			drop, _ := in.Node.Attr.(ir.DropoutAttr)
			switch {
			case one.collective != nil:
				c := *got[0].(*Collective)
				ranks, _ := prog.Group(s, in.Node)
				require.Equal(t, want.groups[fmt.Sprint(c.Stream, ranks)], c.Group)
				c.More = nil
				shift := len(c.Members[0].In.Slab.Offset) > 0 && l.cut(in.Node.Args[0])
				c.Members = slices.Clone(c.Members)
				for i := range c.Members {
					if shift {
						by := one.collective.Members[0].In.Slab.Offset[0] - got[0].(*Collective).Members[0].In.Slab.Offset[0]
						c.Members[i].In, c.Members[i].Out = moved(c.Members[i].In, by), moved(c.Members[i].Out, by)
					}
				}
				require.Equal(t, one.collective, &c)
			case one.transfer != nil:
				a := got[0].(*action)
				to := *a.transfer
				to.Local.Slab, one.transfer.Local.Slab = ir.Slab{Local: to.Local.Slab.Local}, ir.Slab{Local: one.transfer.Local.Slab.Local}
				require.Equal(t, one.transfer, &to)
				require.Equal(t, want.after(prog, s, task.Task, in.Node), a.after)
				require.Equal(t, one.bytes, a.bytes)
			case one.kernel != nil:
				k := *got[0].(*Kernel)
				k.Args, k.Results = slices.Clone(k.Args), slices.Clone(k.Results)
				var by []int // how much further the rows of each value lie
				values := slices.Concat(in.Node.Args, in.Node.Results)
				for i, x := range slices.Concat(one.kernel.Args, one.kernel.Results) {
					if drop.P > 0 || !l.cut(values[i]) {
						continue
					}
					got := &k.Args
					if i >= len(k.Args) {
						i, got = i-len(k.Args), &k.Results
					}
					by = append(by, x.Slab.Offset[0]-(*got)[i].Slab.Offset[0])
					(*got)[i] = moved((*got)[i], by[len(by)-1])
				}
				if _, moves := in.Node.Attr.(ir.CommAttr); moves && slices.ContainsFunc(by, func(n int) bool { return n != 0 }) {
					require.Len(t, by, len(values))
					require.Len(t, slices.Compact(by), 1)
				}
				require.Equal(t, one.kernel, &k)
			default:
				a := got[0].(*action)
				require.Equal(t, []any{one.feed.name, one.from, one.to, one.offset}, []any{a.feed.name, a.from, a.to, a.offset})
			}
			got = got[1:]
		}
		require.Empty(t, got)
		require.Equal(t, want.ends[r][i], task.after[Compute])
	}
	return shared
}

// moved is a tensor whose rows lie so much further in the whole.
func moved(x Tensor, rows int) Tensor {
	x.Slab.Offset = slices.Clone(x.Slab.Offset)
	x.Slab.Offset[0] += rows
	return x
}

// BenchmarkStart verifies and loads GPT-3 175B with a batch of 1,536 sequences in a process that drives one rank of many.
func BenchmarkStart(b *testing.B) {
	cfg, err := gpt.Preset("gpt3-175b")
	require.NoError(b, err)
	cfg.Float = ir.BF16
	const batch = 1536
	g, err := gpt.TrainStep(cfg, gpt.Optimizer{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, GradClip: 1}, batch, cfg.BlockSize)
	require.NoError(b, err)
	for _, x := range []struct {
		name string
		plan partition.Plan
	}{
		{"interleaved/64", partition.Plan{DP: 1, TP: 8, MicroBatch: 2, Schedule: partition.Interleaved, Interleave: 4}},
		{"interleaved/1024", partition.Plan{DP: 16, TP: 8, MicroBatch: 2, Schedule: partition.Interleaved, Interleave: 4, ZeRO: 1, Overlap: true}},
		{"fsdp/1024", partition.Plan{DP: 256, TP: 4, MicroBatch: 3, Schedule: partition.OneFOneB, ZeRO: 3, Overlap: true}},
	} {
		b.Run(x.name, func(b *testing.B) {
			p := x.plan
			stages := 1
			if p.Interleave > 0 {
				stages = 8
				p.OverlapP2P = true
			}
			p.PlanNGPUs = p.DP * p.TP * stages
			p.RuntimeNGPUs = p.PlanNGPUs
			p.SequenceParallel, p.OverlapTP, p.TPPieces, p.SequenceParts = true, true, 2, 2
			p.Placements = partitiontest.Megatron()
			stages *= max(1, p.Interleave)
			for i := range stages {
				p.Stages = append(p.Stages, partition.Stage{First: i * cfg.NLayer / stages, Last: (i + 1) * cfg.NLayer / stages})
			}
			prog, err := codegen.Compile(g, &p, batch, nil)
			require.NoError(b, err)
			b.Run("verify", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					require.NoError(b, codegen.Verify(prog, g))
				}
			})
			b.Run("load", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					loadedOn(b, prog, 1, 2)
				}
			})
		})
	}
}
