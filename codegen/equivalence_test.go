package codegen_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// victim is a sound dp 2 x tp 2 x pp 2 program of 2 micro-batches (4 sequences on ranks 0, 1, 4, 5 and 3 on the
// others), to be broken. Ranks 0 to 3 are stage 0.
type victim struct {
	*testing.T
	prog *codegen.Program
	own  map[int]*codegen.Stage // by rank: code that differs from that of its stage
}

// alone gives a rank its own copy of its stage's code.
func (v *victim) alone(rank int) *codegen.Stage {
	st := *v.prog.Stages[v.prog.Schedules[rank].Stage]
	st.Buffers = slices.Clone(st.Buffers)
	for phase := range st.Bodies {
		st.Bodies[phase].Instrs = slices.Clone(st.Bodies[phase].Instrs)
	}
	v.own[rank] = &st
	return &st
}

// all returns the stage whose code holds the named instruction, for all its ranks.
func (v *victim) all(name string) *codegen.Stage {
	for _, st := range v.prog.Stages {
		for _, body := range st.Bodies {
			if slices.ContainsFunc(body.Instrs, func(in codegen.Instr) bool { return in.Node.Name == name }) {
				return st
			}
		}
	}
	v.Fatalf("no instruction %s", name)
	return nil
}

// at finds an instruction of a stage.
func (v *victim) at(st *codegen.Stage, name string) (*codegen.Body, int) {
	for phase := range st.Bodies {
		body := &st.Bodies[phase]
		if i := slices.IndexFunc(body.Instrs, func(in codegen.Instr) bool { return in.Node.Name == name }); i >= 0 {
			return body, i
		}
	}
	v.Fatalf("no instruction %s in stage %d", name, st.Index)
	return nil, 0
}

// instr replaces the node of an instruction by a copy, which can be broken without affecting other uses, and
// returns the instruction.
func (v *victim) instr(st *codegen.Stage, name string) *codegen.Instr {
	body, i := v.at(st, name)
	in := &body.Instrs[i]
	in.Node = copyNode(in.Node)
	in.Args, in.Results, in.Accum = slices.Clone(in.Args), slices.Clone(in.Results), slices.Clone(in.Accum)
	return in
}

func copyNode(n *ir.Node) *ir.Node {
	m := n.Copy()
	m.Args = slices.Clone(n.Args)
	for _, r := range n.Results {
		c := *r
		c.Def = m
		m.Results = append(m.Results, &c)
	}
	return m
}

// drop removes an instruction.
func (v *victim) drop(st *codegen.Stage, name string) codegen.Instr {
	body, i := v.at(st, name)
	in := body.Instrs[i]
	body.Instrs = slices.Delete(slices.Clone(body.Instrs), i, i+1)
	return in
}

// skip removes a communication, and lets all later instructions of its stage read its operand instead.
func (v *victim) skip(st *codegen.Stage, name string) {
	gone := v.drop(st, name)
	from, to := gone.Node.Results[0], gone.Node.Args[0]
	for phase := range st.Bodies {
		for i := range st.Bodies[phase].Instrs {
			in := &st.Bodies[phase].Instrs[i]
			for j, a := range in.Node.Args {
				if a == from {
					in = v.instr(st, in.Node.Name)
					in.Node.Args[j] = to
					in.Args[j] = gone.Args[0]
				}
			}
		}
	}
}

// constant replaces the attributes of the seed of the backward pass.
func (v *victim) constant(st *codegen.Stage, attr ir.Attr) {
	for _, id := range st.Consts {
		if st.Buffers[id].Value.Def.Phase == ir.Backward {
			n := copyNode(st.Buffers[id].Value.Def)
			n.Attr = attr
			st.Buffers[id].Value = n.Results[0]
			return
		}
	}
	v.Fatal("no seed of the backward pass")
}

// plantings are bugs of programs. Bugs of kernels are found by running them: see package numeric.
var plantings = []struct {
	bug         string
	plant       func(v *victim)
	rank        int
	instr, says string // the instruction that the error names, and a part of its text
	value       string
}{
	{
		"tied table's gradient missing one use",
		func(v *victim) {
			in := v.instr(v.prog.Stages[0], "wte.weight@grad")
			in.Node.Args, in.Args = in.Node.Args[:1], in.Args[:1]
		},
		0, "wte.weight/sum_squares", "want wte.weight@grad", "wte.weight/sum_squares",
	}, {
		"clip by each shard's own norm",
		func(v *victim) { v.skip(v.all("grad_norm/sqrt"), "grad_norm/add_n@all_reduce_tp") },
		0, "grad_norm/sqrt", "no rule of sqrt", "grad_norm/sqrt",
	}, {
		"gradients synced on the wrong micro-step",
		func(v *victim) { // on all ranks the update comes before the last backward pass
			for r := range v.prog.Schedules {
				tasks := slices.Clone(v.prog.Schedules[r].Tasks)
				n := len(tasks)
				tasks[n-1], tasks[n-2] = tasks[n-2], tasks[n-1]
				v.prog.Schedules[r].Tasks = tasks
			}
		},
		4, "lm_head/matmul@dw@send0", "is read before lm_head/matmul@dw of micro-batch 1", "lm_head/matmul@dw@accumulate_mb",
	}, {
		"gradients synced on the wrong micro-step: only the last is kept",
		func(v *victim) {
			v.instr(v.prog.Stages[0], "h.0.ln_1/layer_norm@dx").Accum[1] = codegen.Overwrite
		},
		0, "h.0.ln_1/layer_norm@dx#1@accumulate_mb@all_reduce_dp", "placed [_]+{dp,mb}", "h.0.ln_1/layer_norm@dx#1@accumulate_mb",
	}, {
		"same dropout mask on every replica",
		func(v *victim) { // an instruction takes an index within the rank's part for a global one
			n := v.instr(v.prog.Stages[0], "h.0.attn/dropout").Node
			dp := v.prog.Mesh.Axis(partition.AxisDP)
			x := *n.Args[0]
			x.Spec[dp] = ir.Placement{}
			n.Args[0], n.Results[0].Spec[dp] = &x, ir.Placement{}
		},
		0, "h.0.attn/dropout", "do not cover the 7", "h.0.attn/dropout",
	}, {
		"same dropout mask at two sites",
		func(v *victim) {
			n := v.instr(v.prog.Stages[0], "h.0.attn/dropout").Node
			n.Attr = ir.DropoutAttr{P: n.Attr.(ir.DropoutAttr).P, Key: "embed/dropout"}
		},
		0, "h.0.attn/dropout", "has attributes", "h.0.attn/dropout",
	}, {
		"loss divided by batch size",
		func(v *victim) {
			body, i := v.at(v.prog.Stages[1], "loss/scale")
			again := body.Instrs[i]
			again.Node = copyNode(again.Node)
			again.Node.Name, again.Node.Args[0] = "loss/mean", body.Instrs[i].Node.Results[0]
			again.Args = []int{again.Results[0], again.Args[1]}
			body.Instrs = slices.Insert(slices.Clone(body.Instrs), i+1, again)
		},
		4, "loss/mean", "output loss is wrong", "loss/mean",
	}, {
		"optimizer holding stale weights",
		func(v *victim) { // the new weight is written where the first moment is made
			in := v.instr(v.prog.Stages[0], "h.0.mlp.c_fc.weight/adamw")
			in.Results[0] = in.Args[3]
		},
		0, "h.0.mlp.c_fc.weight/adamw", "is h.0.mlp.c_fc.weight, want", "h.0.mlp.c_fc.weight",
	}, {
		"optimizer holding stale weights: updated from another's",
		func(v *victim) {
			in := v.instr(v.prog.Stages[0], "h.0.ln_2.weight/adamw")
			other := v.instr(v.prog.Stages[0], "h.0.ln_1.weight/adamw")
			in.Node.Args[0], in.Args[0] = other.Node.Args[0], other.Args[0]
		},
		0, "h.0.ln_2.weight/adamw", "has operand 0", "h.0.ln_2.weight/adamw",
	}, {
		"dropped all_reduce with the data flow kept",
		func(v *victim) { v.skip(v.prog.Stages[0], "h.0.attn.c_proj/matmul@all_reduce_tp") },
		0, "h.0.attn.c_proj/add", "no rule of add", "h.0.attn.c_proj/add",
	}, {
		"dropped all_reduce with the data flow kept: on one rank, in place",
		func(v *victim) { v.drop(v.alone(3), "h.0.attn.c_proj/matmul@all_reduce_tp") },
		3, "h.0.attn.c_proj/add", "is read as placed", "h.0.attn.c_proj/matmul@all_reduce_tp",
	}, {
		"all_reduce and all_gather swapped: a sum is gathered",
		func(v *victim) {
			v.instr(v.prog.Stages[0], "h.0.attn.c_proj/matmul@all_reduce_tp").Node.Op = ir.OpAllGather
		},
		0, "h.0.attn.c_proj/matmul@all_reduce_tp", "want S(0)", "h.0.attn.c_proj/matmul@all_reduce_tp",
	}, {
		"all_reduce and all_gather swapped: parts are summed",
		func(v *victim) {
			n := v.instr(v.alone(5), "h.1.attn.c_proj/matmul@all_reduce_tp").Node
			n.Op, n.Attr = ir.OpAllGather, ir.CommAttr{Axis: partition.AxisTP, Dim: 2}
			tp := v.prog.Mesh.Axis(partition.AxisTP)
			x := *n.Args[0]
			x.Spec[tp] = ir.ShardOn(2)
			n.Args[0] = &x
		},
		5, "h.1.attn.c_proj/matmul@all_reduce_tp", "is read as placed", "h.1.attn.c_proj/matmul",
	}, {
		"missing backward reduce: tensor parallel",
		func(v *victim) { v.skip(v.prog.Stages[0], "h.0.mlp.c_fc/matmul@dx@all_reduce_tp") },
		0, "h.0.ln_2/layer_norm@dx", "no rule of layer_norm_grad", "h.0.ln_2/layer_norm@dx",
	}, {
		"missing backward reduce: data parallel",
		func(v *victim) {
			v.skip(v.prog.Stages[0], "h.0.mlp.c_fc/matmul@dw@accumulate_mb@all_reduce_dp")
		},
		0, "h.0.mlp.c_fc.weight/sum_squares", "no rule", "h.0.mlp.c_fc.weight/sum_squares",
	}, {
		"wrong p2p source",
		func(v *victim) {
			v.instr(v.prog.Stages[1], "h.0/add_1@recv1").Node.Attr = ir.P2PAttr{Stage: 1}
		},
		4, "h.0/add_1@recv1", "", "h.0/add_1@recv1",
	}, {
		"wrong p2p source: on one rank",
		func(v *victim) { v.instr(v.alone(6), "h.0/add_1@recv1").Node.Attr = ir.P2PAttr{Stage: 1} },
		6, "h.0/add_1@recv1", "", "h.0/add_1@recv1",
	}, {
		"wrong p2p destination",
		func(v *victim) {
			v.instr(v.prog.Stages[0], "h.0/add_1@send1").Node.Attr = ir.P2PAttr{Stage: 0}
		},
		4, "h.0/add_1@recv1", "rank 0 never sends h.0/add_1@send1 to stage 1, but to stage 0", "h.0/add_1@recv1",
	}, {
		"another value is sent on one rank",
		func(v *victim) { // reads the residual before the MLP
			st := v.alone(2)
			in := v.instr(st, "h.0/add_1@send1")
			before, i := v.at(st, "h.0/add_1")
			in.Node.Args[0], in.Args[0] = before.Instrs[i].Node.Args[0], before.Instrs[i].Args[0]
		},
		2, "h.0/add_1@send1", "meets send of h.0/add_1", "h.0/add",
	}, {
		"an epsilon changed on one rank",
		func(v *victim) {
			n := v.instr(v.alone(1), "h.0.ln_1/layer_norm").Node
			n.Attr = ir.LayerNormAttr{Eps: 1e-6, Bias: true}
		},
		1, "h.0.ln_1/layer_norm", "Eps:1e-06", "h.0.ln_1/layer_norm",
	}, {
		"an epsilon changed on one rank: AdamW's",
		func(v *victim) {
			n := v.instr(v.alone(7), "h.1.ln_2.bias/adamw").Node
			a := n.Attr.(ir.AdamWAttr)
			a.Eps = 1e-6
			n.Attr = a
		},
		7, "h.1.ln_2.bias/adamw", "Eps:1e-06", "h.1.ln_2.bias/adamw",
	}, {
		"a wrong power on all ranks",
		func(v *victim) {
			n := v.instr(v.prog.Stages[1], "h.1.mlp.c_fc.weight/adamw").Node
			a := n.Attr.(ir.AdamWAttr)
			a.Beta2 *= a.Beta2
			n.Attr = a
		},
		4, "h.1.mlp.c_fc.weight/adamw", "has attributes", "h.1.mlp.c_fc.weight/adamw",
	}, {
		"two backward outputs swapped",
		func(v *victim) {
			r := v.instr(v.prog.Stages[0], "h.0.ln_1/layer_norm@dx").Results
			r[1], r[2] = r[2], r[1]
		},
		0, "h.0.ln_1.bias/adamw", "has operand 3 h.0.ln_1/layer_norm@dx#1, want h.0.ln_1/layer_norm@dx#2", "h.0.ln_1.bias/adamw",
	}, {
		"loss scale different: on one rank",
		func(v *victim) { v.constant(v.alone(6), ir.ConstAttr{Value: 2}) },
		6, "loss/scale@seed@s1", "Value:2", "loss/scale@seed",
	}, {
		"loss scale different: on all",
		func(v *victim) { v.constant(v.prog.Stages[1], ir.ConstAttr{Value: 1. / 7}) },
		4, "loss/scale@seed@s1", "want {Value:1}", "loss/scale@seed",
	}, {
		"gradient reduce launched before the last micro-batch's backward",
		func(v *victim) {
			in := v.drop(v.prog.Stages[0], "h.0.mlp.c_fc/matmul@dw@accumulate_mb@all_reduce_dp")
			b := &v.prog.Stages[0].Bodies[ir.Backward]
			b.Instrs = append(slices.Clone(b.Instrs), in)
		},
		0, "h.0.mlp.c_fc/matmul@dw@accumulate_mb@all_reduce_dp", "is read before h.0.mlp.c_fc/matmul@dw of micro-batch 1",
		"h.0.mlp.c_fc/matmul@dw@accumulate_mb",
	}, {
		"bias added on every rank of a row-parallel matmul",
		func(v *victim) { // reads the value before the all_reduce
			st := v.prog.Stages[0]
			v.skip(st, "h.0.attn.c_proj/matmul@all_reduce_tp")
			n := v.instr(st, "h.0.attn.c_proj/add").Node
			n.Results[0].Spec = n.Args[0].Spec
		},
		0, "h.0.attn.c_proj/add", "no rule of add", "h.0.attn.c_proj/add",
	}, {
		"uneven last shard dropped: of the vocabulary",
		func(v *victim) {
			v.prog.Mesh.Axes = slices.Clone(v.prog.Mesh.Axes)
			v.prog.Mesh.Axes[v.prog.Mesh.Axis(partition.AxisTP)].Chunk = 32
		},
		0, "wte.weight", "2 pieces of 32 do not cover the 65", "wte.weight",
	}, {
		"uneven last shard dropped: of the batch",
		func(v *victim) { // the smaller replica does not run its last micro-batch
			for _, r := range []int{2, 3, 6, 7} {
				s := &v.prog.Schedules[r]
				s.MicroBatches = 1
				s.Tasks = slices.DeleteFunc(slices.Clone(s.Tasks), func(t codegen.Task) bool { return t.MicroBatch == 1 })
			}
		},
		2, "ids", "never runs micro-batch 1, which has 1", "ids",
	},
}

// TestPlantedBugs plants each bug in the program and checks what the error names.
func TestPlantedBugs(t *testing.T) {
	traced := trainGraph(t, 2)
	var spent time.Duration
	for _, c := range plantings {
		t.Run(c.bug, func(t *testing.T) {
			v := &victim{t, generate(t, traced, plan(2, 2, 2, 2, 2, partition.OneFOneB, false)), map[int]*codegen.Stage{}}
			require.NoError(t, codegen.CheckEquivalentOf(v.prog, traced, v.own))
			c.plant(v)
			begin := time.Now()
			err := codegen.CheckEquivalentOf(v.prog, traced, v.own)
			spent += time.Since(begin)
			t.Log(err)
			var at *codegen.CheckError
			require.ErrorAs(t, err, &at)
			require.Equal(t, c.rank, at.Rank)
			require.Equal(t, c.instr, at.Instr)
			require.Equal(t, c.value, at.Value)
			require.ErrorContains(t, err, c.says)
		})
	}
	t.Logf("%d programs refused in %v", len(plantings), spent)
	require.Less(t, spent, time.Minute)
}

// TestEveryInstructionMatters breaks each instruction of the program in turn, on one random rank of its stage,
// in several ways. No such program is sound.
func TestEveryInstructionMatters(t *testing.T) {
	traced := trainGraph(t, 2)
	p := plan(2, 2, 2, 2, 2, partition.OneFOneB, true)
	p.ZeRO = 1
	prog := generate(t, traced, p)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	faults := map[string]func(v *victim, st *codegen.Stage, body *codegen.Body, i int) bool{
		"is dropped": func(v *victim, st *codegen.Stage, body *codegen.Body, i int) bool {
			v.drop(st, body.Instrs[i].Node.Name)
			return true
		},
		"reads another value of the same type": func(v *victim, st *codegen.Stage, body *codegen.Body, i int) bool {
			in := v.instr(st, body.Instrs[i].Node.Name)
			for a := range in.Args {
				for _, other := range body.Instrs[:i] {
					for k, r := range other.Node.Results {
						if other.Results[k] != in.Args[a] && r.Type.Equal(in.Node.Args[a].Type) && other.Node.Op.Class() == ir.Compute && in.Node.Op.Class() == ir.Compute {
							in.Node.Args[a], in.Args[a] = r, other.Results[k]
							return true
						}
					}
				}
			}
			return false
		},
		"writes elsewhere": func(v *victim, st *codegen.Stage, body *codegen.Body, i int) bool {
			in := v.instr(st, body.Instrs[i].Node.Name)
			if len(in.Results) == 0 || in.Node.Op == ir.OpSend {
				return false
			}
			st.Buffers = append(st.Buffers, st.Buffers[in.Results[0]])
			in.Results[0] = len(st.Buffers) - 1
			return true
		},
		"adds where it should not, or not where it should": func(v *victim, st *codegen.Stage, body *codegen.Body, i int) bool {
			in := v.instr(st, body.Instrs[i].Node.Name)
			if len(in.Accum) == 0 || in.Node.Op == ir.OpSend {
				return false
			}
			if in.Accum[0] == codegen.Overwrite {
				in.Accum[0] = codegen.Always
			} else {
				in.Accum[0] = codegen.Overwrite
			}
			return true
		},
	}
	for what, fault := range faults {
		count := 0
		for stage, st := range prog.Stages {
			for phase := range st.Bodies {
				for i := range st.Bodies[phase].Instrs {
					v := &victim{t, prog, map[int]*codegen.Stage{}}
					own := v.alone(4*stage + rng.IntN(4))
					name := own.Bodies[phase].Instrs[i].Node.Name
					if fault(v, own, &own.Bodies[phase], i) {
						count++
						require.Error(t, codegen.CheckEquivalentOf(prog, traced, v.own), "%s %s", name, what)
					}
				}
			}
		}
		t.Logf("%d instructions: each %s", count, what)
		require.Greater(t, count, 50)
	}
}
