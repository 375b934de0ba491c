package galvatron

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// small are the files of testdata: in Galvatron's format, with figures of no machine.
func small(dir string) Files {
	in := func(name string) string { return filepath.Join(dir, name) }
	return Files{
		Computation: in("computation_profiling_bf16_small_all.json"), Memory: in("memory_profiling_bf16_small_all.json"),
		AllReduce: in("allreduce_bandwidth_1nodes_8gpus_per_node.json"), PointToPoint: in("p2p_bandwidth_1nodes_8gpus_per_node.json"),
		Overlap: in("overlap_coefficient.json"), Collectives: in("sp_time_1nodes_8gpus_per_node.json"),
	}
}

func smallModel(t *testing.T, layers, devices, memory int) *Model {
	p, err := Read(small("testdata"), 512)
	require.NoError(t, err)
	return &Model{Profile: p, Layers: layers, Hidden: 1024, Tokens: 512, Devices: devices, Memory: memory}
}

// TestCostIsGalvatrons compares the cost of random plans with what Galvatron's own code computes for them from the
// same files (commit cea12ffb): testdata/judged.json.
func TestCostIsGalvatrons(t *testing.T) {
	m := smallModel(t, 10, 8, 16*1024)
	text, err := os.ReadFile(filepath.Join("testdata", "judged.json"))
	require.NoError(t, err)
	var all []struct {
		Plan         Plan
		Milliseconds float64
		Megabytes    []int
	}
	require.NoError(t, json.Unmarshal(text, &all))
	require.Len(t, all, 40)
	for i, x := range all {
		c, err := m.Cost(&x.Plan)
		require.NoError(t, err, "plan %d", i)
		require.InEpsilon(t, x.Milliseconds, 1000*c.Seconds, 1e-7, "plan %d: %+v", i, x.Plan)
		require.Equal(t, x.Megabytes, c.MB, "plan %d: %+v", i, x.Plan)
	}
}

// TestSearchIsExact compares the search with plain enumeration of all plans of few layers: any strategy for every
// layer.
func TestSearchIsExact(t *testing.T) {
	const seed = 2
	r := rand.New(rand.NewPCG(seed, 0))
	plans, none, stages := 0, 0, map[int]int{}
	for k := range 100 {
		m := smallModel(t, 1+r.IntN(3), []int{2, 4}[r.IntN(2)], 1500+r.IntN(6000))
		m.Layer.Slope *= 0.1 + 2*r.Float64()
		m.Other.Slope *= 0.1 + 2*r.Float64()
		slow := 10 * r.Float64()
		if k%2 == 0 { // links for which a pipeline pays
			slow *= 30
			for n := range m.PointToPoint {
				m.PointToPoint[n] /= 100
			}
			for _, tables := range []map[int]Table{m.Gather, m.Exchange} {
				for n, t := range tables {
					tables[n] = Table{Fitted: Line{slow * t.Fitted.Slope, t.Fitted.Constant}}
				}
			}
		}
		for ring := range m.Reduce {
			m.Reduce[ring] *= slow
		}
		batch := []int{2, 4, 6, 8}[r.IntN(4)]
		b := &brute{Model: m, batch: batch, best: math.Inf(1)}
		for chunks := 1; chunks <= batch; chunks++ {
			for pp := 1; pp <= min(chunks, m.Layers, m.Devices) && batch%chunks == 0; pp *= 2 {
				b.layers(chunks, pp, nil)
			}
		}
		plans += b.plans
		got, _, err := m.Search(batch)
		if b.plan == nil {
			require.Error(t, err, "seed %d case %d", seed, k)
			none++
			continue
		}
		require.NoError(t, err, "seed %d case %d", seed, k)
		c, err := m.Cost(got)
		require.NoError(t, err)
		require.True(t, c.Fits)
		require.InEpsilon(t, b.best, c.Seconds, 1e-9, "seed %d case %d: want %+v, got %+v", seed, k, b.plan, got)
		stages[len(got.Division)]++
	}
	t.Logf("%d plans, nothing fits in %d cases, stages of the winners %v", plans, none, stages)
	require.Greater(t, len(stages), 1)
	require.Positive(t, none)
}

// brute enumerates all plans.
type brute struct {
	*Model
	batch, plans int
	best         float64
	plan         *Plan
}

func (b *brute) layers(chunks, pp int, layers []Strategy) {
	for _, s := range b.strategies(b.batch, chunks, pp, b.Devices, true) {
		if len(layers) < b.Layers {
			b.layers(chunks, pp, append(layers[:len(layers):len(layers)], s))
			continue
		}
		if s.Checkpoint {
			continue
		}
		p := &Plan{Batch: b.batch, Chunks: chunks, Division: b.division(pp), Layers: layers, Embedding: s, Buffer: s.sharing()}
		for _, x := range layers {
			p.Buffer = max(p.Buffer, x.sharing())
		}
		c, err := b.Cost(p)
		if err != nil {
			panic(err)
		}
		b.plans++
		if c.Fits && c.Seconds < b.best {
			b.best, b.plan = c.Seconds, p
		}
	}
}

// TestCluster: on the cluster of a profile, a layer and an all-gather take the measured time.
func TestCluster(t *testing.T) {
	m := smallModel(t, 4, 8, 16*1024)
	model := gpt.DefaultConfig()
	model.NLayer, model.NHead, model.NEmbd, model.BlockSize, model.VocabSize, model.Dropout, model.Float = 4, 8, 1024, 512, 1000, 0, ir.BF16
	g, err := gpt.TrainStep(model, gpt.Optimizer{Beta1: .9, Beta2: .95, Eps: 1e-8}, 16, 512)
	require.NoError(t, err)
	base, err := cost.Load("a100-80g")
	require.NoError(t, err)
	before := *base
	c, err := m.Cluster(base, g, 16)
	require.NoError(t, err)
	require.Equal(t, before, *base)
	f, err := newForward(g, 16)
	require.NoError(t, err)
	require.InEpsilon(t, m.Layer.at(8)/1000, f.layer(c), 1e-6)
	took := cost.NewModel(c, 8).Collective(ir.OpAllGather, 64<<20, cost.Group{Size: 8, Fan: cost.Fan{8}})
	require.InEpsilon(t, m.Gather[8].Fitted.at(64)/1000, took.Seconds(), 1e-2)

	pairs, err := cost.Load("v100")
	require.NoError(t, err)
	_, err = m.Cluster(pairs, g, 16)
	require.ErrorContains(t, err, "galvatron: v100 states 3 levels of network, a profile is of nodes")
	_, err = m.Cluster(base, g, 4)
	require.ErrorContains(t, err, "the batch is 4, want at least 8")
	m.Layer = Line{1e6, 0}
	_, err = m.Cluster(base, g, 16)
	require.ErrorContains(t, err, "is the profile of this model?")
}

// TestPlansInBothTerms: what both programs have terms for survives conversion there and back.
func TestPlansInBothTerms(t *testing.T) {
	p := &partition.Plan{
		PlanNGPUs: 8, RuntimeNGPUs: 8, DP: 2, TP: 2, MicroBatch: 3, ZeRO: 3, Schedule: partition.OneFOneB, SequenceParallel: true, Overlap: true,
		Stages: []partition.Stage{{First: 0, Last: 3, Recompute: 2}, {First: 3, Last: 5}},
	}
	theirs, err := Of(p, 24)
	require.NoError(t, err)
	require.Equal(t, 4, theirs.Chunks)
	require.Equal(t, []int{3, 2}, theirs.Division)
	back, err := theirs.Partition()
	require.NoError(t, err)
	require.Equal(t, p, back)

	p.ZeRO, p.Stages = 1, []partition.Stage{{Last: 3, Recompute: 1, Selective: 1}, {First: 3, Last: 5, Pointwise: 1}}
	theirs, err = Of(p, 24)
	require.NoError(t, err)
	require.Equal(t, DDP, theirs.Embedding.Type)
	require.True(t, theirs.Layers[1].Checkpoint)
	require.False(t, theirs.Layers[2].Checkpoint)
	require.True(t, theirs.Layers[3].Checkpoint)
	require.False(t, theirs.Layers[4].Checkpoint)
	_, err = Of(p, 25)
	require.ErrorContains(t, err, "25 is not cut evenly")
	for want, change := range map[string]func(*partition.Plan){
		"context parallelism":     func(p *partition.Plan) { p.CP = 2 },
		"the loss is in 4 slices": func(p *partition.Plan) { p.LossSlices = 4 },
		"grids of 2 rows":         func(p *partition.Plan) { p.TP, p.TPRows = 4, 2 },
	} {
		q := *p
		change(&q)
		_, err = Of(&q, 24)
		require.ErrorContains(t, err, want)
	}
	theirs.Layers[4].TP, theirs.Layers[4].DP = 1, 4
	_, err = theirs.Partition()
	require.ErrorContains(t, err, "autopar cuts all alike")
	_, err = smallModel(t, 4, 8, 1024).Cost(theirs)
	require.ErrorContains(t, err, "the plan has stages of [3 2] and strategies of 5 layers, the model 4")
}

func TestBadProfiles(t *testing.T) {
	for _, x := range []struct{ file, old, new, want string }{
		{"computation_profiling_bf16_small_all.json", `"layertype_0_bsz1_seq512": 2.71`, `"layertype_0_bsz1_seq512": -2`, `"layertype_0_bsz1_seq512": is -2, must be positive`},
		{"computation_profiling_bf16_small_all.json", `layertype_0_bsz1_`, `layertype_1_bsz1_`, `"layertype_1_bsz1_seq512": is unknown; want layertype_0_bszN_seqN`},
		{"computation_profiling_bf16_small_all.json", `seq512`, `seq1024`, `there are 0 batch sizes, want 8 or more`},
		{"memory_profiling_bf16_small_all.json", `"layertype_0_sp"`, `"layertype_0"`, `"layertype_0_sp": is missing`},
		{"memory_profiling_bf16_small_all.json", `"512"`, `"2048"`, `says nothing of 512 tokens, only of 2048`},
		{"memory_profiling_bf16_small_all.json", `"parameter_size"`, `"size"`, `unknown field "size"`},
		{"allreduce_bandwidth_1nodes_8gpus_per_node.json", `allreduce_size_8_consec_1`, `allreduce_size_8_consec_0`, `"allreduce_size_8_consec_1": is missing`},
		{"p2p_bandwidth_1nodes_8gpus_per_node.json", `33.25`, `"fast"`, `"pp_size_2": wants a number, got string`},
		{"memory_profiling_bf16_small_all.json", `180.25`, `{}`, `"layertype_0_sp": tp_activation_per_bsz_dict: wants a number, got object`},
		{"overlap_coefficient.json", `1.15`, `0.5`, `"overlap_coe": is 0.5, beside 0 other figures; must be at least 1, and alone`},
		{"sp_time_1nodes_8gpus_per_node.json", `all2all_size_8_1MB_time`, `all2all_8_1MB`, `"all2all_8_1MB": is unknown`},
		{"sp_time_1nodes_8gpus_per_node.json", `allreduce_size_`, `all2all_size_`, `"allreduce_size_N_NMB_time": is missing`},
		{"sp_time_1nodes_8gpus_per_node.json", `}`, `} {}`, `goes on after its value`},
	} {
		dir := t.TempDir()
		require.NoError(t, os.CopyFS(dir, os.DirFS("testdata")))
		file := filepath.Join(dir, x.file)
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		changed := strings.ReplaceAll(string(text), x.old, x.new)
		require.NotEqual(t, string(text), changed, x.old)
		require.NoError(t, os.WriteFile(file, []byte(changed), 0o666))
		_, err = Read(small(dir), 512)
		require.ErrorAs(t, err, new(*FileError), "%s", x.want)
		require.ErrorContains(t, err, x.want)
		require.ErrorContains(t, err, x.file)
	}
}
