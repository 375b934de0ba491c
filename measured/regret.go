package measured

import (
	"cmp"
	"slices"

	"github.com/autopar/autopar/planner/cost"
)

// Regrets is what it would have cost to choose plans by their predictions.
type Regrets struct {
	Mean  float64 `json:"mean"` // over choices
	Worst float64 `json:"worst"`
	Right int     `json:"right"` // choices of the fastest plan
	Plans int     `json:"plans"` // measured plans in all choices
	// Choices are in the order of the table.
	Choices []Choice `json:"choices"`
}

// Choice is a choice among the measured plans of one setting: the plan with the shortest predicted time is chosen.
type Choice struct {
	SourceID string  `json:"source_id"`
	Plans    int     `json:"plans"`
	Chosen   string  `json:"chosen_row_id"`
	Fastest  string  `json:"fastest_row_id"`
	Regret   float64 `json:"regret"` // by which fraction the chosen plan takes longer than the fastest
}

// setting is what a plan is chosen for: model, batch, machine and software. Kernels belong to the software: they are no choice
// of a plan.
type setting struct {
	source, framework, model, gpu, dtype, gradDType        string
	layers, hidden, heads, kvHeads, ffn, vocab, seq, batch int
	gpus, perNode                                          int
	gated, tied                                            bool
	software                                               cost.Software
	network                                                float64
}

func (r *Row) setting() setting {
	return setting{
		source: r.Source, framework: r.Framework, model: r.ModelName, gpu: r.GPU, dtype: r.DType, gradDType: r.GradDType,
		layers: r.Layers, hidden: r.Hidden, heads: r.Heads, kvHeads: r.KVHeads, ffn: r.FFN, vocab: r.Vocab, seq: r.SeqLen, batch: r.GlobalBatch,
		gpus: r.GPUs, perNode: r.GPUsPerNode, gated: r.Gated, tied: r.Tied, software: r.software(), network: r.Network,
	}
}

// choice is a plan that may be chosen in a setting.
type choice struct {
	tp, pp, chunks, cp, dp, zero, group, micro int
	sequence                                   bool
	recompute, note                            string
}

func (r *Row) choice() choice {
	return choice{r.TP, r.PP, r.VirtualStages, r.CP, r.DP, r.ZeRO, r.ZeROGroup, r.MicroBatch, r.SequenceParallel, r.Recompute, r.RecomputeNote}
}

// once merges the outcomes of the same plan into the first of them, with their mean time: they differ by chance only.
func once(outcomes []Outcome) []Outcome {
	var plans []Outcome
	at, times := map[choice]int{}, map[choice]float64{}
	for _, o := range outcomes {
		c := o.choice()
		n := times[c]
		if times[c]++; n == 0 {
			at[c], plans = len(plans), append(plans, o)
			continue
		}
		mean := &plans[at[c]].StepSeconds
		*mean += (o.StepSeconds - *mean) / (n + 1)
	}
	return plans
}

// settings groups outcomes by setting, and lists the settings in the order of the table. It leaves out outcomes without a
// measured time, or of low confidence.
func settings(outcomes []Outcome) (order []setting, groups map[setting][]Outcome) {
	groups = map[setting][]Outcome{}
	for _, o := range outcomes {
		if o.StepSeconds <= 0 || o.Confidence == "low" {
			continue
		}
		s := o.setting()
		if groups[s] == nil {
			order = append(order, s)
		}
		groups[s] = append(groups[s], o)
	}
	return order, groups
}

// Regret chooses among the measured plans of every setting that has two or more. If several plans have the same prediction, it
// chooses the one that is slowest. Outcomes without a measured time, or of low confidence, are left out.
func Regret(outcomes []Outcome) Regrets {
	order, groups := settings(outcomes)
	var r Regrets
	for _, s := range order {
		plans := once(groups[s])
		if len(plans) < 2 {
			continue
		}
		chosen := slices.MinFunc(plans, func(a, b Outcome) int {
			return cmp.Or(cmp.Compare(a.PredictedSeconds, b.PredictedSeconds), cmp.Compare(b.StepSeconds, a.StepSeconds))
		})
		fastest := slices.MinFunc(plans, func(a, b Outcome) int { return cmp.Compare(a.StepSeconds, b.StepSeconds) })
		c := Choice{s.source, len(plans), chosen.ID, fastest.ID, chosen.StepSeconds/fastest.StepSeconds - 1}
		r.Choices = append(r.Choices, c)
		r.Plans += len(plans)
		r.Worst = max(r.Worst, c.Regret)
		if c.Regret == 0 {
			r.Right++
		}
		r.Mean += c.Regret
	}
	if n := len(r.Choices); n > 0 {
		r.Mean /= float64(n)
	}
	return r
}
