package partition_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/partition/partitiontest"
)

// TestBlocksAreGivenTheStreamAlike: however the table of tokens is sharded, the first block gets the residual
// stream in the form in which the others get it, sharded along the sequence or the batch over as many
// tensor-parallel ranks as it has room for. It keeps that form: nothing is gathered again.
func TestBlocksAreGivenTheStreamAlike(t *testing.T) {
	for _, position := range []string{gpt.RoPE, gpt.Learned} {
		for _, bias := range []bool{false, true} {
			cfg := gpt.Config{
				NLayer: 3, NHead: 6, NKVHead: 6, NEmbd: 36, BlockSize: 5, VocabSize: 13, Bias: bias,
				Activation: "gelu", Norm: "layernorm", Position: position, TieEmbeddings: true,
			}
			g, err := gpt.TrainStep(cfg, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8}, 12, 5)
			require.NoError(t, err)
			for _, x := range []struct {
				tp, rows        int
				sequence, batch bool
				want            string
			}{
				{tp: 4, want: "[mb,_,_]"},
				{tp: 4, sequence: true, want: "[mb,tp,_]"},
				{tp: 6, sequence: true, want: "[mb,_,_]"}, // fewer tokens, five
				{tp: 4, batch: true, want: "[mb.tp,_,_]"},
				{tp: 4, rows: 2, want: "[mb,_,_]"},
				{tp: 4, rows: 2, sequence: true, want: "[mb,tp.tpr,_]"},
				{tp: 6, rows: 2, sequence: true, want: "[mb,tp,_]"}, // three columns of two rows each
			} {
				weights, tables := partitiontest.Megatron(), []string{"[_,_]", "[tp,_]", "[_,tp]"}
				if x.rows > 0 {
					weights, tables = onGrid(), append(tables, "[tp.tpr,_]", "[_,tp.tpr]", "[tp,tpr]")
				}
				for _, table := range tables {
					p := newPlan(1, x.tp, partition.Stage{Last: cfg.NLayer})
					p.MicroBatch, p.TPRows, p.SequenceParallel, p.BatchParallel = 12, x.rows, x.sequence, x.batch
					p.Placements = append(weights[:len(weights)-1:len(weights)-1], partition.Placement{Match: `wte\.weight`, Spec: table})
					name := fmt.Sprintf("%s, bias %v, tp %d, %d rows, sequence %v, batch %v, table %s", position, bias, x.tp, x.rows, x.sequence, x.batch, table)
					out, err := partition.Apply(g, p, 12)
					require.NoError(t, err, name)
					for _, n := range out.Nodes {
						if n.Name == "wte/embedding" && table == "[_,_]" {
							require.Equal(t, x.want, n.Results[0].Spec.Format(out.Mesh, 3), "%s: %s looks up no more than is wanted", name, n.Name)
						}
						at, norm := map[ir.Op]int{ir.OpLayerNorm: 0, ir.OpLayerNormGrad: 1}[n.Op]
						if !norm || !strings.Contains(n.Name, ".ln_1/") {
							continue
						}
						stream := n.Args[at]
						require.Equal(t, x.want, stream.Spec.Format(out.Mesh, 3), "%s: %s", name, n.Name)
						require.Equal(t, ir.Forward, stream.Def.Phase, "%s: %s", name, n.Name)
					}
				}
			}
		}
	}
}
