package planner

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// What a search promises, on random jobs: go test runs the seeds that are named, make fuzz goes on.

// fuzzSeeds tells some seeds to a fuzz target whose cases do not touch each other.
func fuzzSeeds(f *testing.F, check func(t *testing.T, seed uint64), seeds ...uint64) {
	for _, seed := range seeds {
		f.Add(seed)
	}
	for seed := *firstSeed; seed < *firstSeed+*moreSeeds; seed++ {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		t.Parallel()
		check(t, seed)
	})
}

// randomModel is small and has odd sizes: a GPT or a Llama, in any precision, with a vocabulary of few words or many.
func randomModel(r *rand.Rand) gpt.Config {
	m := tiny(2 + r.IntN(2))
	m.Bias, m.Dropout, m.BlockSize = r.IntN(4) == 0, []float64{0, 0.2}[r.IntN(2)], []int{33, 24, 16}[r.IntN(3)]
	m.NHead = 1 + r.IntN(4)
	m.NEmbd, m.VocabSize = 8*m.NHead, []int{65, 65, 5, 601, 1500}[r.IntN(5)]
	if m.NHead%2 == 0 && r.IntN(2) == 0 {
		m.NKVHead = m.NHead / 2
	}
	if r.IntN(3) == 0 {
		m = llama(m)
	}
	m.Float = []ir.DType{ir.F32, ir.F32, ir.BF16, ir.F16}[r.IntN(4)]
	return m
}

// randomNetwork is a cluster for so many ranks: one with odd figures, a machine that all share, devices of several kinds, or some
// that there are.
func randomNetwork(t *testing.T, r *rand.Rand, ranks int) *cost.Cluster {
	c := randomCluster(r)
	switch r.IntN(8) {
	case 0:
		return sharing(r, c)
	case 1:
		return randomPools(r, ranks)
	case 2, 3:
		return cluster(t, []string{"v100", "a100-40g", "h100", "cpu"}[r.IntN(4)])
	case 4:
		kinds := [][2]string{{"v100", "a100-40g"}, {"h100", "v100"}, {"a10g", "h100"}}[r.IntN(3)]
		return cluster(t, fmt.Sprintf("%s:%d+%s:%d", kinds[0], ranks/2, kinds[1], ranks-ranks/2))
	case 5:
		c.Device.Cache = &cost.Cache{Memory: 1 << (12 + r.IntN(10)), Bandwidth: 10 * c.Device.MemoryBandwidth}
	}
	c.Device.FLOPS["bf16"] = 4 * c.Device.FLOPS["f32"]
	return c
}

// smallJob is a random model, batch and cluster of which a search with some options takes a fraction of a second, as a case of a fuzz
// target must end within ten: for many ranks more is given.
func smallJob(t *testing.T, seed uint64, r *rand.Rand, opts Options) *proven {
	opts.RuntimeNGPUs = []int{2, 2, 2, 3, 4, 4, 8}[r.IntN(7)]
	if opts.RuntimeNGPUs > 2 {
		opts.PlanNGPUs = opts.RuntimeNGPUs
	}
	if opts.RuntimeNGPUs > 3 {
		opts.ZeRO, opts.TP, opts.Offload = stage(r.IntN(4)), []int{1, 2}[r.IntN(2)], "none"
	}
	if opts.RuntimeNGPUs > 4 {
		opts.TP, opts.PP = 2*opts.TP, 1+r.IntN(2)
	}
	model := randomModel(r)
	if x := rand.New(rand.NewPCG(seed, 9)); seed >= adapterSeeds && x.IntN(2) == 0 {
		drawAdapters(x, &model)
	}
	p := &proven{batch: 2 + r.IntN(6), cluster: randomNetwork(t, r, opts.RuntimeNGPUs), opts: opts}
	if seed >= softwareSeeds {
		drawSoftware(rand.New(rand.NewPCG(seed, 10)), p.cluster)
	}
	if p.opts.Offload == "" {
		p.opts.ZeRO = stage(p.batch % 4)
	}
	p.g = step(t, model, p.batch)
	return p
}

// provenJob is a small job of one unit or, with fewer options, of any number of them, with memory to spare or little.
func provenJob(t *testing.T, seed uint64, r *rand.Rand) *proven {
	p := smallJob(t, seed, r, Options{Offload: []string{"", "none"}[r.IntN(2)], TopK: r.IntN(3)})
	if r.IntN(2) == 0 {
		p.opts.PlanNGPUs = 0
	}
	if r.IntN(3) == 0 {
		p.opts.MemoryLimit = 200e3 + r.Int64N(600e3)
	}
	return p
}

// FuzzCertificates: what the search proves is accepted, in memory and read from its text, and is what it finds without a proof; with
// memory to spare and where the best plan just does not fit, again and again until none does; and then the error tells the truth.
func FuzzCertificates(f *testing.F) {
	fuzzSeeds(f, func(t *testing.T, seed uint64) { searchIsProven(t, seed) })
}

func searchIsProven(t *testing.T, seed uint64) (audits []*Audit) {
	r := rand.New(rand.NewPCG(seed, 0))
	p := provenJob(t, seed, r)
	defer keepDrafts(p.g)()
	for range 1 + r.IntN(2) {
		if !p.prove(t) {
			p.checkInfeasible(t)
			return audits
		}
		plain, err := Search(p.g, p.batch, p.cluster, p.opts)
		require.NoError(t, err)
		require.Equal(t, plain.Plan, p.res.Plan)
		back := p.copy(t)
		require.Equal(t, p.cert, back)
		audit, err := p.check(back, 10)
		require.NoError(t, err, "limit %d", p.opts.MemoryLimit)
		require.False(t, 0 < audit.Closest && audit.Closest < 1, "a random plan is faster")
		audits = append(audits, audit)
		p.opts.MemoryLimit = slices.Max(p.res.Prediction.PeakBytes) - 1
	}
	return audits
}

// isOption reports whether no plan is legal with the options.
func isOption(err error) bool {
	return errors.As(err, new(*OptionError)) || errors.As(err, new(*partition.PlanError))
}

// FuzzInfeasible: of what the error says that no plan can need less than a byte less is too little, and what the closest plan
// needs is enough.
func FuzzInfeasible(f *testing.F) { fuzzSeeds(f, errorIsTrue, 0, 1, 2, 5) }

func errorIsTrue(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0))
	p := smallJob(t, seed, r, Options{MemoryLimit: 1 << 10, Offload: []string{"", "none"}[r.IntN(2)]})
	if r.IntN(2) == 0 {
		given(r, p)
	}
	defer keepDrafts(p.g)()
	p.checkInfeasible(t)
}

// checkInfeasible checks the error of a search in which nothing fits.
func (p *proven) checkInfeasible(t *testing.T) {
	var none *InfeasibleError
	if _, err := Search(p.g, p.batch, p.cluster, p.opts); isOption(err) {
		return
	} else {
		require.ErrorAs(t, err, &none)
	}
	require.LessOrEqual(t, none.AtLeast, none.Needs)
	for limit, fits := range map[int64]bool{none.Needs: true, none.AtLeast - 1: false} {
		opts := p.opts
		opts.MemoryLimit = limit
		got, err := Search(p.g, p.batch, p.cluster, opts)
		require.Equal(t, fits, err == nil, "in %d bytes, where at least %d are said to be needed, and %d by %+v: %v", limit, none.AtLeast, none.Needs, none.Closest, err)
		if !fits {
			require.ErrorAs(t, err, new(*InfeasibleError))
			continue
		}
		require.LessOrEqual(t, slices.Max(got.Prediction.PeakBytes), limit)
	}
}

// FuzzOptions: no search with an option finds a plan of the space of the search without that is faster than the best of it.
func FuzzOptions(f *testing.F) { fuzzSeeds(f, optionsAreNoFaster, 0, 2, 3, 4, 6) }

func optionsAreNoFaster(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0))
	p := smallJob(t, seed, r, Options{})
	if r.IntN(3) == 0 {
		given(r, p)
	}
	defer keepDrafts(p.g)()
	for limited := range 2 {
		free, err := Search(p.g, p.batch, p.cluster, p.opts)
		if isOption(err) {
			return
		}
		if err != nil {
			require.ErrorAs(t, err, new(*InfeasibleError))
		}
		for range 4 {
			with := *p
			for range 1 + r.IntN(2) {
				given(r, &with)
			}
			found, err := Search(p.g, p.batch, p.cluster, with.opts)
			if isOption(err) || errors.As(err, new(*InfeasibleError)) {
				continue
			}
			require.NoError(t, err)
			if free == nil || found.Prediction.Step < free.Prediction.Step && free.Stats.Optimal {
				require.False(t, p.has(found.Plan), "%+v finds %+v of %d ps, %+v finds %+v", with.opts, found.Plan, found.Prediction.Step, p.opts, free)
			}
		}
		if free == nil || limited == 1 {
			return
		}
		p.opts.MemoryLimit = slices.Max(free.Prediction.PeakBytes) - 1 - r.Int64N(2)*r.Int64N(50e3)
	}
}

// given gives one option of a plan, or none that makes sense.
func given(r *rand.Rand, p *proven) {
	o := &p.opts
	word := func(words ...string) string { return words[r.IntN(len(words))] }
	degree := func() int { return []int{1, 1, 2, 2, 3, 4}[r.IntN(6)] }
	switch r.IntN(23) {
	case 0:
		o.DP = degree()
	case 1:
		o.TP = degree()
	case 2:
		o.PP = degree()
	case 3:
		o.CP = degree()
	case 4, 5:
		o.MicroBatch = 1 + r.IntN(p.batch)
	case 6:
		o.Schedule = partition.Schedule(word("1f1b", "gpipe", "zero-bubble", "interleaved", "eager-1f1b", "eager-zero-bubble"))
	case 7:
		o.Interleave = 1 + r.IntN(4)
	case 8:
		o.ZeRO = stage(r.IntN(4))
	case 9:
		o.ZeROGroup = 2 + r.IntN(3)
	case 10:
		o.SequenceParallel = word("on", "off")
	case 11:
		o.BatchParallel = word("on", "off")
	case 12:
		o.Overlap = word("on", "off")
	case 13:
		o.OverlapTP = word("on", "off")
	case 14:
		o.TPPieces = degree()
	case 15:
		o.TPRows = 1 + r.IntN(2)
	case 16:
		o.Replicate = word("none", "attn", "mlp", "wte", "attn+mlp")
	case 17, 18:
		o.Recompute = Recompute(word("none", "pointwise", "selective", "full"))
	case 19:
		o.Offload = word("none", "optimizer", "params")
	case 20:
		o.LossSlices = 1 << r.IntN(5)
	case 21:
		o.RankOrder = word("tp-cp-dp-pp", "dp-tp-cp-pp", "pp-dp-cp-tp", "pp-tp-cp-dp", "tp-cp-pp-dp")
	case 22:
		o.OverlapP2P = word("on", "off")
	}
}

// has reports whether a plan that fits is in the space that is declared for a search.
func (p *proven) has(plan *partition.Plan) bool {
	opts, err := p.opts.on(p.cluster, p.batch)
	if err != nil {
		return false
	}
	s := newSearcher(p.g, p.batch, p.cluster, opts)
	a := newAuditor(s, &Certificate{Plan: plan})
	o := a.outlineOf(plan)
	declared := o
	declared.slices, declared.pieces = opts.slices(), 0
	among := false
	d := &a.declared
	d.each(func(x outline) {
		among = among || x == declared && slices.Contains(d.sliceCounts(x), o.slices) && slices.Contains(d.pieceCounts(x), o.pieces) &&
			(len(d.pieceCounts(x)) == 1 || o.pieces < 2*plan.MicroBatch) && slices.Contains(d.sizes(x), plan.MicroBatch) && slices.Contains(d.schedules(x), plan.Schedule)
	})
	return among && a.isTemplate(o) == nil && !a.fitsWithFewer(plan) && d.hasRecomputation(plan, o.replicate)
}

// hasRecomputation reports whether the stages of a plan may recompute what they do. With several chunks, which have what is
// necessary of none, norms and activation functions, and all, only nothing is known to be.
func (d *declared) hasRecomputation(plan *partition.Plan, replicate string) bool {
	for _, st := range plan.Stages {
		r := recomputationOf(st)
		if plan.Chunks() > 1 && r != (recomputation{}) || !slices.Contains(d.recomputations(st.Last-st.First, replicate), r) {
			return false
		}
	}
	return true
}
