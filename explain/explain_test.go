package explain

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/partition/partitiontest"
	"github.com/autopar/autopar/planner"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/sim"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const (
	batch  = 7
	layers = 3
)

func testConfig() *config.Config {
	c := config.Default()
	c.Model = gpt.Config{
		NLayer: layers, NHead: 3, NEmbd: 24, BlockSize: 33, VocabSize: 65, Dropout: 0.2, Bias: true,
		Activation: gpt.GELU, Norm: gpt.LayerNorm, Position: gpt.Learned, TieEmbeddings: true,
	}
	c.Batch.Global, c.Data.Dir = batch, "data"
	return c
}

// shape describes a plan briefly.
type shape struct {
	dp, tp, units, micro int
	stages               []partition.Stage
	schedule             partition.Schedule
	zero, group          int
	overlap              bool
	offload              partition.Offload
	interleave           int
	sequence             bool  // sequence and overlap of tensor parallelism
	pieces               int   // of products and the collectives next to them
	parts                int   // of sequences
	half                 bool  // bfloat16
	posted               bool  // stages do not wait for what they send
	shares               []int // of the batch
}

// config returns a configuration with as many layers as the stages have.
func (s shape) config() *config.Config {
	c := testConfig()
	c.Model.NLayer = s.stages[len(s.stages)-1].Last
	if s.pieces > 1 { // every sequence must start at an offset at which a tensor may start
		c.Model.BlockSize, c.Model.NEmbd = 16*max(1, s.parts), 48
	}
	if s.half {
		c.Train.DType = "bfloat16"
	}
	return c
}

func shapes() map[string]shape {
	whole := []partition.Stage{{Last: layers}}
	return map[string]shape{
		"single":      {dp: 1, tp: 1, units: 1, micro: 7, stages: whole, schedule: partition.GPipe},
		"data":        {dp: 1, tp: 1, units: 3, micro: 1, stages: whole, schedule: partition.GPipe},
		"tensor":      {dp: 1, tp: 3, units: 1, micro: 3, stages: whole, schedule: partition.OneFOneB},
		"combined":    {dp: 1, tp: 2, units: 2, micro: 2, stages: []partition.Stage{{Last: 2, Recompute: 1}, {First: 2, Last: 3}}, schedule: partition.OneFOneB},
		"pipeline":    {dp: 2, tp: 1, units: 1, micro: 1, stages: []partition.Stage{{Last: 1}, {First: 1, Last: 2}, {First: 2, Last: 3}}, schedule: partition.GPipe},
		"beside":      {dp: 2, tp: 1, units: 1, micro: 2, stages: []partition.Stage{{Last: 2, Recompute: 1}, {First: 2, Last: 3}}, schedule: partition.OneFOneB, zero: 1, overlap: true},
		"gathered":    {dp: 1, tp: 2, units: 2, micro: 2, stages: whole, schedule: partition.OneFOneB, zero: 3, overlap: true},
		"zero-bubble": {dp: 1, tp: 1, units: 2, micro: 1, stages: []partition.Stage{{Last: 1}, {First: 1, Last: 2, Recompute: 1}, {First: 2, Last: 3}}, schedule: partition.ZeroBubble, posted: true},
		"interleaved": {
			dp: 1, tp: 2, units: 1, micro: 2, schedule: partition.Interleaved, interleave: 2, posted: true,
			stages: []partition.Stage{{Last: 1}, {First: 1, Last: 3}, {First: 3, Last: 4, Recompute: 1}, {First: 4, Last: 5}},
		},
		"in parts":              {dp: 1, tp: 3, units: 1, micro: 4, stages: []partition.Stage{{Last: 2}, {First: 2, Last: 3, Recompute: 1}}, schedule: partition.OneFOneB, sequence: true, pieces: 3},
		"in parts of sequences": {dp: 1, tp: 3, units: 1, micro: 1, stages: []partition.Stage{{Last: 2}, {First: 2, Last: 3, Recompute: 1}}, schedule: partition.OneFOneB, sequence: true, pieces: 2, parts: 2},
		"beside the next pass": {
			dp: 2, tp: 1, units: 1, micro: 4, schedule: partition.Interleaved, interleave: 2, overlap: true, posted: true,
			stages: []partition.Stage{{Last: 1}, {First: 1, Last: 2}, {First: 2, Last: 3}, {First: 3, Last: 4}},
		},
		"rounded in a pass": {
			dp: 1, tp: 1, units: 2, micro: 2, schedule: partition.Interleaved, interleave: 2, overlap: true, half: true,
			stages: []partition.Stage{{Last: 1}, {First: 1, Last: 2}, {First: 2, Last: 3}, {First: 3, Last: 4}},
		},
		"in shares": { // the second rank has its two sequences in the first of three micro-batches
			dp: 2, tp: 1, units: 1, micro: 2, stages: []partition.Stage{{Last: 2}, {First: 2, Last: 3}}, schedule: partition.OneFOneB, zero: 2, shares: []int{5, 2},
		},
		"in empty parts": {dp: 1, tp: 3, units: 1, micro: 2, stages: whole, schedule: partition.OneFOneB, sequence: true, pieces: 3},
		"hosted": {
			dp: 2, tp: 1, units: 2, micro: 1, stages: []partition.Stage{{Last: 1}, {First: 1, Last: 3, Recompute: 1}}, schedule: partition.OneFOneB,
			zero: 3, group: 2, offload: partition.OffloadParams,
		},
	}
}

func program(t testing.TB, s shape) *codegen.Program {
	t.Helper()
	unit := s.dp * s.tp * len(s.stages) / max(s.interleave, 1)
	p := &partition.Plan{
		PlanNGPUs: unit, RuntimeNGPUs: unit * s.units, DP: s.dp, TP: s.tp, MicroBatch: s.micro, Schedule: s.schedule, Interleave: s.interleave, Stages: s.stages,
		ZeRO: s.zero, ZeROGroup: s.group, Overlap: s.overlap, Offload: s.offload,
		BatchShares: s.shares, SequenceParallel: s.sequence, OverlapTP: s.sequence, OverlapP2P: s.posted, TPPieces: s.pieces, SequenceParts: s.parts,
		Placements: partitiontest.Megatron(),
	}
	cfg := s.config()
	g, err := cfg.TrainStep()
	require.NoError(t, err)
	prog, err := codegen.Compile(g, p, cfg.Batch.Global, nil)
	require.NoError(t, err)
	return prog
}

func report(t testing.TB, s shape) *Report {
	t.Helper()
	r, err := Of(program(t, s), nil, s.config())
	require.NoError(t, err)
	cluster, err := cost.Load("h100")
	require.NoError(t, err)
	require.NoError(t, r.Predict(cluster))
	return r
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o777))
		require.NoError(t, os.WriteFile(path, got, 0o666))
		return
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s differs; -update rewrites it:\n%s", path, diff)
	}
}

// TestGolden compares reports with golden files. They have no predictions, so that a change of prices does not rewrite them.
func TestGolden(t *testing.T) {
	r, err := Of(program(t, shapes()["combined"]), nil, testConfig())
	require.NoError(t, err)
	var text, dot bytes.Buffer
	require.NoError(t, r.Text(&text))
	golden(t, "combined.txt", text.Bytes())
	require.NoError(t, r.Dot(&dot))
	golden(t, "combined.dot", dot.Bytes())

	var why bytes.Buffer
	for _, name := range []string{
		"h.0.attn.c_proj/matmul", "h.*.mlp.c_fc.weight", "wte.weight", "h.1.mlp.c_proj/matmul@all_reduce_tp",
		"ids", "h.2.ln_1.weight.exp_avg", "^loss/row_max", "wte.weight@grad", "h.1/add_1@(send|recv)1",
	} {
		why.WriteString("# " + name + "\n")
		require.NoError(t, r.Why(&why, name))
		why.WriteString("\n")
	}
	// Positions in the model's source change too often.
	golden(t, "why.txt", regexp.MustCompile(`, from \w+\.go:\d+`).ReplaceAll(why.Bytes(), nil))
}

// TestDeterministic compares two reports made from scratch, byte by byte.
func TestDeterministic(t *testing.T) {
	for name, s := range shapes() {
		var forms [2][4]bytes.Buffer
		for i := range forms {
			r := report(t, s)
			require.NoError(t, r.Text(&forms[i][0]))
			require.NoError(t, r.JSON(&forms[i][1]))
			require.NoError(t, r.Dot(&forms[i][2]))
			_, err := r.PredictedTrace(&forms[i][3], nil)
			require.NoError(t, err)
		}
		for f := range forms[0] {
			require.Equal(t, forms[0][f].String(), forms[1][f].String(), "%s, form %d", name, f)
		}
	}
}

// TestBytesAddUp: the listed tensors are all the buffers of the arena, and each owner of a tensor is a parameter.
func TestBytesAddUp(t *testing.T) {
	for name, s := range shapes() {
		r := report(t, s)
		require.Len(t, r.Stages, r.prog.Plan.PP(), name)
		for i, st := range r.Stages {
			code := r.prog.Stages[i]
			m := st.Memory
			require.Equal(t, code.Arena(), m.Arena)
			saved := int64(0)
			for _, c := range m.Chunks {
				saved += int64(c.Slots)*c.Slot + int64(c.Inboxes)*c.Inbox
				require.LessOrEqual(t, c.SlotPeak.Bytes, c.Slot)
				require.Greater(t, float64(c.SlotPeak.Bytes), 0.8*float64(c.Slot), "%s: stage %d", name, i)
			}
			require.Equal(t, m.Arena, m.Persist+saved+m.Temp)
			buffers, persist, listed := 0, 0, int64(0)
			for _, id := range occupied(code) {
				switch code.Buffers[id].Region {
				case codegen.Persist:
					persist++
					buffers++
				case codegen.Slot, codegen.Inbox, codegen.Host:
					buffers++
				}
			}
			for _, x := range st.Tensors {
				buffers -= x.Count
				require.Regexp(t, `^$|\w\.(weight|bias)$`, x.Of, "%s: stage %d: %s", name, i, x.Name)
				if x.Region == "persist" {
					listed += int64(x.Count) * x.Bytes
				}
			}
			require.Zero(t, buffers, "%s: stage %d lists as many buffers as it has", name, i)
			var parts int64
			for _, p := range m.Parts {
				parts += p.Bytes
			}
			require.Equal(t, m.Persist, parts, "%s: stage %d", name, i)
			padding := m.Parts[len(m.Parts)-1]
			require.Equal(t, KindPadding, padding.Kind)
			require.Equal(t, m.Persist, listed+padding.Bytes)
			require.GreaterOrEqual(t, padding.Bytes, int64(0))
			require.Less(t, padding.Bytes, int64(64*persist), "%s: stage %d: less than a cache line per buffer", name, i)
			require.LessOrEqual(t, m.TempPeak.Bytes, m.Temp)
		}
	}
}

// TestPeak compares peaks with the sum of live buffers at every instruction of a micro-batch.
func TestPeak(t *testing.T) {
	for name, s := range shapes() {
		r := report(t, s)
		for i, st := range r.Stages {
			code := r.prog.Stages[i]
			most := func(instrs []codegen.Instr, counts func(*codegen.Buffer) bool) (most int64) {
				for at := range instrs {
					var live int64
					for _, id := range occupied(code) {
						if b := &code.Buffers[id]; counts(b) && b.From <= at && at <= b.To {
							live += b.Size
						}
					}
					most = max(most, live)
				}
				return most
			}
			passes := slices.Concat(code.Bodies[ir.Forward].Instrs, code.Bodies[ir.Backward].Instrs, code.Bodies[ir.WeightGrad].Instrs)
			for chunk, c := range st.Memory.Chunks {
				slot := most(passes, func(b *codegen.Buffer) bool { return b.Region == codegen.Slot && b.Chunk == chunk })
				require.Equal(t, slot, c.SlotPeak.Bytes, "%s: stage %d", name, i)
			}
			var temp int64
			for phase, body := range code.Bodies {
				temp = max(temp, most(body.Instrs, func(b *codegen.Buffer) bool { return b.Region == codegen.Temp && b.Body == ir.Phase(phase) }))
			}
			require.Equal(t, temp, st.Memory.TempPeak.Bytes, "%s: stage %d", name, i)
		}
	}
}

// TestPeakAtAHandover: an operand that an instruction is the last to read is live at the same time as its result.
func TestPeakAtAHandover(t *testing.T) {
	node := func(name string) *ir.Node { return &ir.Node{Name: name, Op: ir.OpGELU} }
	code := &codegen.Stage{Buffers: []codegen.Buffer{
		{Size: 10, From: 0, To: 1, Value: &ir.Value{Def: node("a")}},
		{Size: 5, From: 1, To: 2, Value: &ir.Value{Def: node("b")}},
	}}
	instrs := []codegen.Instr{{Node: node("a")}, {Node: node("b")}, {Node: node("c")}}
	want := Peak{At: "b", Phase: "fwd", Bytes: 15, Largest: []Live{{"a", 10}, {"b", 5}}}
	require.Equal(t, want, peak(code, []int{0, 1}, instrs))
}

// TestWeightsAreAllThere: the weights of a one-rank plan are all weights of the model.
func TestWeightsAreAllThere(t *testing.T) {
	r := report(t, shapes()["single"])
	require.Equal(t, testConfig().Model.NumParams(), r.Parameters)
	var weights, states int64
	for _, x := range r.Stages[0].Tensors {
		switch x.Kind {
		case KindWeight:
			weights += int64(x.Count) * x.Bytes
		case KindOptimizer:
			states += int64(x.Count) * x.Bytes
		}
	}
	require.Equal(t, 4*r.Parameters, weights)
	require.Equal(t, 2*weights, states)
}

// TestTrafficIsThePrograms counts what every rank communicates by a plain loop over its tasks.
func TestTrafficIsThePrograms(t *testing.T) {
	for name, s := range shapes() {
		r := report(t, s)
		for rank := range r.prog.Schedules {
			sched := &r.prog.Schedules[rank]
			want := Traffic{Rank: rank}
			for _, task := range sched.Tasks {
				for _, in := range r.prog.Stages[sched.Stage].Run(task) {
					if !sched.Runs(&in, task) {
						continue
					}
					bytes := r.prog.CommBytes(sched, &in, task)
					switch {
					case codegen.Collective(in.Node.Op):
						if !in.Fused {
							want.Collectives++
						}
						want.CollectiveBytes += bytes
					case in.Node.Op == ir.OpSend || in.Node.Op == ir.OpRecv:
						want.Transfers++
						want.TransferBytes += bytes
					case codegen.HostCopy(in.Node.Op):
						want.HostCopies++
						want.HostBytes += bytes
					}
				}
			}
			require.Equal(t, want, r.Traffic[rank], "%s: rank %d", name, rank)
		}
		for _, st := range r.Stages {
			var sum int64
			for _, c := range st.Communication {
				sum += c.Bytes
				require.True(t, c.Peer == nil || *c.Peer != st.Index && *c.Peer < len(r.Stages), "%s: %s of stage %d", name, c.Name, st.Index)
				require.NotContains(t, c.Name, "{0,0", "%s: a block is named once, not for each of its parts", name)
			}
			require.Equal(t, r.Traffic[st.Busiest].bytes(), sum, name)
		}
	}
}

// TestPredictionAddsUp: the parts of every rank add up to the step, and those of the busiest rank are the planner's. That holds
// also if another rank of its position has less work and yet less bubble, because waiting for its own stream is no bubble.
func TestPredictionAddsUp(t *testing.T) {
	all := shapes()
	all["uneven"] = shape{
		dp: 2, tp: 1, units: 1, micro: 4, schedule: partition.ZeroBubble, zero: 2, overlap: true,
		stages: []partition.Stage{{Last: 1, Recompute: 1}, {First: 1, Last: 2, Recompute: 1}, {First: 2, Last: 3, Recompute: 1}},
	}
	for name, s := range all {
		r := report(t, s)
		p := r.Prediction
		require.Positive(t, p.StepSeconds, name)
		line, err := sim.Run(r.prog, p.cluster, sim.Options{})
		require.NoError(t, err)
		b := line.Breakdown()
		require.Equal(t, [...]float64{b.Compute.Seconds(), b.Communication.Seconds(), b.Optimizer.Seconds(), b.Bubble.Seconds(), b.Overlapped.Seconds()},
			[...]float64{p.Compute, p.Communication, p.Optimizer, p.Bubble, p.Overlapped}, name)
		for _, x := range p.Ranks {
			require.InDelta(t, p.StepSeconds, x.Compute+x.Communication+x.Optimizer+x.Bubble, 1e-9, "%s: rank %d", name, x.Rank)
		}
	}
}

func TestCompare(t *testing.T) {
	r := report(t, shapes()["combined"])
	loser := report(t, shapes()["data"])
	p := loser.Prediction
	other := planner.DocumentAlternative{Plan: loser.prog.Plan, Predicted: planner.Predicted{StepSeconds: 1}} // on another cluster
	require.NoError(t, r.Compare([]planner.DocumentAlternative{other}))
	x := r.Rejected[0]
	require.Equal(t, "3 x (dp 1 x tp 1 x pp 1), micro-batch 1, gpipe", x.Plan)
	require.InDelta(t, p.StepSeconds-r.Prediction.StepSeconds, x.DeltaSeconds, 1e-12)
	require.Equal(t, loser.peak()-r.peak(), x.DeltaBytes)
	require.Contains(t, x.Because, "compute takes ")
	var text bytes.Buffer
	require.NoError(t, r.Text(&text))
	require.Contains(t, text.String(), x.Plan)
	require.Error(t, (&Report{}).Compare([]planner.DocumentAlternative{other}))
	astray := *loser.prog.Plan
	astray.Placements = []partition.Placement{{Match: "wte.weight", Spec: "[nowhere,_]"}}
	err := r.Compare([]planner.DocumentAlternative{other, {Plan: &astray}})
	require.ErrorContains(t, err, "search.alternatives[1].plan.placements[0].spec: ")
}

// TestNew explains a plan that the planner has written to a file.
func TestNew(t *testing.T) {
	cfg := testConfig()
	g, err := cfg.TrainStep()
	require.NoError(t, err)
	cluster, err := cost.Load("h100")
	require.NoError(t, err)
	result, err := planner.Search(g, batch, cluster, planner.Options{PlanNGPUs: 4, TopK: 3})
	require.NoError(t, err)
	written, err := planner.NewDocument(cfg, g, cluster, result).Marshal()
	require.NoError(t, err)
	doc, err := planner.ParseDocument("plan.json", written)
	require.NoError(t, err)

	r, err := read(doc)
	require.NoError(t, err)
	require.InDelta(t, doc.Predicted.StepSeconds, r.Prediction.StepSeconds, 1e-9)
	require.Len(t, r.Rejected, 3)
	for _, x := range r.Rejected {
		require.GreaterOrEqual(t, x.DeltaSeconds, 0.0, x.Plan)
	}
	for i, st := range r.Stages {
		require.Equal(t, doc.Predicted.PeakBytes[i], st.Memory.Arena, "the arena is what was predicted")
	}
	var text bytes.Buffer
	require.NoError(t, r.Text(&text))
	require.Contains(t, text.String(), "plans that lost")
	r.Rejected[0].DeltaSeconds = -1e-6 // than what the plan has been edited to
	text.Reset()
	require.NoError(t, r.Text(&text))
	require.NotContains(t, text.String(), "plans that lost")
	require.Contains(t, text.String(), "other plans, some of them faster")

	doc.Cluster, err = cost.Load("v100") // as if the file had been edited
	require.NoError(t, err)
	r, err = read(doc)
	require.NoError(t, err)
	for i, x := range r.Rejected {
		require.True(t, i == 0 || r.Rejected[i-1].StepSeconds <= x.StepSeconds, "best first")
		require.True(t, slices.ContainsFunc(doc.Search.Alternatives, func(a planner.DocumentAlternative) bool {
			there, err := Price(a.Plan, doc.Cluster, cfg)
			return err == nil && there.Predicted.StepSeconds == x.StepSeconds && PlanText(a.Plan) == x.Plan
		}), x.Plan)
	}

	doc.GraphHash = "0"
	_, err = read(doc)
	require.ErrorContains(t, err, "graph_hash")
}

// read returns the full report of a plan.json, as `autopar explain` puts it together.
func read(doc *planner.Document) (*Report, error) {
	g, err := doc.Config.TrainStep()
	if err != nil {
		return nil, err
	}
	if err := doc.Check(g); err != nil {
		return nil, err
	}
	prog, err := codegen.Compile(g, doc.Plan, doc.Config.Batch.Global, nil)
	if err != nil {
		return nil, err
	}
	r, err := Of(prog, nil, doc.Config)
	if err != nil {
		return nil, err
	}
	if err := r.Predict(doc.Cluster); err != nil {
		return nil, err
	}
	return r, r.Compare(doc.Search.Alternatives)
}

func TestJSON(t *testing.T) {
	r := report(t, shapes()["combined"])
	var out bytes.Buffer
	require.NoError(t, r.JSON(&out))
	var back Report
	decoder := json.NewDecoder(&out)
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&back))
	require.Equal(t, r.Stages, back.Stages)
	require.Equal(t, r.Traffic, back.Traffic)
	require.Equal(t, r.Prediction.Ranks, back.Prediction.Ranks)
}

func TestReasons(t *testing.T) {
	cfg := testConfig()
	cfg.Parallel.Pins = []config.Pin{{Match: `c_fc\.weight`, Placement: []string{"tp", "_"}}}
	r, err := Of(program(t, shapes()["tensor"]), nil, cfg)
	require.NoError(t, err)
	why := map[string]string{}
	for _, x := range r.Stages[0].Tensors {
		why[x.Kind+" "+x.Name] = x.Why
	}
	require.Contains(t, why["weight h.*.mlp.c_fc.weight"], "pinned by the user")
	require.Contains(t, why["weight h.*.mlp.c_fc.weight"], "splits n0 (96 = 3x32)")
	require.Contains(t, why["weight wte.weight"], "splits its inner dimension v (65 = 22+22+21), leaving terms of a sum, which all_reduce over tp combines")
	require.Contains(t, why["weight h.*.ln_1.weight"], "replicated over tp: h.*.ln_1/layer_norm needs c whole")

	// What ZeRO shards is named as that, and what its gathered weights are read for.
	of := func(name, weight string) string {
		all := report(t, shapes()[name]).Stages[0].Tensors
		i := slices.IndexFunc(all, func(x Tensor) bool { return x.Kind == KindWeight && x.Name == weight })
		require.GreaterOrEqual(t, i, 0)
		return all[i].Why
	}
	require.Equal(t, "placements[3] of the plan; sharded over dp by ZeRO stage 3; split over tp: h.*.mlp.c_fc/matmul splits n0 (96 = 2x48)", of("gathered", "h.*.mlp.c_fc.weight"))
	require.Contains(t, of("hosted", "h.0.mlp.c_fc.weight"), "sharded over dp by ZeRO stage 3 in groups of 2")

	// Reports number stages by position; a position may run several stages of the plan.
	var text bytes.Buffer
	require.NoError(t, report(t, shapes()["interleaved"]).Why(&text, "h.3/add_1@send3"))
	require.Contains(t, text.String(), "send in chunk 1 of stage 0")
	require.Contains(t, text.String(), "send chunk 1 of stage 1 (")
}

// TestWhyJSON: the answer has the costs of all rules, and those of the chosen rule are those of the program.
func TestWhyJSON(t *testing.T) {
	r := report(t, shapes()["combined"])
	var out bytes.Buffer
	require.NoError(t, r.WhyJSON(&out, "h.*.mlp.c_fc.weight"))
	var answers []Answer
	decoder := json.NewDecoder(&out)
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&answers))
	require.Len(t, answers, 2, "one a stage")
	require.Equal(t, []string{"h.1.mlp.c_fc.weight"}, answers[0].Also)
	require.Equal(t, "[tp,_]", answers[0].Results[0].Spec)
	require.Equal(t, int64(4608), answers[0].Results[0].Bytes)
	chosen := 0
	for _, c := range answers[0].Choices {
		if c.Chosen {
			chosen++
			require.Equal(t, "split n0 of 96", c.Rule)
		}
		require.True(t, c.Not != "" || c.StepSeconds >= c.Seconds && c.Seconds > 0, c.Rule)
	}
	require.Equal(t, 1, chosen)

	for name, bytes := range map[string]int64{"combined": 6336, "tensor": 12672} { // the last micro-batch of the second is smaller
		r := report(t, shapes()[name])
		out.Reset()
		require.NoError(t, r.WhyJSON(&out, "h.0.attn.c_proj/matmul"))
		require.NoError(t, json.Unmarshal(out.Bytes(), &answers))
		for _, c := range answers[0].Choices {
			if c.Rule != "split k0 of 3" {
				continue
			}
			// The times of the kernel and its all_reduce in the timeline.
			spans, err := r.Spans(0)
			require.NoError(t, err)
			want := 0.0
			for _, s := range spans {
				if s.Phase == ir.Forward && (s.Name == "h.0.attn.c_proj/matmul" || s.Name == "h.0.attn.c_proj/matmul@all_reduce_tp") {
					want += (s.End - s.Start).Seconds()
				}
			}
			require.InDelta(t, want, c.StepSeconds, 1e-8)
			require.Equal(t, bytes, c.Bytes)
		}
	}
	for _, name := range []string{"ids", "loss/.*", "h.1/add_1@(send|recv)1", "wte.weight@grad"} {
		out.Reset()
		require.NoError(t, r.WhyJSON(&out, name))
		require.True(t, json.Valid(out.Bytes()))
	}
	require.ErrorContains(t, r.WhyJSON(&out, "h.9"), "no tensor or op")
}

// TestChoicesOfParts: a rule takes what all parts of a kernel take.
func TestChoicesOfParts(t *testing.T) {
	r := report(t, shapes()["in parts"])
	nodes, err := r.find("h.0.mlp.c_fc/matmul")
	require.NoError(t, err)
	spans, err := r.Spans(0)
	require.NoError(t, err)
	kernel, parts := time.Duration(0), 0
	for _, s := range spans {
		if s.Name == nodes[0].Name && s.MicroBatch == 0 {
			kernel, parts = kernel+s.End-s.Start, parts+1
		}
	}
	require.Equal(t, 3, parts)
	for _, c := range r.choices(nodes[0]) {
		if c.Chosen {
			require.Greater(t, c.Seconds, kernel.Seconds(), "with its collective")
		}
	}
}

// TestWhyFindsEverything: every op and every value of a program is found by its name.
func TestWhyFindsEverything(t *testing.T) {
	r := report(t, shapes()["combined"])
	for _, n := range r.prog.Graph.Nodes {
		names := []string{n.Name, partition.BaseName(n.Name)}
		for _, v := range n.Results {
			names = append(names, v.Name())
		}
		for _, name := range names {
			found, err := r.find(name)
			require.NoError(t, err)
			require.Contains(t, found, n, name)
			require.Equal(t, partition.BaseName(n.Name), partition.BaseName(found[0].Name), "%s is another's", name)
		}
	}
}

func TestWhyRefuses(t *testing.T) {
	r := report(t, shapes()["single"])
	require.ErrorContains(t, r.Why(&bytes.Buffer{}, "h.9"), `no tensor or op is named "h.9"`)
	require.ErrorContains(t, r.Why(&bytes.Buffer{}, "h.(9"), "regular expression")
	require.ErrorContains(t, r.Rank(&bytes.Buffer{}, 1), "rank 1 does not exist; the plan has ranks 0 to 0")
}

func TestRank(t *testing.T) {
	r := report(t, shapes()["pipeline"])
	var mine, programs bytes.Buffer
	require.NoError(t, r.Rank(&mine, 3))
	require.NoError(t, r.prog.Fprint(&programs, 3))
	require.Equal(t, programs.String(), mine.String())
}

// TestDotIsClosed: every edge joins declared nodes, and braces match.
func TestDotIsClosed(t *testing.T) {
	for name, s := range shapes() {
		var out bytes.Buffer
		require.NoError(t, report(t, s).Dot(&out))
		declared := map[string]bool{}
		depth, edges := 0, 0
		for line := range strings.Lines(out.String()) {
			fields := strings.Fields(line)
			switch {
			case strings.HasSuffix(line, "{\n"):
				depth++
			case fields[0] == "}":
				depth--
			case len(fields) > 2 && fields[1] == "->":
				edges++
				require.True(t, declared[fields[0]] && declared[strings.TrimSuffix(fields[2], ";")], "%s: %s", name, line)
			case strings.HasPrefix(fields[1], "[label="):
				declared[fields[0]] = true
			}
		}
		require.Zero(t, depth)
		require.Greater(t, edges, 20, name)
	}
}

func TestNames(t *testing.T) {
	st := &Stage{Blocks: []string{"h.4", "h.5", "h.6", "h.7"}}
	require.Equal(t, "h.*.attn/dropout", class("h.12.attn/dropout"))
	require.Equal(t, "wte.weight", class("wte.weight"))
	require.Equal(t, "h.*/add", st.merged([]string{"h.4/add", "h.5/add", "h.6/add", "h.7/add"}))
	require.Equal(t, "h.{4-5,7}/add", st.merged([]string{"h.4/add", "h.5/add", "h.7/add"}))
	require.Equal(t, "h.6/add", st.merged([]string{"h.6/add"}))
	require.Equal(t, "h.{4-5,7}/add@dx", st.merged([]string{"h.7/add@dx", "h.5/add@dx", "h.4/add@dx"}), "in a backward pass")
	require.Equal(t, "0-2,5,7-8", numbers([]int{0, 1, 2, 5, 7, 8}))
	require.Equal(t, "rank 3", rankText([]int{3}))
	require.Equal(t, "ranks 0,2,4,6,8,10,12,14", rankText([]int{0, 2, 4, 6, 8, 10, 12, 14}))
	require.Equal(t, "9 ranks: 0,2,4,6,...,16", rankText([]int{0, 2, 4, 6, 8, 10, 12, 14, 16}))
	require.Equal(t, "-1,234,567", Grouped(-1234567))
	require.Equal(t, "123", Grouped(123))
	require.Equal(t, "65 = 17+16+16+16", cutText(ir.Axis{Size: 4}, 65))
}

// TestAxesSplitWhatOthersLeave: an axis splits a part of what an axis before it splits too.
func TestAxesSplitWhatOthersLeave(t *testing.T) {
	var text bytes.Buffer
	require.NoError(t, report(t, shapes()["hosted"]).Why(&text, "h.0.attn/attention"))
	require.Contains(t, text.String(), "rep: splits b (7 = 4+3)\n  rule         dp: splits b (4 = 2x2)\n  rule         mb: splits b (by 1)\n")
}

// TestWhyRefusesWhatNoPlanCanSplit: axes before this one leave too few, or what would be split are the parts of one sequence.
func TestWhyRefusesWhatNoPlanCanSplit(t *testing.T) {
	crowded := shapes()["tensor"]
	crowded.dp = 3
	for _, tt := range []struct {
		shape shape
		want  string
	}{
		{crowded, "    split b of 7           not: 7 cannot be cut over 9\n"},
		{shapes()["in parts of sequences"], "    split b of 14          not: every 2 are one sequence\n"},
	} {
		var text bytes.Buffer
		require.NoError(t, report(t, tt.shape).Why(&text, "h.0.attn/attention"))
		require.Contains(t, text.String(), tt.want)
	}
}

// TestRecomputedChunks: which blocks are recomputed is said for each chunk, as it is not the first ones of the stage.
func TestRecomputedChunks(t *testing.T) {
	var text bytes.Buffer
	require.NoError(t, report(t, shapes()["interleaved"]).Text(&text))
	require.Contains(t, text.String(), "stage 0: ranks 0-1; chunk 0, block h.0; chunk 1, block h.3, activations computed again in the first 1\n")
	s := shapes()["interleaved"]
	s.stages = []partition.Stage{{Last: 1, Recompute: 1}, {First: 1, Last: 3}, {First: 3, Last: 4}, {First: 4, Last: 5, Selective: 1}}
	text.Reset()
	require.NoError(t, report(t, s).Text(&text))
	require.Contains(t, text.String(), "stage 0: ranks 0-1; chunk 0, block h.0, activations computed again in the first 1; chunk 1, block h.3\n")
	require.Contains(t, text.String(), "; chunk 1, block h.4, attention computed again in 1\n")
}

func TestNumbersAsText(t *testing.T) {
	require.Equal(t, "-1,234,567", Grouped(-1234567))
	require.Equal(t, "999", Grouped(999))
	require.Equal(t, "1023 B", Bytes(1023))
	require.Equal(t, "1.00 KiB", Bytes(1024))
	require.Equal(t, "19.10 GiB", Bytes(19<<30+107374182))
	require.Equal(t, "12.35 us", Seconds(12.346e-6))
	require.Equal(t, "0 s", Seconds(0))
	require.Equal(t, "-2 s", Seconds(-2))
	require.Equal(t, []string{"+0 s", "+0 s", "-3e-06 us", "+2 s"}, []string{signed(-4e-19), signed(0), signed(-3e-12), signed(2)})
	require.Equal(t, "1 rank", Count(1, "rank"))
	require.Equal(t, "2 ranks", Count(2, "rank"))
}

// TestPartsAreSaid: of sequences in parts the report says what the rows of the batch are.
func TestPartsAreSaid(t *testing.T) {
	var text bytes.Buffer
	require.NoError(t, report(t, shapes()["in parts of sequences"]).Text(&text))
	require.Contains(t, text.String(), "each sequence is 2 rows of the batch, parts of 16 tokens that tensor parallelism may make one by one; attention joins them\n")
}
