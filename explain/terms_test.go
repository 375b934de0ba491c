package explain

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// TestTermsAddUp: both divisions of a step add up to it, and agree with the coarse breakdown.
func TestTermsAddUp(t *testing.T) {
	for name, s := range shapes() {
		for _, cluster := range []string{"h100", "cpu", "v100"} {
			c, err := cost.Load(cluster)
			require.NoError(t, err)
			if s.offload != "" && c.Host == nil {
				continue
			}
			r, err := Of(program(t, s), nil, s.config())
			require.NoError(t, err)
			require.NoError(t, r.Predict(c))
			p := r.Prediction
			for _, shares := range [][]Share{p.Terms, p.Binds} {
				sum := 0.0
				for _, x := range shares {
					require.GreaterOrEqual(t, x.Seconds, 0.0, "%s on %s: %s", name, cluster, x.Name)
					sum += x.Seconds
				}
				require.InEpsilon(t, p.StepSeconds, sum, 1e-9, "%s on %s", name, cluster)
			}
			communication := 0.0
			for i := termTensor; i <= termHost; i++ {
				communication += p.Terms[i].Seconds
			}
			require.InDelta(t, p.Communication, communication, 1e-9*p.StepSeconds, "%s on %s", name, cluster)
			require.InDelta(t, p.Compute, p.Terms[termBlocks].Seconds+p.Terms[termHead].Seconds+p.Terms[termRecompute].Seconds, 1e-9*p.StepSeconds, name)
			require.InDelta(t, p.Optimizer, p.Terms[termOptimizer].Seconds, 1e-9*p.StepSeconds, name)
		}
	}
}

// TestTermsAreThere: the terms of a plan are positive for what the plan does, and zero for what it does not.
func TestTermsAreThere(t *testing.T) {
	for _, x := range []struct {
		shape string
		has   []int
		not   []int
	}{
		{"single", []int{termBlocks, termHead, termOptimizer}, []int{termRecompute, termTensor, termGradients, termTransfers, terms}},
		{"data", []int{termGradients}, []int{termTensor, termTransfers, termParameters}},
		{"tensor", []int{termTensor}, []int{termGradients, termTransfers}},
		{"combined", []int{termTensor, termGradients, termTransfers, termRecompute}, []int{termHost, termParameters}},
		{"gathered", []int{termParameters, termTensor}, []int{termHost}},
		{"hosted", []int{termHost, termGradients, termParameters}, []int{termTensor}},
	} {
		terms := report(t, shapes()[x.shape]).Prediction.Terms
		for _, i := range x.has {
			require.Positive(t, terms[i].Seconds, "%s: %s", x.shape, terms[i].Name)
		}
		for _, i := range x.not {
			require.Zero(t, terms[i].Seconds, "%s: %s", x.shape, terms[i].Name)
		}
	}
}

// TestWhatBinds: a resource that is very slow binds.
func TestWhatBinds(t *testing.T) {
	share := func(p *Prediction, name string) float64 {
		for _, s := range p.Binds {
			if s.Name == name {
				return s.Seconds / p.StepSeconds
			}
		}
		t.Fatalf("no %s", name)
		return 0
	}
	s := shapes()["data"]
	r, err := Of(program(t, s), nil, s.config())
	require.NoError(t, err)
	for resource := cost.Arithmetic; resource <= cost.IntraLink; resource++ {
		c, err := cost.Load("h100")
		require.NoError(t, err)
		require.NoError(t, r.Predict(c.Faster(resource, 1e-5)))
		require.Greater(t, share(r.Prediction, resource.String()), 0.9, resource.String())
		c.DevicesPerNode = 1
		require.NoError(t, r.Predict(c.Faster(cost.InterLink, 1e-5)))
		require.Greater(t, share(r.Prediction, cost.InterLink.String()), 0.9)
	}
	whole := shapes()["single"]
	whole.stages = []partition.Stage{{Last: layers, Recompute: layers}}
	p := report(t, whole).Prediction
	require.Equal(t, p.Terms[termRecompute].Seconds, p.Binds[len(p.Binds)-2].Seconds)
	require.Greater(t, share(p, memoryCapacity), 0.1)
}

// TestLinksBindCommunication: if collectives are started in no time, links bind all communication, also that by which
// collectives delay the kernels beside them.
func TestLinksBindCommunication(t *testing.T) {
	c, err := cost.Load("h100")
	require.NoError(t, err)
	c.Device.LaunchOverhead = 0
	for name, s := range shapes() {
		if s.offload.Moves() { // to the host, because memory is short
			continue
		}
		r, err := Of(program(t, s), nil, s.config())
		require.NoError(t, err)
		require.NoError(t, r.Predict(c))
		p := r.Prediction
		require.InDelta(t, p.Communication, p.Binds[cost.IntraLink].Seconds+p.Binds[cost.InterLink].Seconds, 1e-6*p.StepSeconds, name)
	}
}

// TestImbalance: two stages with the same computation have none. If one has a block more than the other, it has half a block more
// than the mean.
func TestImbalance(t *testing.T) {
	require.Zero(t, report(t, shapes()["single"]).Prediction.Imbalance)
	require.Positive(t, report(t, shapes()["data"]).Prediction.Imbalance, "one rank of three has three sequences of seven")
	a, b := make([]float64, accounts), make([]float64, accounts)
	a[termBlocks], a[termHead], b[termBlocks] = 3e12, 1e12, 2e12
	require.InDelta(t, 1, imbalance(a, [][]float64{a, b}), 1e-12)
	require.Zero(t, imbalance(b, [][]float64{b, b}))
}
