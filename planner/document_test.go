package planner

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/ir"
)

func searched(t testing.TB) (*Document, *ir.Graph) {
	cfg := config.Default()
	cfg.Model = tiny(3)
	cfg.Batch.Global = 7
	cfg.Data.Dir = `odd "dir"` + "\a"
	cfg.Parallel.MemoryLimit = 16 << 30
	cfg.Parallel.Pins = []config.Pin{{Match: `h\.0\.`, Placement: []string{"_", "tp"}}}
	g := step(t, cfg.Model, cfg.Batch.Global)
	c := cluster(t, "h100")
	res, err := Search(g, 7, c, Options{PlanNGPUs: 4, TopK: 2})
	require.NoError(t, err)
	return NewDocument(cfg, g, c, res), g
}

func TestDocumentRoundTrip(t *testing.T) {
	d, g := searched(t)
	path := filepath.Join(t.TempDir(), "plan.json")
	first, err := d.Marshal()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, first, 0o644))
	back, err := ReadDocument(path)
	require.NoError(t, err)
	require.True(t, d.Config.Equal(back.Config))
	require.NoError(t, back.Check(g))
	second, err := back.Marshal()
	require.NoError(t, err)
	require.Equal(t, string(first), string(second))

	require.ErrorContains(t, back.Check(step(t, tiny(2), 7)), "graph_hash: is ")
	back.Config.Model.NLayer = 4
	require.ErrorContains(t, back.Check(g), "config_hash: is ")
}

func TestDocumentIsDeterministic(t *testing.T) {
	first, _ := searched(t)
	for range 3 {
		again, _ := searched(t)
		again.Search.Seconds, again.Search.Beyond = first.Search.Seconds, first.Search.Beyond
		a, err := first.Marshal()
		require.NoError(t, err)
		b, err := again.Marshal()
		require.NoError(t, err)
		require.Equal(t, string(a), string(b))
	}
}

func TestDocumentIsStrict(t *testing.T) {
	d, _ := searched(t)
	data, err := d.Marshal()
	require.NoError(t, err)
	text := string(data)
	for _, tt := range []struct{ old, new, want string }{
		{`"schema": 1`, `"schema": 2`, "schema: is 2, this version reads 1"},
		{`"dp": `, `"dpp": `, "plan.dpp: unknown key"},
		{`"tp": `, `"dp": 1, "tp": `, "plan.dp: duplicate key"},
		{`"micro_batch": `, `"micro_batch": "two", "x": `, `plan.micro_batch: wants an integer, got "two"`},
		{`"micro_batch": `, `"micro_batch": 1.5, "x": `, "plan.micro_batch: wants an integer, got 1.5"},
		{`"plan_ngpus": 4`, `"plan_ngpus": 99999999999999999999`, "plan.plan_ngpus: wants an integer, got 99999999999999999999"},
		{`"plan_ngpus": 4`, `"plan_ngpus": 5`, "plan.runtime_ngpus: 4 is not a multiple of plan_ngpus 5"},
		{`"last": 3`, `"last": 9`, "stages"},
		{`"step_seconds": `, `"step_seconds": -`, "predicted.step_seconds: is -"},
		{`"n_layer": 3`, `"n_layer": 0`, "config.model.n_layer: is 0"},
		{`"n_layer": 3`, `"n_layers": 3`, "config.model.n_layers: unknown key; did you mean model.n_layer?"},
		{`"n_layer": 3`, `"n_layer": "3"`, "config.model.n_layer: wants integer"},
		{`"memory_bandwidth": 3350000000000`, `"memory_bandwidth": 0`, ": cluster.device.memory_bandwidth: is 0"},
		{`"loss": 1.875`, `"loss": -1.5`, ": cluster.software.loss: is -1.5, must be between 0 and 1000"},
		{`"optimal": true`, `"optimal": true, "gap": -1`, "search.gap: is -1, must not be negative"},
		{`"alternatives_seconds": `, `"alternatives_seconds": -`, "search.alternatives_seconds: is -"},
		{`"optimal": true`, `"optimal": "yes"`, `search.optimal: wants true or false, got "yes"`},
		{`"optimal": true,`, ``, "search.optimal: is missing"},
	} {
		bad := strings.Replace(text, tt.old, tt.new, 1)
		require.NotEqual(t, text, bad, tt.old)
		_, err := ParseDocument("p.json", []byte(bad))
		require.ErrorContains(t, err, tt.want)
		var at *DocumentError
		require.ErrorAs(t, err, &at)
		name, _, _ := strings.Cut(at.Key[strings.LastIndex(at.Key, ".")+1:], "[")
		if at.Msg == "is missing" {
			name = "search" // what it should be in
		}
		require.Contains(t, strings.Split(bad, "\n")[at.Line-1], strconv.Quote(name), "line %d", at.Line)
		require.ErrorContains(t, err, fmt.Sprintf("p.json:%d: %s: ", at.Line, at.Key))
	}
	_, err = ParseDocument("p.json", []byte(text+"{}"))
	require.ErrorContains(t, err, "something after its end")
	_, err = ParseDocument("p.json", []byte("Wer reitet so spaet"))
	require.ErrorContains(t, err, "p.json:1: is no plan, as autopar plan writes it: not JSON at byte 0")
	for _, nested := range []string{"[", `{"a":`} {
		_, err = ParseDocument("p.json", []byte(strings.Repeat(nested, 1<<10)))
		require.ErrorContains(t, err, "p.json:1: is no plan: lists and objects are more than 64 deep at byte")
	}
	for _, n := range []int{0, 1, len(text) / 2, len(text) - 3} {
		_, err = ParseDocument("p.json", []byte(text[:n]))
		require.ErrorContains(t, err, ": is not whole")
	}
}

func FuzzParseDocument(f *testing.F) {
	d, _ := searched(f)
	data, err := d.Marshal()
	require.NoError(f, err)
	f.Add(data)
	f.Add([]byte(`{"schema":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := ParseDocument("f.json", data)
		if err != nil {
			require.ErrorAs(t, err, new(*DocumentError))
			return
		}
		_, err = d.Marshal()
		require.NoError(t, err)
	})
}
