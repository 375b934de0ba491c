package measured

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/planner/cost"
)

type knob struct {
	name   string
	v      float64
	lo, hi float64
}

func apply(c *cost.Cluster, r *Row, k []knob) {
	get := func(n string) float64 {
		for _, x := range k {
			if x.name == n {
				return x.v
			}
		}
		panic(n)
	}
	gen := "A"
	if c.Name == "h100" || c.Name == "h200" {
		gen = "H"
	}
	e := &c.Device.Efficiency
	e.Matmul = get("mm" + gen)
	e.MatmulHalf = get("half" + gen)
	e.Memory = get("mem")
	c.Device.LaunchOverhead = get("launch")
	e.Attention = get("attn" + gen)
	switch {
	case !r.FlashAttention:
		e.Attention *= get("plain")
	case !r.FlashAttention2:
		e.Attention *= get("fa1")
	}
	c.IntraNode.Efficiency = get("intra")
	c.InterNode.Efficiency = get("inter")
}

func TestFit(t *testing.T) {
	f, err := os.Open("/work/shared/measured/train.csv")
	require.NoError(t, err)
	rows, err := Read("train.csv", f)
	require.NoError(t, err)
	step, _ := strconv.Atoi(os.Getenv("STEP"))
	rounds, _ := strconv.Atoi(os.Getenv("ROUNDS"))
	seen := map[string]int{}
	count := map[string]int{}
	for _, r := range rows {
		count[r.Source]++
	}
	var cases []*Case
	for _, r := range rows {
		seen[r.Source]++
		if n := max(1, count[r.Source]/step); seen[r.Source]%n != 0 || r.DType == "fp8" {
			continue
		}
		if c, err := Compile(r); err == nil {
			cases = append(cases, c)
		}
	}
	knobs := []knob{{"mmA", .8, .4, 1}, {"mmH", .65, .3, 1}, {"halfA", 2e10, 1e6, 1e11}, {"halfH", 1e10, 1e6, 1e11}, {"mem", .85, .3, 1}, {"launch", 3e-6, 1e-6, 2e-5}, {"attnA", .45, .2, .8}, {"attnH", .4, .1, .8}, {"plain", .17, .03, .5}, {"fa1", .7, .4, 1}, {"intra", .7, .2, 1}, {"inter", .6, .1, 1}}
	eval := func() (float64, map[string]Summary, []Outcome) {
		outs := make([]Outcome, len(cases))
		var wg sync.WaitGroup
		for w := range 2 {
			wg.Go(func() {
				for i := w; i < len(cases); i += 2 {
					c := cases[i]
					cl, err := c.Cluster()
					if err != nil {
						panic(err)
					}
					apply(cl, &c.Row, knobs)
					p := c.estimator.Price(cl)
					outs[i] = Outcome{Row: c.Row, PredictedSeconds: p.Step.Seconds()}
				}
			})
		}
		wg.Wait()
		s := Summarize(outs)
		return MeanMAPE(s), s, outs
	}
	start := time.Now()
	best, all, outs := eval()
	fmt.Printf("%d cases, %.2f%% in %v\n", len(cases), 100*best, time.Since(start))
	scale := 1.3
	for range rounds {
		for i := range knobs {
			for _, f := range []float64{scale, 1 / scale} {
				for {
					old := knobs[i].v
					knobs[i].v = math.Min(knobs[i].hi, math.Max(knobs[i].lo, old*f))
					if knobs[i].v == old {
						break
					}
					m, s, o := eval()
					if m >= best {
						knobs[i].v = old
						break
					}
					best, all, outs = m, s, o
				}
			}
		}
		fmt.Printf("%v scale %.3f: %.2f%% %v\n", time.Since(start).Round(time.Second), scale, 100*best, knobs)
		scale = 1 + (scale-1)*.6
	}
	for _, s := range Sources(all) {
		fmt.Printf("%-28s %4d rows  MAPE %5.1f%%  bias %+6.1f%%  spearman %.3f\n", s, all[s].Rows, 100*all[s].MAPE, 100*all[s].Bias, all[s].Spearman)
	}
	if os.Getenv("V") != "" {
		for _, o := range outs {
			fmt.Printf("%s %s %s %s L%d h%d s%d tp%d pp%d v%d dp%d mb%d gb%d z%d sp%v fa%v rec=%s net%.0f: %.3f vs %.3f  %+.1f%%\n", o.ID, o.Source, o.ModelName, o.GPU, o.Layers, o.Hidden, o.SeqLen, o.TP, o.PP, o.VirtualStages, o.DP, o.MicroBatch, o.GlobalBatch, o.ZeRO, o.SequenceParallel, o.FlashAttention, o.Recompute, o.Network/1e9, o.PredictedSeconds, o.StepSeconds, 100*o.Error())
		}
	}
}
