// Package torchfiletest writes files of PyTorch's torch.save for tests, and of those nanoGPT's ckpt.pt. It is imported by tests
// only, and makes no use of how package torchfile reads.
package torchfiletest

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"testing"

	"github.com/autopar/autopar/checkpoint/safetensors"
)

// The types of values, besides nil, bool, int, float64, string and safetensors.Tensor.
type (
	Dict  []Item
	Item  struct{ Key, Value any }
	List  []any
	Tuple []any
)

// Set returns the dict with another value at a path of keys; nil removes the entry. All keys but the last must be there.
func (d Dict) Set(value any, path ...any) Dict {
	out := Dict{}
	found := false
	for _, item := range d {
		if item.Key == path[0] {
			found = true
			switch {
			case len(path) > 1:
				item.Value = item.Value.(Dict).Set(value, path[1:]...)
			case value == nil:
				continue
			default:
				item.Value = value
			}
		}
		out = append(out, item)
	}
	if !found {
		out = append(out, Item{path[0], value})
	}
	return out
}

// Run is what nanoGPT's train.py saves of a run. Weights and moments are by the names of the parameters without
// "transformer.", in nanoGPT's layout.
type Run struct {
	Weights, ExpAvg, ExpAvgSq map[string]safetensors.Tensor
	Layers, Heads             int
	Prefix                    string // of the names of the weights
	Iter                      int
	BestVal, Step             any // Step is that of every parameter
}

// Parameters are the names of the parameters in the order of nanoGPT's modules.
func Parameters(layers int, bias bool) (names []string) {
	add := func(module string) {
		names = append(names, module+".weight")
		if bias {
			names = append(names, module+".bias")
		}
	}
	names = []string{"wte.weight", "wpe.weight"}
	for i := range layers {
		for _, m := range []string{"ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"} {
			add(fmt.Sprintf("h.%d.%s", i, m))
		}
	}
	add("ln_f")
	return names
}

// File is the ckpt.pt.
func (r Run) File() Dict {
	_, bias := r.Weights["ln_f.bias"]
	model := Dict{}
	var groups [2][]string
	for _, name := range Parameters(r.Layers, bias) {
		w := r.Weights[name]
		model = append(model, Item{r.Prefix + "transformer." + name, w})
		g := 0
		if len(w.Shape) < 2 {
			g = 1
		}
		groups[g] = append(groups[g], name)
	}
	model = append(model, Item{r.Prefix + "lm_head.weight", r.Weights["wte.weight"]})
	state, params := Dict{}, List{}
	for g, names := range groups {
		numbers := List{}
		for _, name := range names {
			numbers = append(numbers, len(state))
			state = append(state, Item{len(state), Dict{{"step", r.Step}, {"exp_avg", r.ExpAvg[name]}, {"exp_avg_sq", r.ExpAvgSq[name]}}})
		}
		params = append(params, Dict{{"weight_decay", []float64{0.1, 0}[g]}, {"lr", 1e-2}, {"betas", Tuple{0.9, 0.99}}, {"eps", 1e-8}, {"amsgrad", false}, {"params", numbers}})
	}
	wte, wpe := r.Weights["wte.weight"].Shape, r.Weights["wpe.weight"].Shape
	args := Dict{{"n_layer", r.Layers}, {"n_head", r.Heads}, {"n_embd", wte[1]}, {"block_size", wpe[0]}, {"bias", bias}, {"vocab_size", wte[0]}, {"dropout", 0.0}}
	return Dict{
		{"model", model}, {"optimizer", Dict{{"state", state}, {"param_groups", params}}}, {"model_args", args},
		{"iter_num", r.Iter}, {"best_val_loss", r.BestVal}, {"config", Dict{{"out_dir", "out"}}},
	}
}

// Write writes what torch.save would of a value.
func Write(t testing.TB, path string, value any) {
	t.Helper()
	var file bytes.Buffer
	w := &writer{zip: zip.NewWriter(&file)}
	w.pickle.WriteString("\x80\x02")
	w.put(value)
	w.pickle.WriteByte('.')
	w.entry("data.pkl", w.pickle.Bytes())
	w.fail(w.zip.Close())
	w.fail(os.WriteFile(path, file.Bytes(), 0o644))
	if w.err != nil {
		t.Fatal(w.err)
	}
}

type writer struct {
	zip      *zip.Writer
	pickle   bytes.Buffer
	storages int
	err      error
}

func (w *writer) fail(err error) {
	if w.err == nil {
		w.err = err
	}
}

func (w *writer) entry(name string, content []byte) {
	e, err := w.zip.CreateHeader(&zip.FileHeader{Name: "archive/" + name, Method: zip.Store})
	if w.fail(err); err == nil {
		_, err = e.Write(content)
		w.fail(err)
	}
}

// put pickles a value.
func (w *writer) put(value any) {
	p := &w.pickle
	all := func(open string, items []any, end string) {
		p.WriteString(open)
		for _, x := range items {
			w.put(x)
		}
		p.WriteString(end)
	}
	switch v := value.(type) {
	case nil:
		p.WriteByte('N')
	case bool:
		p.WriteByte(map[bool]byte{false: 0x89, true: 0x88}[v])
	case int:
		p.WriteString("\x8a\x08")
		p.Write(binary.LittleEndian.AppendUint64(nil, uint64(v)))
	case float64:
		p.WriteByte('G')
		p.Write(binary.BigEndian.AppendUint64(nil, math.Float64bits(v)))
	case string:
		p.WriteByte('X')
		p.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(v))))
		p.WriteString(v)
	case Tuple:
		all("(", v, "t")
	case List:
		all("](", v, "e")
	case Dict:
		p.WriteString("}(")
		for _, item := range v {
			w.put(item.Key)
			w.put(item.Value)
		}
		p.WriteByte('u')
	case safetensors.Tensor:
		w.tensor(v)
	default:
		w.fail(fmt.Errorf("no pickle of a %T", value))
	}
}

// tensor pickles a tensor with a storage of its own.
func (w *writer) tensor(t safetensors.Tensor) {
	key := fmt.Sprint(w.storages)
	w.storages++
	w.entry("data/"+key, t.Data)
	shape, strides, elems := Tuple{}, Tuple{}, 1
	for _, n := range t.Shape {
		shape = append(shape, n)
		elems *= n
	}
	left := elems
	for _, n := range t.Shape {
		left /= max(n, 1)
		strides = append(strides, left)
	}
	class := map[safetensors.DType]string{safetensors.F64: "Double", safetensors.F32: "Float", safetensors.F16: "Half", safetensors.BF16: "BFloat16", safetensors.I64: "Long"}[t.DType]
	p := &w.pickle
	p.WriteString("ctorch._utils\n_rebuild_tensor_v2\n(")
	p.WriteByte('(')
	w.put("storage")
	io.WriteString(p, "ctorch\n"+class+"Storage\n")
	w.put(key)
	w.put("cpu")
	w.put(elems)
	p.WriteString("tQ")
	w.put(0)
	w.put(shape)
	w.put(strides)
	p.WriteString("\x89ccollections\nOrderedDict\n)RtR")
}
