package codegen_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
)

// overlapped is a plan with a communication stream.
func overlapped(dp, tp, pp, mb, layers, zero int) *partition.Plan {
	p := plan(dp, tp, pp, mb, layers, partition.OneFOneB, false)
	p.ZeRO, p.Overlap = zero, true
	return p
}

// chunked makes each rank of a plan run a number of its stages, instead of one.
func chunked(p *partition.Plan, chunks int) *partition.Plan {
	p.Schedule, p.Interleave, p.PlanNGPUs, p.RuntimeNGPUs = partition.Interleaved, chunks, p.PlanNGPUs/chunks, p.RuntimeNGPUs/chunks
	return p
}

// TestVerifyAcceptsOverlap: programs with overlap are sound and compute the traced graph, under every schedule,
// also with uneven micro-batches, recomputation and 16-bit types, and communicate the same bytes as the same plan without
// overlap.
func TestVerifyAcceptsOverlap(t *testing.T) {
	const layers = 4
	c := model(layers)
	c.Float = ir.BF16
	half, err := gpt.TrainStep(c, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, WeightDecay: .1, GradClip: 1}, batch, 33)
	require.NoError(t, err)
	for i, g := range []*ir.Graph{trainGraph(t, layers), half} {
		for _, schedule := range []partition.Schedule{partition.OneFOneB, partition.ZeroBubble, partition.Interleaved} {
			verifyOverlap(t, g, layers, schedule, i)
		}
	}
}

// verifyOverlap verifies each plan with 2 or 3 data-parallel ranks: with the others in another turn.
func verifyOverlap(t *testing.T, g *ir.Graph, layers int, schedule partition.Schedule, turn int) {
	for _, pp := range []int{1, 2, 4} {
		if schedule == partition.Interleaved && pp != 4 { // two ranks run two of four stages each
			continue
		}
		for _, tp := range []int{1, 2} {
			for zero := range 4 {
				dp := 2 + (pp/2+tp+zero+turn)%2
				p := overlapped(dp, tp, pp, 1+(pp+zero)%3, layers, zero)
				p.Schedule = schedule
				if schedule == partition.Interleaved {
					p = chunked(overlapped(dp, tp, 4, 1+zero%2, layers, zero), 2)
				}
				p.SequenceParallel = tp > 1 && zero%2 == 0
				for s := range p.Stages {
					p.Stages[s].Recompute = zero % 2
				}
				name := fmt.Sprintf("%s dp %d tp %d pp %d zero %d", schedule, dp, tp, pp, zero)
				prog := generate(t, g, p)
				require.NoError(t, codegen.Check(prog), name)
				apart := *p
				apart.Overlap = false
				without := generate(t, g, &apart)
				for r := range prog.Schedules {
					n, bytes := communicated(prog, r)
					m, same := communicated(without, r)
					require.Equal(t, same, bytes, "%s: rank %d", name, r)
					if zero >= 2 { // otherwise the update may have buckets without overlap too
						require.Less(t, n, m, "%s: rank %d makes fewer collectives", name, r)
					}
				}
			}
		}
	}
}

// communicated returns the collectives that a rank makes in a step, and their bytes.
func communicated(p *codegen.Program, rank int) (collectives int, bytes int64) {
	s := &p.Schedules[rank]
	for _, task := range s.Tasks {
		for _, in := range p.Stages[s.Stage].Run(task) {
			if codegen.Collective(in.Node.Op) && s.Runs(&in, task) {
				bytes += p.CommBytes(s, &in, task)
				if !in.Fused {
					collectives++
				}
			}
		}
	}
	return collectives, bytes
}

// TestOverlapOrder: the parameters of a block are gathered while the previous block computes, and its gradients
// are reduced while the next one does, all of a block in one bucket.
func TestOverlapOrder(t *testing.T) {
	g := trainGraph(t, 3)
	st := generate(t, g, overlapped(2, 1, 1, 2, 3, 3)).Stages[0]
	text := func(phase ir.Phase) []string {
		var lines []string
		add := func(s string) {
			if len(lines) == 0 || lines[len(lines)-1] != s {
				lines = append(lines, s)
			}
		}
		for _, in := range st.Bodies[phase].Instrs {
			block := in.Node.Block()
			if block == "" {
				block = "rest"
			}
			switch {
			case in.Fused:
			case in.Async:
				add(in.Node.Op.String() + " " + block)
			case in.Node.Op.Class() == ir.Compute:
				add(block)
			case in.Node.Op == ir.OpAccumulate:
				add("accumulate " + block)
			}
		}
		return lines
	}
	require.Equal(t, []string{
		"all_gather rest", "all_gather h.0", "rest", "all_gather h.1", "h.0", "all_gather h.2", "h.1", "all_gather rest", "h.2",
		"rest", "accumulate rest",
	}, text(ir.Forward))
	require.Equal(t, []string{
		"all_gather rest", "all_gather h.2", "rest",
		"reduce_scatter rest", "all_gather h.1", "h.2",
		"reduce_scatter h.2", "all_gather h.0", "accumulate rest", "h.1",
		"reduce_scatter h.1", "accumulate h.2", "h.0",
		"reduce_scatter h.0", "accumulate h.1", "rest",
		"reduce_scatter rest", "accumulate h.0", "accumulate rest",
	}, text(ir.Backward))
}

// TestOverlapMemory: prefetching takes the memory of one more block's parameters, and never more than two
// blocks are gathered.
func TestOverlapMemory(t *testing.T) {
	g := trainGraph(t, 4)
	for _, s := range generate(t, g, overlapped(3, 1, 1, 7, 4, 3)).Stages {
		body := s.Bodies[ir.Forward].Instrs
		live := make([]map[string]bool, len(body))
		for _, in := range body {
			if !in.Async {
				continue
			}
			b := &s.Buffers[in.Results[0]]
			for at := b.From; at <= b.To; at++ {
				if live[at] == nil {
					live[at] = map[string]bool{}
				}
				if block := in.Node.Block(); block != "" {
					live[at][block] = true
				}
			}
		}
		most := 0
		for _, blocks := range live {
			most = max(most, len(blocks))
		}
		require.Equal(t, 2, most)
	}
}

// TestOverlapMutants breaks sound programs with overlap in ways that such programs go wrong. Each must be
// refused, and the error must name the place.
func TestOverlapMutants(t *testing.T) {
	traced := trainGraph(t, 3)
	at := func(p *codegen.Program, match func(*codegen.Instr) bool) (*codegen.Stage, *codegen.Body, int) {
		for _, s := range p.Stages {
			for phase := range s.Bodies {
				for i := range s.Bodies[phase].Instrs {
					if match(&s.Bodies[phase].Instrs[i]) {
						return s, &s.Bodies[phase], i
					}
				}
			}
		}
		t.Fatal("no such instruction")
		return nil, nil, 0
	}
	named := func(name string) func(*codegen.Instr) bool {
		return func(in *codegen.Instr) bool { return in.Node.Name == name }
	}
	const (
		gradient = "h.1.mlp.c_fc/matmul@dw@accumulate_mb@all_reduce_dp"
		gathered = "h.1.mlp.c_fc.weight@all_gather_dp"
		norm     = "h.1.ln_1/layer_norm"
	)
	for name, m := range map[string]struct {
		zero    int
		breakIt func(*codegen.Program)
		names   string
	}{
		"await dropped": {3, func(p *codegen.Program) {
			_, b, i := at(p, named(norm))
			require.Positive(t, b.Instrs[i].Await)
			b.Instrs[i].Await = 0
		}, norm},
		"await of a bucket too few": {3, func(p *codegen.Program) {
			_, b, i := at(p, named(norm))
			b.Instrs[i].Await -= 3
		}, "h.1."},
		"await of what comes later": {3, func(p *codegen.Program) { _, b, i := at(p, named(norm)); b.Instrs[i].Await = 1000 }, norm},
		"buffer reused too early": {3, func(p *codegen.Program) {
			s, b, i := at(p, named("h.1.mlp.c_fc/matmul@dw@reduce_scatter_dp"))
			s.Buffers[b.Instrs[i].Args[0]].To = i // free while it is still being reduced
		}, "h.1.mlp.c_fc/matmul@dw"},
		"result placed too late": {3, func(p *codegen.Program) {
			s, b, i := at(p, named(gathered))
			s.Buffers[b.Instrs[i].Results[0]].From += 5
		}, gathered},
		"bucket member missing": {0, func(p *codegen.Program) {
			_, b, i := at(p, named(gradient))
			b.Instrs = slices.Delete(b.Instrs, i, i+1)
		}, gradient},
		"bucket of two kinds": {3, func(p *codegen.Program) {
			_, b, i := at(p, func(in *codegen.Instr) bool { return in.Node.Op == ir.OpReduceScatter && in.Async })
			for !(b.Instrs[i].Node.Op == ir.OpAllGather && b.Instrs[i].Async && b.Instrs[i-1].Async) {
				i++
			}
			b.Instrs[i].Fused = true
		}, "another kind"},
		"gradient reduced in every micro-batch": {0, func(p *codegen.Program) {
			_, b, i := at(p, named(gradient))
			b.Instrs[i].Last = false
		}, gradient},
		"gradient reduced before it is made": {0, func(p *codegen.Program) {
			_, b, i := at(p, named(gradient))
			in := b.Instrs[i]
			in.Fused = false
			b.Instrs = slices.Insert(slices.Delete(b.Instrs, i, i+1), 0, in)
		}, gradient},
		"tied gradient reduced after its first term": {0, func(p *codegen.Program) {
			_, b, i := at(p, named("wte.weight@grad@all_reduce_dp"))
			_, _, first := at(p, named("lm_head/matmul@dw"))
			in := b.Instrs[i]
			in.Fused = false
			for k := range b.Instrs[i+1:] {
				b.Instrs[i+1+k].Fused = b.Instrs[i+1+k].Fused && k > 0
			}
			b.Instrs = slices.Insert(slices.Delete(b.Instrs, i, i+1), first+1, in)
		}, "wte.weight@grad"},
		"kernel on the communication stream": {0, func(p *codegen.Program) { _, b, i := at(p, named("h.1.mlp/gelu")); b.Instrs[i].Async = true }, "h.1.mlp/gelu"},
		"gradient overwritten while it is reduced": {0, func(p *codegen.Program) {
			_, b, i := at(p, named(gradient))
			for k := i + 1; ; k++ {
				if in := &b.Instrs[k]; in.Node.Op == ir.OpMatMul && !in.Async {
					in.Results[0] = b.Instrs[i].Results[0]
					return
				}
			}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := generate(t, traced, overlapped(2, 1, 1, 2, 3, m.zero))
			require.NoError(t, codegen.Verify(p, traced))
			m.breakIt(p)
			err := codegen.Verify(p, traced)
			require.Error(t, err)
			require.ErrorContains(t, err, m.names)
			t.Log(err)
		})
	}
}

// TestOverlapStreamsCheckThemselves: the checks of streams find races that the proof of equivalence, which runs
// instructions in order, cannot see.
func TestOverlapStreamsCheckThemselves(t *testing.T) {
	traced := trainGraph(t, 3)
	p := generate(t, traced, overlapped(2, 1, 1, 2, 3, 3))
	for _, s := range p.Stages {
		for phase := range s.Bodies {
			for i := range s.Bodies[phase].Instrs {
				if in := &s.Bodies[phase].Instrs[i]; in.Await > 0 {
					was := in.Await
					in.Await = 0
					require.NoError(t, codegen.CheckEquivalent(p, traced))
					require.Error(t, codegen.Check(p), "%s without its wait", in.Node.Name)
					in.Await = was
				}
			}
		}
	}
}

// TestLateStreamsAreChecked: what is reduced at the same time as tasks of other chunks is not in memory that
// those use.
func TestLateStreamsAreChecked(t *testing.T) {
	traced := trainGraph(t, 4)
	prog := generate(t, traced, chunked(overlapped(2, 1, 4, 1, 4, 1), 2))
	require.NoError(t, codegen.Check(prog))
	st := prog.Stages[0]
	instrs := st.Run(codegen.Task{Phase: ir.Backward, Chunk: 1})
	late := &instrs[slices.IndexFunc(instrs, func(in codegen.Instr) bool { return in.Last })]
	require.Equal(t, 1, late.Chunk)

	b := &st.Buffers[late.Results[0]]
	b.Region, b.Body, b.Offset, b.From, b.To = codegen.Temp, ir.Backward, (st.Temp+63)/64*64, 0, 1e6
	st.Temp = b.Offset + b.Size
	err := codegen.Check(prog)
	require.ErrorContains(t, err, late.Node.Name)
	require.ErrorContains(t, err, "of the temp region, and in use beyond the end of the task")
}

// TestOverlapRounds: in 16-bit models the gradients of a block are rounded as soon as they are complete, in the
// last micro-batch, and reduced while the next block computes. New weights are rounded as they are made, and
// those of a block gathered in one bucket.
func TestOverlapRounds(t *testing.T) {
	c := model(3)
	c.Float = ir.BF16
	g, err := gpt.TrainStep(c, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, WeightDecay: .1, GradClip: 1}, batch, 33)
	require.NoError(t, err)
	for zero, op := range []string{"all_reduce", "reduce_scatter"} {
		for _, pp := range []int{1, 3} {
			prog := generate(t, g, overlapped(2, 1, pp, 2, 3, zero))
			require.NoError(t, codegen.Check(prog))
			for _, st := range prog.Stages {
				for _, in := range st.Bodies[ir.Update].Instrs {
					if in.Node.Block() != "" {
						require.NotEqual(t, op, in.Node.Op.String(), in.Node.Name)
						require.NotContains(t, in.Node.Name, "@narrow")
					}
				}
				gathers := map[string]int{} // by block
				for _, in := range st.Bodies[ir.Update].Instrs {
					if in.Async && !in.Fused {
						gathers[in.Node.Block()]++
					}
				}
				for block, n := range gathers {
					require.True(t, n == 1 || block == "", "%s is gathered %d times", block, n)
				}
				require.Equal(t, zero == 1, len(gathers) > 0)
			}
			if pp > 1 {
				continue
			}
			var got []string
			for _, in := range prog.Stages[0].Bodies[ir.Backward].Instrs {
				at := in.Node.Block()
				if at == "" {
					at = "rest"
				}
				switch {
				case in.Last && !in.Async:
					at = "round " + at
				case in.Last:
					at = in.Node.Op.String() + " " + at
				}
				if len(got) == 0 || got[len(got)-1] != at {
					got = append(got, at)
				}
			}
			require.Equal(t, []string{
				"rest", "round rest", op + " rest", "h.2", "round h.2", op + " h.2", "h.1", "round h.1", op + " h.1",
				"h.0", "round h.0", op + " h.0", "rest", "round rest", op + " rest",
			}, got)
		}
	}
}

// TestOverlapReducesEach: from ZeRO stage 2 on, the gradients of a block are reduced in every micro-batch while the
// next block computes, in 16-bit models too, where they are cast before they are accumulated. What is left to reduce
// of their sums in the last micro-batch, over groups of ZeRO, follows at once where nothing is sent. Over context-parallel ranks nothing is.
func TestOverlapReducesEach(t *testing.T) {
	for _, float := range []ir.DType{ir.F32, ir.BF16} {
		c := model(3)
		c.Float = float
		g, err := gpt.TrainStep(c, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, WeightDecay: .1, GradClip: 1}, batch, 33)
		require.NoError(t, err)
		for _, further := range []string{"", "rep", "cp"} {
			p := overlapped(4, 1, 1, 1, 3, 2)
			switch further {
			case "rep":
				p.ZeROGroup = 2
			case "cp":
				p.PlanNGPUs, p.RuntimeNGPUs, p.CP = 8, 8, 2
			}
			prog := generate(t, g, p)
			require.NoError(t, codegen.Check(prog))
			var got []string
			for _, in := range prog.Stages[0].Bodies[ir.Backward].Instrs {
				at := in.Node.Block()
				switch {
				case at == "":
					continue
				case in.Async && in.Last:
					at = "last " + in.Node.Op.String() + " " + in.Node.Attr.(ir.CommAttr).Axis + " " + at
				case in.Async:
					at = in.Node.Op.String() + " " + at
				case in.Last:
					at = "narrow " + at
				case in.Delayed:
					at = "add " + at
				case in.Node.Op.Class() == ir.Comm:
					continue
				}
				if len(got) == 0 || got[len(got)-1] != at {
					got = append(got, at)
				}
			}
			after := func(block string) []string { // its gradients have been reduced
				all := []string{"add " + block}
				if further == "rep" && float == ir.BF16 {
					all = append(all, "narrow "+block)
				}
				if further == "rep" {
					all = append(all, "last all_reduce "+further+" "+block)
				}
				return all
			}
			require.Equal(t, slices.Concat(
				[]string{"h.2", "reduce_scatter h.2", "h.1", "reduce_scatter h.1"}, after("h.2"),
				[]string{"h.0", "reduce_scatter h.0"}, after("h.1"), after("h.0"),
			), got, "%s %s", float, further)
			for _, in := range prog.Stages[0].Bodies[ir.Update].Instrs {
				require.False(t, in.Node.Op == ir.OpAllReduce && in.Node.Block() != "", in.Node.Name)
			}
		}
	}
}

// TestOverlapSendsBeforeItReducesFurther: what is left to reduce of sums of gradients, as over groups of ZeRO, follows the
// gradient that the next stage waits for. In the stage that sends none, and between chunks of a rank, it is reduced
// beside blocks.
func TestOverlapSendsBeforeItReducesFurther(t *testing.T) {
	const layers = 12
	g := trainGraph(t, layers)
	grouped := func(pp int) *partition.Plan {
		p := overlapped(4, 1, pp, 1, layers, 2)
		p.ZeROGroup = 2
		return p
	}
	// order lists the sends and the further reductions of a stage's backward pass, those of a bucket as one.
	order := func(p *partition.Plan, stage int) []string {
		prog := generate(t, g, p)
		require.NoError(t, codegen.Check(prog))
		var got []string
		for _, in := range prog.Stages[stage].Bodies[ir.Backward].Instrs {
			switch {
			case in.Node.Op == ir.OpSend:
				got = append(got, "send")
			case in.Last && in.Async && !in.Fused:
				got = append(got, in.Node.Block())
			}
		}
		return got
	}
	require.Equal(t, []string{"send", "", "h.11", "h.10", "h.9", "h.8", "h.7", "h.6"}, order(grouped(2), 1))
	require.Equal(t, []string{"h.5", "h.4", "h.3", "h.2", "h.1", "h.0", ""}, order(grouped(2), 0))
	require.Equal(t, []string{"", "h.11", "send", "h.10", "h.9", "h.5", "send", "h.4", "h.3"}, order(chunked(grouped(4), 2), 1))
}
