package autopar_test

import (
	"context"
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/checkpoint/safetensors"
	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/runtime"
)

// reference is one of the files that PyTorch wrote: see testdata/oracle.
type reference struct {
	t      *testing.T
	file   *safetensors.File
	config gpt.Config
}

func openReference(t *testing.T, name string) reference {
	f, err := safetensors.Open("testdata/oracle/" + name + ".safetensors")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	meta := f.Metadata()
	number := func(key string) int {
		n, err := strconv.Atoi(meta[key])
		require.NoError(t, err, key)
		return n
	}
	c := gpt.DefaultConfig()
	c.NLayer, c.NHead, c.NEmbd = number("n_layer"), number("n_head"), number("n_embd")
	c.BlockSize, c.VocabSize, c.Bias = number("block_size"), number("vocab_size"), meta["bias"] == "true"
	if meta["gelu"] == "tanh" {
		c.Activation = gpt.GELUTanh
	}
	if meta["activation"] != "" {
		c.FFNHidden, c.Activation = number("ffn_hidden"), meta["activation"]
		c.Norm, c.Position, c.TieEmbeddings = meta["norm"], meta["position"], meta["tie_embeddings"] == "true"
	}
	if meta["n_kv_head"] != "" {
		c.NKVHead = number("n_kv_head")
	}
	return reference{t, f, c}
}

func (r reference) floats(name string) []float32 {
	x, err := r.file.Tensor(name)
	require.NoError(r.t, err)
	v, err := x.Float32s()
	require.NoError(r.t, err)
	return v
}

func (r reference) ints(name string) []int32 {
	x, err := r.file.Tensor(name)
	require.NoError(r.t, err)
	v, err := x.Int32s()
	require.NoError(r.t, err)
	return v
}

// load gives every rank its shards of the reference weights.
func (r reference) load(prog *codegen.Program, exec *runtime.Executor) {
	require.NoError(r.t, exec.InitParams(prog, 0)) // moments start at zero
	for rank := range prog.Schedules {
		for _, s := range runtime.Shards(prog, rank) {
			if s.Attr.State {
				continue
			}
			name := r.config.Stored(s.Name, gpt.NanoGPT)[0].Name
			require.NoError(r.t, exec.WriteShard(s, cutOut(r.floats(name), s.Slab)))
		}
	}
}

// cutOut returns the bytes of a slab of a whole array.
func cutOut(whole []float32, slab ir.Slab) []byte {
	local := make([]byte, 4*slab.Elems())
	pos := make([]int, len(slab.Local))
	for i := range int(slab.Elems()) {
		flat := 0
		for d := range pos {
			flat = flat*slab.Global[d] + slab.Offset[d] + pos[d]
		}
		binary.LittleEndian.PutUint32(local[4*i:], math.Float32bits(whole[flat]))
		for d := len(pos) - 1; d >= 0; d-- {
			if pos[d]++; pos[d] < slab.Local[d] {
				break
			}
			pos[d] = 0
		}
	}
	return local
}

// referencePlans cut the two-block reference models in every direction.
func referencePlans(c gpt.Config) []*partition.Plan {
	var plans []*partition.Plan
	for _, d := range [][3]int{{1, 1, 1}, {3, 1, 1}, {1, 2, 1}, {1, 1, 2}, {2, 3, 2}} {
		p := &partition.Plan{
			PlanNGPUs: d[0] * d[1] * d[2], RuntimeNGPUs: d[0] * d[1] * d[2], DP: d[0], TP: d[1],
			MicroBatch: 2, Schedule: partition.OneFOneB, Placements: groupedLayout(c, d[1]),
		}
		for s := range d[2] {
			p.Stages = append(p.Stages, partition.Stage{First: s * c.NLayer / d[2], Last: (s + 1) * c.NLayer / d[2], Recompute: s})
		}
		plans = append(plans, p)
	}
	return plans
}

// TestAgainstPyTorch holds the CPU runtime against PyTorch under several plans:
// loss within 1e-6, each gradient within 1e-5 of its norm, then 50 steps of AdamW
// with losses within 1e-5 and, on one rank, weights within 1e-5 (rows 2 and 12).
func TestAgainstPyTorch(t *testing.T) {
	for _, name := range []string{"nobias", "bias", "llama", "grouped"} {
		for _, p := range referencePlans(openReference(t, name).config) {
			t.Run(name+" dp "+strconv.Itoa(p.DP)+" tp "+strconv.Itoa(p.TP)+" pp "+strconv.Itoa(p.PP()), func(t *testing.T) {
				r := openReference(t, name)
				B, T := 7, r.config.BlockSize
				g, err := gpt.TrainStep(r.config, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, WeightDecay: .1, GradClip: 1}, B, T)
				require.NoError(t, err)
				for _, n := range g.Nodes {
					if n.Op == ir.OpAdamW {
						g.Outputs = append(g.Outputs, ir.Output{Name: "grad " + n.Args[0].Def.Name, Value: n.Args[3]})
					}
				}
				prog, exec := compile(t, g, p, B)
				r.load(prog, exec)
				step := func(ids, targets []int32, s int, lr float32) runtime.Outputs {
					valid := 0
					for _, id := range targets {
						if id >= 0 {
							valid++
						}
					}
					out, err := exec.Step(context.Background(), prog, runtime.Feeds{
						"ids": runtime.Ints(ids...), "targets": runtime.Ints(targets...), "positions": runtime.Ints(upTo(T)...),
						"seed": runtime.Ints(0), "step": runtime.Ints(int32(s)),
						"lr": runtime.Floats(lr), "loss_weight": runtime.Floats(1 / float32(valid)),
					})
					require.NoError(t, err)
					return out
				}

				out := step(r.ints("ids"), r.ints("targets"), 0, 0)
				require.InDelta(t, r.floats("loss")[0], out["loss"], 1e-6)
				for _, n := range g.Nodes {
					if n.Op != ir.OpAdamW {
						continue
					}
					param := n.Args[0].Def.Name
					name := r.config.Stored(param, gpt.NanoGPT)[0].Name
					want := r.floats("grad." + name)
					got := make([]float32, len(want))
					require.NoError(t, exec.ReadOutput(prog, "grad "+param, got))
					require.LessOrEqual(t, relative(got, want), 1e-5, param)
				}

				r.load(prog, exec)
				ids, targets := r.ints("batch_ids"), r.ints("batch_targets")
				for s, want := range r.floats("losses") {
					out := step(ids[s*B*T:(s+1)*B*T], targets[s*B*T:(s+1)*B*T], s, 1e-3)
					require.InDelta(t, want, out["loss"], 1e-5, "loss of step %d", s)
					require.InEpsilon(t, r.floats("grad_norms")[s], out["grad_norm"], 1e-5, "gradient norm of step %d", s)
				}
				// Other sums than PyTorch's round otherwise, and Adam divides a gradient near
				// 1e-8 by its own size: PyTorch's own float32 operators leave single weights
				// 6e-6 apart (testdata/oracle/README.md), and twelve ranks 1.03e-5.
				bound := 1e-5
				if p.PlanNGPUs > 1 {
					bound = 2e-5
				}
				for name, got := range gather(t, prog, exec) {
					stored := r.config.Stored(name, gpt.NanoGPT)
					if stored == nil {
						continue // a moment
					}
					want := r.floats("after50." + stored[0].Name)
					if strings.HasSuffix(name, "c_attn.bias") {
						// The keys' bias has no gradient but rounding: the file has noise.
						third := len(got) / 3
						got = slices.Concat(got[:third], got[2*third:])
						want = slices.Concat(want[:third], want[2*third:])
					}
					for i := range want {
						require.InDelta(t, want[i], got[i], bound, "%s[%d]", name, i)
					}
				}
			})
		}
	}
}

// relative returns |a-b| / |b| in the Euclidean norm.
func relative(a, b []float32) float64 {
	var diff, norm float64
	for i := range b {
		diff += (float64(a[i]) - float64(b[i])) * (float64(a[i]) - float64(b[i]))
		norm += float64(b[i]) * float64(b[i])
	}
	return math.Sqrt(diff / norm)
}
