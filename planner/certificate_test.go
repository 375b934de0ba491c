package planner

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// proven is a search with its certificate.
type proven struct {
	g       *ir.Graph
	batch   int
	cluster *cost.Cluster
	opts    Options
	res     *Result
	cert    *Certificate
}

func (p proven) check(c *Certificate, samples int) (*Audit, error) {
	return Certify(p.g, p.batch, p.cluster, nil, c, samples, 1)
}

// copy returns the certificate as it is read from a file.
func (p proven) copy(t *testing.T) *Certificate {
	c, line, err := parseCertificate(p.cert.Marshal())
	require.NoError(t, err, "line %d", line)
	return c
}

// prove searches. It reports whether any plan is legal and fits.
func (p *proven) prove(t *testing.T) bool {
	var err error
	if p.res, p.cert, err = SearchCertified(p.g, p.batch, p.cluster, p.opts); err != nil {
		require.True(t, errors.As(err, new(*InfeasibleError)) || isOption(err), "%v", err)
	}
	return err == nil
}

// TestCertificates: what the search of random jobs proves is accepted, and is proven for every reason that there is.
func TestCertificates(t *testing.T) {
	t.Parallel()
	cases := most(30, 16)
	if testing.Short() {
		cases = 6
	}
	reasons, samples, cuts := map[string]int{}, 0, 0
	for seed := range cases {
		if left(seed, 2, 0) {
			continue
		}
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			for _, audit := range searchIsProven(t, uint64(seed)) {
				samples, cuts = samples+audit.Samples, cuts+audit.Cuts
				for _, x := range audit.Reasons {
					reasons[x.Reason] += x.Points
				}
			}
		})
	}
	t.Logf("%v, %d random plans, %d while searching cuts", reasons, samples, cuts)
	for _, reason := range []reason{byTrunk, byStages, byCuts, byMemory, byTwin, spares, bySearch} {
		if testing.Short() {
			break // so few cases do not have them all
		}
		require.Positive(t, reasons[string(reason)], reason)
	}
}

// TestCertificateOptions: the space of the checker, which lists it by itself, is that of
// the search under whatever options.
func TestCertificateOptions(t *testing.T) {
	t.Parallel()
	const seed = 22
	model := tiny(4)
	model.BlockSize = 24
	g := step(t, model, 4)
	defer keepDrafts(g)()
	for k, opts := range []Options{
		{}, {PlanNGPUs: 4}, {CP: 2}, {TP: 2}, {PP: 2}, {DP: 2}, {MicroBatch: 2}, {Schedule: partition.GPipe}, {Schedule: partition.ZeroBubble},
		{Schedule: partition.Interleaved}, {Interleave: 2}, {Interleave: 1}, {Recompute: RecomputeFull}, {Recompute: RecomputeSelective}, {Recompute: RecomputePointwise}, {Recompute: RecomputeNone},
		{Policy: DP}, {Policy: FSDP}, {Policy: Megatron}, {Policy: Megatron, Interleave: 2}, {ZeRO: stage(0)}, {ZeRO: stage(2)}, {ZeROGroup: 2}, {ZeRO: stage(3), ZeROGroup: 4},
		{SequenceParallel: "on"}, {SequenceParallel: "off"}, {Overlap: "on"}, {Overlap: "off"}, {Offload: "optimizer"}, {Offload: "params"}, {RankOrder: "dp-tp-cp-pp"}, {RankOrder: "pp-dp-cp-tp", PlanNGPUs: 4}, {TP: 4}, {TPRows: 2}, {TPRows: 1, TP: 4},
		{Pins: []partition.Placement{{Match: `wte\.weight`, Spec: "[_,_]"}}},
		{Schedule: partition.EagerOneFOneB}, {Schedule: partition.EagerZeroBubble},
	} {
		r := rand.New(rand.NewPCG(seed, uint64(k)))
		p := proven{g: g, batch: 4, cluster: randomCluster(r)}
		opts.RuntimeNGPUs = 4
		opts.LossSlices = min(1, k%8) // every eighth leaves them open, which makes spaces larger
		if k%6 > 0 && opts.Offload == "" {
			opts.Offload = "none" // as does this
		}
		var err error
		_, p.cert, err = SearchCertified(p.g, p.batch, p.cluster, opts)
		require.NoError(t, err, "%+v", opts)
		_, err = p.check(p.cert, 5)
		require.NoError(t, err, "seed %d case %d: %+v", seed, k, opts)
	}
}

// ways tells how what a region communicates goes through the network, in the first of its
// orders of ranks.
func (r *Region) ways(p *proven) string {
	plan := partition.Plan{
		PlanNGPUs: r.plan, RuntimeNGPUs: p.cert.Plan.RuntimeNGPUs, DP: r.dp, CP: r.cp, TP: r.tp, TPRows: r.rows, ZeRO: r.zero, ZeROGroup: r.group,
		MicroBatch: p.batch, Stages: make([]partition.Stage, r.pp), RankOrder: r.ranks[0],
	}
	return cost.NewProgram(p.cluster, &plan, plan.Mesh(p.batch)).Ways()
}

// TestTamperedCertificates: whatever is changed is found, with the line.
func TestTamperedCertificates(t *testing.T) {
	t.Parallel()
	const seed = 24
	r := rand.New(rand.NewPCG(seed, 0))
	found := func(c *Certificate, ok func(r *Region) bool) *Region {
		var all []*Region
		for i := range c.Regions {
			if ok(&c.Regions[i]) {
				all = append(all, &c.Regions[i])
			}
		}
		if len(all) == 0 {
			return nil
		}
		return all[r.IntN(len(all))]
	}
	of := func(reasons ...reason) func(r *Region) bool {
		return func(r *Region) bool { return slices.Contains(reasons, r.reason) }
	}
	nodes := cluster(t, "h100")
	nodes.DevicesPerNode = 3 // over which units of 2, 4 and 8 and their orders lie in different ways
	slow := nodes.Clone()
	slow.Device.FLOPS = map[string]float64{"f32": 1e10} // so that more ranks take less time
	g := step(t, tiny(2), 4)
	pool := []*proven{
		{g: g, batch: 4, cluster: nodes, opts: Options{RuntimeNGPUs: 8, TP: 2, ZeRO: stage(0), Offload: "none"}},
		{g: g, batch: 4, cluster: slow, opts: Options{PlanNGPUs: 4, TP: 2, ZeRO: stage(0), Offload: "none", Overlap: "off"}},
	}
	for _, p := range pool {
		require.True(t, p.prove(t))
	}
	for len(pool) < most(30, 20) {
		if p := provenJob(t, 0, r); p.prove(t) {
			pool = append(pool, p)
		}
	}
	raised := func(by reason) func(p *proven, c *Certificate) bool {
		return func(_ *proven, c *Certificate) bool {
			x := found(c, of(by))
			if x != nil { // by one may still be proven, as less was computed than could be
				x.bound = never + 1
			}
			return x != nil
		}
	}
	for _, tamper := range []struct {
		name, want string
		do         func(p *proven, c *Certificate) bool // false where it cannot be done
	}{
		{"trunk bound raised", "the certificate says", raised(byTrunk)},
		{"stages bound raised", "the certificate says", raised(byStages)},
		{"cuts bound raised", "the certificate says", raised(byCuts)},
		{"order of ranks added", "the space has no", func(_ *proven, c *Certificate) bool {
			x := found(c, func(r *Region) bool { return r.pp == 1 })
			x.ranks = append(x.ranks, "tp-pp")
			return true
		}},
		{"bound below the winner", "of the winner", func(_ *proven, c *Certificate) bool {
			x := found(c, of(byTrunk, byStages, byCuts))
			if x != nil {
				x.bound = c.Step - 1
			}
			return x != nil
		}},
		{"bound of a region that was searched", "", func(_ *proven, c *Certificate) bool {
			x := found(c, of(bySearch))
			if x != nil {
				x.reason, x.bound = byStages, c.Step+1
			}
			return x != nil
		}},
		{"more fits", "blocks of", func(_ *proven, c *Certificate) bool {
			x := found(c, func(r *Region) bool { return r.reason == byMemory && r.holds > 0 })
			if x != nil {
				x.holds--
			}
			return x != nil
		}},
		{"nothing fits", "blocks of", func(p *proven, c *Certificate) bool {
			if p.opts.MemoryLimit > 0 { // in little memory it may be true
				return false
			}
			x := found(c, of(byStages, byTrunk))
			if x != nil {
				x.reason, x.holds = byMemory, 0
			}
			return x != nil
		}},
		{"not alike", "not everything goes the same ways", func(p *proven, c *Certificate) bool {
			for i := range c.Regions {
				x := &c.Regions[i]
				y := found(c, func(y *Region) bool {
					like := y.outline
					like.plan, like.dp = x.plan, y.dp*x.plan/y.plan
					return x.reason != byTwin && x.ranks[0] == "" && y.ranks[0] == "" && y.reason != byTwin && y.plan < x.plan && y.dp*x.plan%y.plan == 0 && like == x.outline && x.ways(p) != y.ways(p)
				})
				if y != nil {
					x.reason, x.unit = byTwin, y.plan
					return true
				}
			}
			return false
		}},
		{"not alike to the usual order", "not everything goes the same ways", func(p *proven, c *Certificate) bool {
			x := found(c, func(r *Region) bool {
				usual := *r
				usual.ranks = []string{""}
				return r.ranks[0] != "" && r.reason != byTwin && r.ways(p) != usual.ways(p) && found(c, func(y *Region) bool {
					return y.outline == r.outline && y.ranks[0] == "" && y.reason != byTwin
				}) != nil && found(c, func(y *Region) bool { // nothing is alike to it
					return y.reason == byTwin && y.unit == r.plan && slices.Contains(r.ranks, y.as)
				}) == nil
			})
			if x != nil {
				x.reason, x.unit, x.as = byTwin, x.plan, ""
			}
			return x != nil
		}},
		{"order of ranks dropped", "ranks in order", func(_ *proven, c *Certificate) bool {
			x := found(c, func(r *Region) bool { return len(r.ranks) > 1 })
			if x != nil {
				x.ranks = x.ranks[1:]
			}
			return x != nil
		}},
		{"alike to nothing", "no region but alike ones has", func(_ *proven, c *Certificate) bool {
			x := found(c, func(r *Region) bool { return r.reason != byTwin && r.plan > 1 && r.dp < r.plan && r.ranks[0] == "" })
			if x != nil {
				x.reason, x.unit = byTwin, x.plan
			}
			return x != nil
		}},
		{"alike to each other", "no region but alike ones has", func(p *proven, c *Certificate) bool {
			x := found(c, func(r *Region) bool {
				return r.reason == byTwin && r.unit == r.plan && len(r.sizes) > 1
			})
			if x != nil {
				c.Regions = eachOther(c.Regions, *x)
			}
			return x != nil
		}},
		{"refused that compiles", "can be compiled", func(_ *proven, c *Certificate) bool {
			x := found(c, of(byTrunk, byStages, byCuts))
			if x != nil {
				x.reason = refused
			}
			return x != nil
		}},
		{"region dropped", "no region has", func(_ *proven, c *Certificate) bool {
			at := found(c, func(r *Region) bool { return r.reason != bySearch })
			if at == nil {
				return false
			}
			line := at.line
			c.Regions = slices.DeleteFunc(c.Regions, func(r Region) bool { return r.line == line })
			return true
		}},
		{"region twice", "already", func(_ *proven, c *Certificate) bool {
			c.Regions = append(c.Regions, *found(c, func(*Region) bool { return true }))
			return true
		}},
		{"size dropped", "no region has micro-batches of", func(p *proven, c *Certificate) bool {
			x := found(c, func(r *Region) bool { return len(r.sizes) > 1 && !slices.Contains(r.sizes, c.Plan.MicroBatch) })
			if x != nil {
				x.sizes = x.sizes[1:]
			}
			return x != nil
		}},
		{"size added", "the space has no micro-batches of", func(p *proven, c *Certificate) bool {
			x := found(c, func(*Region) bool { return true })
			x.sizes = append(x.sizes, p.batch+1)
			return true
		}},
		{"outline added", "the space has no unit", func(p *proven, c *Certificate) bool {
			x := *found(c, func(*Region) bool { return true })
			x.dp *= 7
			c.Regions = append(c.Regions, x)
			return true
		}},
		{"winner faster", "the winner takes", func(_ *proven, c *Certificate) bool { c.Step--; return true }},
		{"winner slower", "the winner takes", func(_ *proven, c *Certificate) bool { c.Step++; return true }},
		{"winner leaner", "the winner needs", func(_ *proven, c *Certificate) bool { c.Peaks[0]--; return true }},
		{"another winner", "", func(p *proven, c *Certificate) bool {
			if len(p.res.Alternatives) == 0 || p.res.Alternatives[0].Prediction.Step == c.Step {
				return false
			}
			a := p.res.Alternatives[0]
			c.Plan, c.Step, c.Peaks = a.Plan, a.Prediction.Step, a.Prediction.PeakBytes
			return true
		}},
		{"graph", "the certificate is for a graph", func(_ *proven, c *Certificate) bool { c.GraphHash = strings.Repeat("0", 64); return true }},
		{"cluster", "the certificate is for a cluster", func(_ *proven, c *Certificate) bool { c.ClusterHash = strings.Repeat("0", 64); return true }},
		{"limit", "the limit is", func(_ *proven, c *Certificate) bool { c.Limit--; return true }},
		{"winner of more ranks", "the winner is for", func(p *proven, c *Certificate) bool {
			more := *c.Plan
			more.RuntimeNGPUs, more.MicroBatch = 2*more.RuntimeNGPUs, (more.MicroBatch+1)/2
			x, err := Predict(p.g, p.batch, p.cluster, &more, nil)
			c.Plan, c.Step, c.Peaks = &more, x.Step, x.PeakBytes
			return err == nil && c.Step < p.cert.Step
		}},
		{"winner with shares", "the winner shares the batch as", func(_ *proven, c *Certificate) bool {
			shared := *c.Plan
			if shared.DataParallel() == 1 || shared.Copies() > 1 {
				return false
			}
			shared.BatchShares = slices.Repeat([]int{1}, shared.DataParallel()) // as in the space, but in other words
			c.Plan = &shared
			return true
		}},
		{"fewer options", "the space has no unit", func(_ *proven, c *Certificate) bool {
			if c.Options.TP > 1 || c.Options.PP > 1 {
				return false
			}
			c.Options.PlanNGPUs, c.Options.DP = 1, 1
			return true
		}},
		{"more options", "no region has", func(_ *proven, c *Certificate) bool {
			if c.Options.Offload == "" {
				return false
			}
			c.Options.Offload = ""
			return true
		}},
	} {
		done := 0
		for _, p := range pool {
			c := p.copy(t)
			if done == most(3, 2) || !tamper.do(p, c) {
				continue
			}
			done++
			_, err := p.check(c, 0)
			var refuted *RefutedError
			require.ErrorAs(t, err, &refuted, "seed %d: %s", seed, tamper.name)
			require.ErrorContains(t, err, tamper.want, "%s", tamper.name)
			if done == 1 {
				t.Logf("%s: %v", tamper.name, err)
			}
		}
		require.Positive(t, done, tamper.name)
	}
}

// eachOther has the outline that a region is alike to, in the first of its orders of ranks, be alike to the region in turn, but for micro-batches of one size, of
// which it says of both what it said of one.
func eachOther(regions []Region, r Region) (all []Region) {
	for _, x := range regions {
		if x.line == r.line {
			if x.ranks = x.ranks[1:]; len(x.ranks) > 0 {
				all = append(all, x)
			}
			continue
		}
		if x.outline != r.outline || !slices.Equal(x.ranks, []string{r.as}) {
			all = append(all, x)
			continue
		}
		for _, shown := range []bool{true, false} {
			part := x
			part.sizes = slices.DeleteFunc(slices.Clone(x.sizes), func(n int) bool { return (n == r.sizes[0]) != shown })
			for i, ranks := range []string{r.as, r.ranks[0]} {
				if part.ranks = []string{ranks}; !shown {
					part.reason, part.unit, part.as = byTwin, r.plan, []string{r.ranks[0], r.as}[i]
				}
				if len(part.sizes) > 0 {
					all = append(all, part)
				}
			}
		}
	}
	return all
}

// TestMalformedCertificates: errors name the line.
// TestNarrowedCertificate: a certificate of which the space is narrower than the winner asks for proves nothing.
func TestNarrowedCertificate(t *testing.T) {
	t.Parallel()
	c := cluster(t, "a10g")
	p := proven{g: step(t, tiny(3), 5), batch: 5, cluster: c, opts: Options{RuntimeNGPUs: 4, OverlapTP: "off", OverlapP2P: "off", Overlap: "off"}}
	require.True(t, p.prove(t))
	cert := p.copy(t)
	require.True(t, cert.Everywhere)
	for cert.Everywhere = false; ; {
		_, err := p.check(cert, 0)
		var refuted *RefutedError
		require.ErrorAs(t, err, &refuted)
		at := slices.IndexFunc(cert.Regions, func(r Region) bool { return r.line == refuted.Line })
		if at < 0 {
			require.Equal(t, 7, refuted.Line, "%v", err)
			break
		}
		cert.Regions = slices.Delete(cert.Regions, at, at+1) // it is not of the narrower space
	}
}

func TestMalformedCertificates(t *testing.T) {
	p := proven{g: step(t, tiny(2), 4), batch: 4, cluster: cluster(t, "h100"), opts: Options{RuntimeNGPUs: 2, Offload: "none"}}
	require.True(t, p.prove(t))
	text := string(p.cert.Marshal())
	lines := strings.SplitAfter(text, "\n")
	region := lines[11]
	for _, tt := range []struct{ text, want string }{
		{"", "certificate: ends without"},
		{"autopar certificate 2\n", `:1: is "autopar certificate 2", want "autopar certificate 1"`},
		{lines[0] + lines[2], `:2: is "config", want key graph`},
		{lines[0] + "graph 7\n", ":2: graph: not a value: 7"},
		{strings.Replace(text, `"TP":`, `"TPP":`, 1), ":5: options: not a value"},
		{strings.Replace(text, region, "unproven"+region[strings.Index(region, " "):], 1), `:12: "unproven" is no reason, must be one of trunk stages`},
		{strings.Replace(text, region, strings.Replace(region, " tp=", " tpp=", 1), 1), ":12: tpp: there is no such key here"},
		{strings.Replace(text, region, strings.Replace(region, " tp=", " dp=", 1), 1), ":12: dp: there is no such key here, or twice"},
		{strings.Replace(text, region, strings.Replace(region, " dp=", " dp=-", 1), 1), ":12: dp: \"-2\": must be a whole number"},
		{strings.Replace(text, region, strings.Replace(region, " sizes=", " sizes=9-3,", 1), 1), ":12: sizes: "},
		{strings.Replace(text, region, strings.Replace(region, " sizes=", " sizes=1-3,2,", 1), 1), ":12: sizes: "},
		{strings.Replace(text, region, strings.Replace(region, " sp=off", " sp=no", 1), 1), ":12: sp: \"no\": must be on or off"},
		{strings.Replace(text, region, strings.Replace(region, " sp=off", "", 1), 1), "key sp is missing"},
		{strings.Replace(text, region, "", 1), "regions before it"},
		{strings.Join(lines[:len(lines)-2], ""), "the file was cut off"},
		{text + "more\n", "there is more after the end"},
		{text[:len(text)/2], "certificate:"},
	} {
		file := filepath.Join(t.TempDir(), "certificate")
		require.NoError(t, os.WriteFile(file, []byte(tt.text), 0o600))
		_, err := ReadCertificate(file)
		require.ErrorAs(t, err, new(*CertificateError), tt.want)
		require.ErrorContains(t, err, tt.want)
	}
	none := filepath.Join(t.TempDir(), "none")
	_, err := ReadCertificate(none)
	require.ErrorAs(t, err, new(*CertificateError))
	require.ErrorContains(t, err, none+": cannot be read: no such file or directory")
}

// TestFixedListsEveryOption: what a search was told is said, whatever it is, but for what the configuration says.
func TestFixedListsEveryOption(t *testing.T) {
	require.Empty(t, Options{Policy: "autodist"}.Fixed())
	elsewhere := []string{"PlanNGPUs", "RuntimeNGPUs", "MemoryLimit", "Pins", "TopK", "Eval"}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Options]()) {
		var o Options
		switch v := reflect.ValueOf(&o).Elem().FieldByIndex(field.Index); {
		case slices.Contains(elsewhere, field.Name):
			continue
		case v.Kind() == reflect.Int:
			v.SetInt(3)
		case v.Kind() == reflect.String:
			v.SetString("x")
		default:
			o.ZeRO = stage(0)
		}
		require.Len(t, o.Fixed(), 1, field.Name)
	}
}
