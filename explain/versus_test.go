package explain

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner"
	"github.com/autopar/autopar/planner/cost"
)

// TestAgainst: the differences of terms add up to those of the steps and arenas.
func TestAgainst(t *testing.T) {
	ours := shapes()["combined"]
	r, err := Of(program(t, ours), nil, testConfig())
	require.NoError(t, err)
	c, err := cost.Load("h100")
	require.NoError(t, err)
	_, err = r.Against("x", r.prog.Plan)
	require.ErrorContains(t, err, "no prediction")
	require.NoError(t, r.Predict(c))
	for name, s := range shapes() {
		if s.stages[len(s.stages)-1].Last != layers || s.offload != "" || s.pieces > 1 {
			continue // another model
		}
		other := report(t, s)
		r.cfg.Parallel.MemoryLimit = 0
		v, err := r.Against(name, other.prog.Plan)
		require.NoError(t, err)
		require.Nil(t, v.Breaks)
		require.Equal(t, other.Prediction.StepSeconds, v.StepSeconds)
		var a, b float64
		for _, x := range v.Time {
			a, b = a+x.Ours, b+x.Theirs
		}
		require.InEpsilon(t, r.Prediction.StepSeconds, a, 1e-9, name)
		require.InEpsilon(t, other.Prediction.StepSeconds, b, 1e-9, name)
		require.Equal(t, []float64{r.Prediction.Overlapped, other.Prediction.Overlapped}, []float64{v.Beside.Ours, v.Beside.Theirs})
		require.Equal(t, []float64{r.Prediction.Binds[cost.Launch].Seconds, other.Prediction.Binds[cost.Launch].Seconds}, []float64{v.Launches.Ours, v.Launches.Theirs})
		require.InDelta(t, b-a, v.DeltaSeconds, 1e-12, name)
		var m, n int64
		for _, x := range v.Memory {
			m, n = m+x.Ours, n+x.Theirs
		}
		require.Equal(t, r.peak(), m, name)
		require.Equal(t, other.peak(), n, name)
		require.Equal(t, n-m, v.DeltaBytes)

		require.Equal(t, name == "combined", v.Same)

		r.cfg.Parallel.MemoryLimit = config.Bytes(other.peak() - 1)
		v, err = r.Against(name, other.prog.Plan)
		require.NoError(t, err)
		require.Equal(t, other.peak(), v.Breaks.Needs, name)
		require.Contains(t, v.Breaks.Text, "over by 1 B: ", name)
		require.Contains(t, v.Breaks.Text, " in flight x ", name)
	}
}

// TestDivisions: the figures for other numbers of parts are those of the plans with these numbers, and the text says what
// communication is hidden.
func TestDivisions(t *testing.T) {
	r := report(t, shapes()["in parts"])
	require.NoError(t, r.Divide())
	var parts []int
	for _, d := range r.Divisions {
		parts = append(parts, d.Parts)
		plan := *r.prog.Plan
		plan.TPPieces = d.Parts
		other, err := r.sibling(&plan)
		require.NoError(t, err)
		p := other.Prediction
		require.Equal(t, d.Parts == r.prog.Plan.TPPieces, d.Chosen)
		require.Equal(t, []float64{p.StepSeconds, p.Terms[termTensor].Seconds, p.Overlapped, p.Binds[cost.Launch].Seconds}, []float64{d.StepSeconds, d.Exposed, d.Beside, d.Launches})
		require.Equal(t, other.peak(), d.PeakBytes)
		require.Equal(t, plan.EmptyPieces(), d.Empty)
		rest := p.Bubble + p.Terms[termGradients].Seconds + p.Terms[termParameters].Seconds + p.Terms[termTransfers].Seconds + p.Terms[termOptimizer].Seconds
		require.InEpsilon(t, d.StepSeconds, d.Exposed+d.Kernels+rest, 1e-9)
	}
	require.Equal(t, []int{1, 2, 3, 4}, parts, "those that the search tries, and its own")
	require.Greater(t, r.Divisions[2].Beside, r.Divisions[0].Beside)
	require.Greater(t, r.Divisions[2].Launches, r.Divisions[0].Launches)
	var text bytes.Buffer
	require.NoError(t, r.Summary(&text))
	require.Contains(t, text.String(), "are made in 3 parts:")
	require.Contains(t, text.String(), " than whole: exposed communication over tp ")

	few := *r.prog.Plan
	few.TPPieces, few.MicroBatch = 4, 2
	require.Equal(t, "in 4 parts (2 empty)", Division{Parts: 4, Empty: few.EmptyPieces()}.Words())
	require.Contains(t, PlanText(&few), ", tp in 4 pieces (2 empty)")
	few.SequenceParts = 2
	require.NotContains(t, PlanText(&few), "empty")

	plan := *r.prog.Plan
	plan.TPPieces = 1 // written out
	one, err := r.sibling(&plan)
	require.NoError(t, err)
	require.NoError(t, one.Divide())
	require.Len(t, one.Divisions, 3, "the plan's own is that of one part")
	require.True(t, one.Divisions[0].Chosen)

	whole := report(t, shapes()["tensor"]) // without overlap the search has no parts
	require.NoError(t, whole.Divide())
	require.Empty(t, whole.Divisions)
}

// TestInfeasible: if no plan of a policy fits, the result has the limit and what the closest plan needs.
func TestInfeasible(t *testing.T) {
	cfg := testConfig()
	g, err := cfg.TrainStep()
	require.NoError(t, err)
	c, err := cost.Load("h100")
	require.NoError(t, err)
	_, err = planner.Search(g, batch, c, planner.Options{PlanNGPUs: 4, MemoryLimit: 100 << 10, Policy: planner.FSDP})
	var none *planner.InfeasibleError
	require.ErrorAs(t, err, &none)
	r := report(t, shapes()["combined"])
	v, err := r.infeasible("fsdp", err)
	require.NoError(t, err)
	require.Equal(t, none.Needs, v.Breaks.Needs)
	require.Equal(t, none.Limit, v.Breaks.Limit)
	require.Contains(t, v.Breaks.Text, "stage 0 over by "+Bytes(none.Needs-none.Limit))
	require.Contains(t, v.Breaks.Text, "optimizer ")
	require.Nil(t, v.Time)

	v, err = r.infeasible("dp", &planner.OptionError{Option: "dp", Msg: "8 ranks for 7 sequences"})
	require.NoError(t, err)
	require.Equal(t, "dp: 8 ranks for 7 sequences", v.Reason)
	broken := errors.New("the disk is full")
	_, err = r.infeasible("dp", broken)
	require.Equal(t, broken, err)
}

// study plans the test model on a cluster whose nodes have one device.
func study(t *testing.T) (*Study, *Report) {
	t.Helper()
	c, err := cost.Load("h100")
	require.NoError(t, err)
	c.DevicesPerNode = 1
	return studyOn(t, c)
}

func studyOn(t *testing.T, c *cost.Cluster) (*Study, *Report) {
	t.Helper()
	cfg := testConfig()
	g, err := cfg.TrainStep()
	require.NoError(t, err)
	found, err := planner.Search(g, batch, c, planner.Options{PlanNGPUs: 2})
	require.NoError(t, err)
	doc := planner.NewDocument(cfg, g, c, found)
	r, err := read(doc)
	require.NoError(t, err)
	return NewStudy(doc, r), r
}

// TestStudy: more of any resource is never slower; along the front of memory, memory falls and time rises; the number of searches
// is as documented; and no setting is searched twice.
func TestStudy(t *testing.T) {
	s, r := study(t)
	require.NoError(t, s.Sensitivities())
	require.LessOrEqual(t, s.Searches, 8)
	x := r.Sensitivities
	require.Equal(t, r.Prediction.StepSeconds, x.Planned.StepSeconds)
	require.InEpsilon(t, x.Planned.StepSeconds, x.Now.StepSeconds, 1e-9)
	names := map[string]Option{}
	for _, o := range x.Changes {
		names[o.Change] = o
		require.NotEmpty(t, o.Plan, o.Change)
	}
	for _, name := range []string{"+1 GiB per device", "2x network between nodes", "2x network in a node", "2x HBM bandwidth"} {
		require.Contains(t, names, name)
		require.LessOrEqual(t, names[name].StepSeconds, x.Now.StepSeconds*(1+1e-9), name)
	}
	require.Less(t, names["2x network between nodes"].StepSeconds+names["2x HBM bandwidth"].StepSeconds, 2*x.Now.StepSeconds)
	require.Equal(t, 4, names["twice the devices"].Ranks)
	require.InEpsilon(t, names["a batch of 3"].TokensPerSecond*names["a batch of 3"].StepSeconds, 3*33, 1e-9)
	require.InEpsilon(t, 2/3600.0/x.Now.TokensPerSecond*1e9, x.Now.GPUHours, 1e-9)

	before := s.Searches
	require.NoError(t, s.Sensitivities())
	require.NoError(t, s.Fronts())
	front := r.Fronts
	require.LessOrEqual(t, s.Searches-before, memoryPoints+4-3, "this many devices, twice as many, and all the memory there is, were asked about")
	for i, o := range front.Memory {
		if o.plan == nil {
			require.Equal(t, len(front.Memory)-1, i)
			require.Contains(t, o.Reason, "nothing fits")
			break
		}
		require.LessOrEqual(t, o.PeakBytes, o.LimitBytes)
		if i > 0 {
			last := front.Memory[i-1]
			require.Greater(t, o.StepSeconds, last.StepSeconds)
			require.LessOrEqual(t, o.LimitBytes, int64(memoryStep*float64(last.PeakBytes)))
		}
	}
	require.Greater(t, len(front.Memory), 2)
	require.Len(t, front.Devices, 4, "half a device is none")
	r.Price(3)
	require.InEpsilon(t, 3*front.Devices[1].GPUHours, front.Devices[1].Cost, 1e-12)
	var text bytes.Buffer
	require.NoError(t, r.Summary(&text))
	require.Contains(t, text.String(), "USD at 3 an hour")
	require.NoError(t, s.Policies())
	require.Len(t, r.Versus, 3)
}

// TestFrontOfEqualTimes: of two plans that take as long, found under different limits, the one with more memory is on no front.
func TestFrontOfEqualTimes(t *testing.T) {
	s, r := study(t)
	answer := func(limit int64, o Option) {
		x := s.now("")
		figures, err := json.Marshal(x.cluster)
		require.NoError(t, err)
		o.LimitBytes = limit
		s.asked[fmt.Sprint(x.ranks, x.batch, limit, x.policy, string(figures))] = &o
	}
	answer(s.limit, Option{StepSeconds: 1, PeakBytes: 1000, plan: s.doc.Plan})
	answer(900, Option{StepSeconds: 1, PeakBytes: 800, plan: s.doc.Plan})
	answer(720, Option{StepSeconds: 2, PeakBytes: 700, plan: s.doc.Plan})
	answer(630, Option{Reason: "nothing fits"})
	require.NoError(t, s.Fronts())
	front := r.Fronts.Memory
	require.Len(t, front, 3)
	require.Equal(t, []int64{800, 700}, []int64{front[0].PeakBytes, front[1].PeakBytes})
	require.Equal(t, allMemory, front[0].Change)
	require.Equal(t, s.limit, front[0].LimitBytes)
}

// TestStudyOfPools: devices of several kinds lie on several nodes, however few they are, so the sensitivities have a faster network
// between nodes.
func TestStudyOfPools(t *testing.T) {
	c, err := cost.Load("v100:1+h100:1")
	require.NoError(t, err)
	s, r := studyOn(t, c)
	require.NoError(t, s.Sensitivities())
	at := slices.IndexFunc(r.Sensitivities.Changes, func(o Option) bool { return o.Change == "2x network between nodes" })
	require.GreaterOrEqual(t, at, 0)
	require.Less(t, r.Sensitivities.Changes[at].StepSeconds, r.Prediction.StepSeconds)
}

// TestTwiceTheNetworkIsBandwidth: messages to which bandwidth is nothing take as long over a network of twice that.
func TestTwiceTheNetworkIsBandwidth(t *testing.T) {
	c, err := cost.Load("h100")
	require.NoError(t, err)
	c.DevicesPerNode = 1
	c.InterNode.Bandwidth, c.InterNode.Latency = 1e18, 1e-3
	s, r := studyOn(t, c)
	require.NoError(t, s.Sensitivities())
	at := slices.IndexFunc(r.Sensitivities.Changes, func(o Option) bool { return o.Change == "2x network between nodes" })
	require.GreaterOrEqual(t, at, 0)
	require.Equal(t, r.Sensitivities.Now.StepSeconds, r.Sensitivities.Changes[at].StepSeconds)
}

// TestTwiceTheDevices: ranks that share the memory of a machine get less each only if that is below the limit of the configuration,
// in the sensitivities as along the front of devices.
func TestTwiceTheDevices(t *testing.T) {
	for _, name := range []string{"cpu", "h100"} {
		c, err := cost.Load(name)
		require.NoError(t, err)
		for _, limit := range []int64{0, 1 << 20, c.MemoryPerRank(2) * 3 / 4} {
			s, _ := studyOn(t, c)
			cfg := *s.doc.Config
			cfg.Parallel.MemoryLimit = config.Bytes(limit)
			s.doc.Config = &cfg
			s.limit = s.memory(c, 2)
			x := s.now("twice the devices")
			s.double(&x)
			require.Equal(t, c.MemoryUnder(limit, 4), x.limit, "%s %d", name, limit)
		}
	}
}

// TestAnswersText compares the text of answers with a golden file. Their figures are invented.
func TestAnswersText(t *testing.T) {
	r, err := Of(program(t, shapes()["combined"]), nil, testConfig())
	require.NoError(t, err)
	r.Prediction = &Prediction{Cluster: "made up", StepSeconds: 10, TokensPerSecond: 1000, Compute: 6, Communication: 2, Optimizer: 1, Bubble: 1, PeakBytes: []int64{1001}, Room: Room{Memory: 1000}}
	ledger := make([]float64, accounts)
	ledger[termBlocks], ledger[termHead], ledger[termRecompute], ledger[termTensor], ledger[termOptimizer] = 4e12, 1e12, 1e12, 2e12, 1e12
	ledger[bindsResource], ledger[bindsResource+1], ledger[bindsResource+3], ledger[bindsMemory] = 4e12, 2e12, 2e12, 1e12
	r.Prediction.divide(ledger)
	r.Versus = []*Versus{{
		Name: "fsdp", Plan: "dp 8 x tp 1 x pp 1", StepSeconds: 12, DeltaSeconds: 2, PeakBytes: 3 << 30, DeltaBytes: -1 << 30,
		Breaks:    &Breaks{Text: "stage 0 over by 1.30 GiB: 3.00 GiB of 1.70 GiB: optimizer 1.00 GiB + 5 in flight x 400.00 MiB"},
		Time:      []TermDifference{{"kernels of the blocks", 4, 5}, {"reducing gradients", 0, 1}, {"recomputation", 0, 0}, {"bubble", 6, 6}},
		Imbalance: TermDifference{"computed beyond the mean rank", 0.5, 0},
		Launches:  TermDifference{"starting kernels and collectives", 1, 0.25},
		Beside:    TermDifference{"beside it, communication", 2, 0},
		Memory:    []PartDifference{{"weight", 1 << 30, 2 << 30}, {partInFlight, 3 << 30, 1 << 30}},
	}, {Name: "dp", Plan: "dp 8 x tp 1 x pp 1", Reason: "none fits in memory", Breaks: &Breaks{Text: "stage 0 over by 1 B: 2 B of 1 B: weight 2 B"}}}
	planned := Option{Change: "as planned", Plan: "P", StepSeconds: 10, TokensPerSecond: 1000, PeakBytes: 4 << 30, GPUHours: 7, plan: r.prog.Plan}
	more, less := planned, planned
	more.Change, more.StepSeconds, more.TokensPerSecond, more.Plan = "2x HBM bandwidth", 8, 1250, "Q"
	less.Change, less.plan, less.Reason = "at most 1.00 GiB", nil, "nothing fits: stage 0 needs 1.00 MiB more at least"
	r.Sensitivities = &Sensitivities{Planned: planned, Now: planned, Changes: []Option{more}}
	r.Fronts = &Fronts{Planned: planned, Memory: []Option{planned, less}, Devices: []Option{planned}}
	r.Divisions = []Division{
		{Parts: 1, StepSeconds: 12, Exposed: 4, Kernels: 5, Launches: 0.5, PeakBytes: 3 << 30},
		{Parts: 2, Chosen: true, StepSeconds: 10, Exposed: 1.5, Kernels: 5.5, Launches: 0.75, Beside: 2, PeakBytes: 4 << 30},
	}
	r.Price(2)
	var text bytes.Buffer
	require.NoError(t, r.Summary(&text))
	golden(t, "answers.txt", text.Bytes())
}

// TestShortfall: why there is no plan, if the closest is not known to be the closest, and if it is too slow to be counted.
func TestShortfall(t *testing.T) {
	e := planner.InfeasibleError{Closest: &partition.Plan{DP: 1, TP: 1}, Stage: 1, Needs: 3 << 20, AtLeast: 3 << 20, Limit: 1 << 20}
	require.Equal(t, "nothing fits: stage 1 needs 2.00 MiB more at least", shortfall(&e))
	e.AtLeast = 2 << 20
	require.Equal(t, "nothing fits: stage 1 of the closest plan that was laid out needs 2.00 MiB more", shortfall(&e))
	e.Needs, e.AtLeast = 1<<20, 1<<20
	require.Equal(t, "a step of the closest plan takes more than the 53 days that can be counted", shortfall(&e))
	v, err := (&Report{}).infeasible("fsdp", &e)
	require.NoError(t, err)
	require.Nil(t, v.Breaks)
	require.Contains(t, v.Reason, "53 days")
}
