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

// TestCostIsGalvatrons holds the cost of random plans to what Galvatron's own code says of
// them on the same files (commit cea12ffb): testdata/judged.json.
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

// TestSearchIsExact compares the search with every plan of few layers: any strategy for
// every layer.
func TestSearchIsExact(t *testing.T) {
	const seed = 2
	r := rand.New(rand.NewPCG(seed, 0))
	plans, none, stages := 0, 0, map[int]int{}
	for k := range 60 {
		m := smallModel(t, 1+r.IntN(3), []int{2, 4}[r.IntN(2)], 1500+r.IntN(6000))
		m.Layer.Slope *= 0.1 + 2*r.Float64()
		m.Other.Slope *= 0.1 + 2*r.Float64()
		for ring := range m.Reduce {
			m.Reduce[ring] *= 10 * r.Float64()
		}
		batch := []int{2, 4, 6}[r.IntN(3)]
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

// brute goes through all plans.
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

func TestBadProfiles(t *testing.T) {
	for _, x := range []struct{ file, old, new, want string }{
		{"computation_profiling_bf16_small_all.json", `"layertype_0_bsz1_seq512": 2.71`, `"layertype_0_bsz1_seq512": -2`, `"layertype_0_bsz1_seq512": is -2, must be positive`},
		{"computation_profiling_bf16_small_all.json", `layertype_0_bsz1_`, `layertype_1_bsz1_`, `"layertype_1_bsz1_seq512": is unknown; want layertype_0_bszN_seqN`},
		{"computation_profiling_bf16_small_all.json", `seq512`, `seq1024`, `there are 0 batch sizes, want 8 or more`},
		{"memory_profiling_bf16_small_all.json", `"layertype_0_sp"`, `"layertype_0"`, `"layertype_0_sp": is missing`},
		{"memory_profiling_bf16_small_all.json", `"512"`, `"2048"`, `says nothing of 512 tokens, only of 2048`},
		{"memory_profiling_bf16_small_all.json", `"parameter_size"`, `"size"`, `unknown field "size"`},
		{"allreduce_bandwidth_1nodes_8gpus_per_node.json", `allreduce_size_8_consec_1`, `allreduce_size_8_consec_0`, `"allreduce_size_8_consec_1": is missing`},
		{"p2p_bandwidth_1nodes_8gpus_per_node.json", `33.25`, `"fast"`, `cannot unmarshal string`},
		{"overlap_coefficient.json", `1.15`, `0.5`, `"overlap_coe": must be there, alone, and at least 1`},
		{"sp_time_1nodes_8gpus_per_node.json", `all2all_size_8_1MB_time`, `all2all_8_1MB`, `"all2all_8_1MB": is unknown`},
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
