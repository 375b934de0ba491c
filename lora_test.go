package autopar_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
)

// withAdapters freezes a model beside adapters of rank 3 of all its linear layers.
func withAdapters(c gpt.Config) gpt.Config {
	c.LoRARank, c.LoRAAlpha, c.LoRADropout, c.LoRATargets = 3, 7, 0.1, "."
	return c
}

// besideWeights has every adapter cut as the weight that it stands beside: B where that is cut by its output, else A.
func besideWeights(placements []partition.Placement) []partition.Placement {
	all := placements
	for _, p := range placements {
		module, isWeight := strings.CutSuffix(p.Match, `\.weight`)
		if !isWeight || !strings.Contains(module, "attn") && !strings.Contains(module, "mlp") {
			continue
		}
		words := strings.Split(strings.Trim(p.Spec, "[]"), ",")
		if in := 1 + strings.Count(module, `attn\.c_proj`); strings.Contains(strings.Join(words[len(words)-in:], ","), "tp") {
			all = append(all, partition.Placement{Match: module + `\.lora\.a`, Spec: "[_," + strings.Join(words[len(words)-in:], ",") + "]"})
		} else {
			all = append(all, partition.Placement{Match: module + `\.lora\.b`, Spec: "[" + strings.Join(words[:len(words)-in], ",") + ",_]"})
		}
	}
	return all
}

// TestParityOfAdapters is TestParity for models of which adapters alone are trained: a sample of the plans, larger with
// -parity-all.
func TestParityOfAdapters(t *testing.T) {
	for name, x := range map[string]struct {
		model  gpt.Config
		layout func(tp int) []partition.Placement
	}{"gpt2": {parityModel, layout}, "llama": {llamaModel(), llamaLayout}} {
		t.Run(name, func(t *testing.T) {
			train := func(p *partition.Plan) (seen trajectory, weights map[string][]float32) {
				place(p, besideWeights(x.layout(p.TP)))
				prog, exec := compile(t, stepOf(t, withAdapters(x.model)), p, parityBatch)
				require.NoError(t, exec.InitParams(prog, 1337))
				seen = stepsOf(t, prog, exec, parityBatch, paritySteps())
				return seen, gather(t, prog, exec)
			}
			one, weights := train(parityPlan(1, 1, 1, parityBatch, partition.GPipe, false))
			require.NotEqual(t, one.loss[0], one.loss[len(one.loss)-1])
			for _, c := range sampleOf(t, allParityPlans(), most(200, 4)) {
				p := c.plan
				got, others := train(p)
				dLoss, dNorm := differences(one, got)
				row := fmt.Sprintf("dp %d, cp %d, tp %d, pp %d, sp %v, zero %d, %s, recompute %s: max |Δloss| %.1e, max rel Δ‖grad‖ %.1e",
					p.DP, p.ContextParallel(), p.TP, p.PP(), p.SequenceParallel, p.ZeRO, p.ScheduleText(), c.recompute, dLoss, dNorm)
				t.Log(row)
				if !(dLoss <= 1e-5) || !(dNorm <= 1e-6) {
					t.Error(row)
				}
				for name, values := range others {
					if strings.Contains(name, ".lora.") {
						continue
					}
					require.Equal(t, weights[name], values, name)
				}
			}
		})
	}
}
