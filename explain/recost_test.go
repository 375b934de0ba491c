package explain

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/planner"
	"github.com/autopar/autopar/planner/cost"
)

// planned searches a plan of a small model for four devices of a cluster.
func planned(t *testing.T, cluster string, o planner.Options) *planner.Document {
	cfg, err := config.Parse("gpt.yaml", []byte("model: {n_layer: 4, n_head: 3, n_embd: 48, block_size: 33, vocab_size: 65}\nbatch: {global: 14}\n"), nil)
	require.NoError(t, err)
	g, err := cfg.TrainStep()
	require.NoError(t, err)
	c, err := cost.Load(cluster)
	require.NoError(t, err)
	o.PlanNGPUs, o.RuntimeNGPUs = 4, 4
	if o.Eval, err = cfg.EvalStep(); err != nil {
		t.Fatal(err)
	}
	found, err := planner.Search(g, cfg.Batch.Global, c, o)
	require.NoError(t, err)
	return planner.NewDocument(cfg, g, c, found)
}

// changed is the configuration of a document with some settings changed.
func changed(t *testing.T, doc *planner.Document, set ...string) *config.Config {
	cfg, err := config.Parse("plan", doc.Config.Marshal(), set)
	require.NoError(t, err)
	return cfg
}

// TestRecostIsThePlannersPrice: if nothing changes, the prediction is that of the search. On another cluster or configuration it
// is what a search there predicts for the same plan.
func TestRecostIsThePlannersPrice(t *testing.T) {
	doc := planned(t, "h100", planner.Options{DP: 2, PP: 2, TP: 1, MicroBatch: 2})
	same, err := NewRecost(doc, doc.Cluster, doc.Config)
	require.NoError(t, err)
	require.Equal(t, doc.Predicted, same.Was.Predicted)
	require.Equal(t, same.Was, same.Now)
	require.True(t, same.Now.Fits)

	other, err := cost.Load("v100")
	require.NoError(t, err)
	cfg := changed(t, doc, "batch.global=28", "model.block_size=66")
	r, err := NewRecost(doc, other, cfg)
	require.NoError(t, err)
	require.Equal(t, doc.Predicted, r.Was.Predicted)
	g, err := cfg.TrainStep()
	require.NoError(t, err)
	eval, err := cfg.EvalStep()
	require.NoError(t, err)
	want, err := planner.Predict(g, 28, other, doc.Plan, eval)
	require.NoError(t, err)
	require.Equal(t, want.Step.Seconds(), r.Now.Predicted.StepSeconds)
	require.Equal(t, want.PeakBytes, r.Now.Predicted.PeakBytes)
	require.Greater(t, slices.Max(r.Now.Predicted.PeakBytes), slices.Max(r.Was.Predicted.PeakBytes), "longer sequences")
	require.Equal(t, "v100", r.Now.Cluster)
	require.Equal(t, [2]int{28, 66}, [2]int{r.Now.Batch, r.Now.Sequence})

	var text, data bytes.Buffer
	require.NoError(t, r.Text(&text))
	for _, want := range []string{"h100", "v100", "sequences per step", "14", "28", "it fits: stage"} {
		require.Contains(t, text.String(), want)
	}
	require.NoError(t, r.JSON(&data))
	var back Recost
	require.NoError(t, json.Unmarshal(data.Bytes(), &back))
	require.Equal(t, *r, back)
}

func TestRecostSaysWhatDoesNotFit(t *testing.T) {
	doc := planned(t, "h100", planner.Options{DP: 4, PP: 1, TP: 1, MicroBatch: 1})
	small := *doc.Cluster
	small.Device.Memory, small.Device.Reserve = slices.Max(doc.Predicted.PeakBytes)-1, 0
	r, err := NewRecost(doc, &small, doc.Config)
	require.NoError(t, err)
	require.False(t, r.Now.Fits)
	var text bytes.Buffer
	require.NoError(t, r.Text(&text))
	require.Contains(t, text.String(), "it does not fit: stage 0 needs")
	require.Regexp(t, " bytes, 1 more than the [0-9,]+ that a rank has; plan again\n$", text.String())
	small.Device.Memory++
	r, err = NewRecost(doc, &small, doc.Config)
	require.NoError(t, err)
	require.True(t, r.Now.Fits, "to the byte")
}

// TestMemoryOfPools: the report and the recosted plan say the same of the memory of a stage, also under a limit of the configuration.
func TestMemoryOfPools(t *testing.T) {
	c, err := cost.Load("v100:1+h100:1")
	require.NoError(t, err)
	for _, limit := range []config.Bytes{0, 1 << 30, 20 << 30} {
		cfg := testConfig()
		cfg.Parallel.MemoryLimit = limit
		g, err := cfg.TrainStep()
		require.NoError(t, err)
		found, err := planner.Search(g, cfg.Batch.Global, c, planner.Options{PlanNGPUs: 2, PP: 2, MemoryLimit: int64(limit)})
		require.NoError(t, err)
		doc := planner.NewDocument(cfg, g, c, found)
		r, err := read(doc)
		require.NoError(t, err)
		again, err := NewRecost(doc, c, cfg)
		require.NoError(t, err)
		for i, d := range r.Prediction.Devices {
			require.Equal(t, again.Now.Memories[i], d.Limit, "stage %d, limit %d", i, limit)
		}
		require.NoError(t, r.Divide())
	}
}

// TestRecostRefuses: if a plan does not apply, the error says why.
func TestRecostRefuses(t *testing.T) {
	doc := planned(t, "h100", planner.Options{DP: 2, PP: 2, TP: 1, MicroBatch: 7})
	for _, tt := range []struct{ set, key, want string }{
		{"batch.global=1", "plan.", "plan again"},
		{"model.n_layer=5", "plan.stages", "plan again"},
	} {
		_, err := NewRecost(doc, doc.Cluster, changed(t, doc, tt.set))
		var bad *planner.DocumentError
		require.True(t, errors.As(err, &bad), "%s: %v", tt.set, err)
		require.True(t, strings.HasPrefix(bad.Key, tt.key), "%s: %s", tt.set, bad.Key)
		require.Contains(t, bad.Msg, tt.want)
	}
	sliced := planned(t, "h100", planner.Options{DP: 4, PP: 1, TP: 1, LossSlices: 3})
	_, err := NewRecost(sliced, sliced.Cluster, changed(t, sliced, "model.block_size=34"))
	require.ErrorContains(t, err, "plan.loss_slices: 3 slices of sequences of 34 tokens are not equal")
	offloading := planned(t, "h100", planner.Options{DP: 4, PP: 1, TP: 1, Offload: "optimizer"})
	bare := *offloading.Cluster
	bare.Host = nil
	_, err = NewRecost(offloading, &bare, offloading.Config)
	require.ErrorContains(t, err, "plan.offload: is optimizer, but cluster h100 states no link to host memory")
}
