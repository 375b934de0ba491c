package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/autopar/autopar/checkpoint/safetensors"
	"github.com/autopar/autopar/checkpoint/torchfile"
	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/infile"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
)

const headName = "lm_head.weight"

// tensorFile is the content of a weights file: a [safetensors.File], a [torchfile.File], or several in
// [shards].
type tensorFile interface {
	Names() []string // sorted
	Info(name string) (safetensors.Info, error)
	Tensor(name string) (safetensors.Tensor, error)
	Metadata() map[string]string
}

// Weights is an open file of a GPT's weights, by nanoGPT's names or by those of HuggingFace's GPT-2 or
// Llama. The file is safetensors, or what torch.save writes: the weights alone, or nanoGPT's ckpt.pt,
// which [Weights.Training] reads the rest of. It may also be HuggingFace's index of several such files.
type Weights struct {
	path   string
	closer io.Closer
	file   tensorFile
	cfg    gpt.Config
	wrap   string // that begins every name: see [wrapping]
	prefix string // of names other than the head's: wrap and what models call their trunk, or wrap alone in files of the trunk
	layout gpt.Layout
}

// trunk returns what begins the names of all tensors but the head's in a layout.
func trunk(l gpt.Layout) string {
	if l == gpt.Llama {
		return "model."
	}
	return "transformer."
}

// OpenWeights opens a weights file for a model of the given configuration. The layout follows from
// the shapes. Errors are an *Error that names the tensor: if one is missing, has another shape, or
// is not part of the model, or if the file says another number of heads. The output head may be
// absent; if present it must equal the token table, to which it is tied. Of a position table longer
// than the model's block size only the beginning is read.
func OpenWeights(path string, cfg gpt.Config) (*Weights, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	own, err := cfg.InTransformers()
	if err != nil {
		return nil, err
	}
	w, err := openWeights(path, cfg)
	if err != nil {
		return nil, err
	}
	switch llama := w.layout == gpt.Llama; {
	case llama && own != gpt.Llama:
		err = errorf(path, "", "holds the weights of a Llama, but the model is a GPT-2")
	case !llama && own == gpt.Llama:
		err = errorf(path, "", "holds no weights of a Llama, which the model is")
	default:
		err = w.check()
	}
	if err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

func openWeights(path string, cfg gpt.Config) (*Weights, error) {
	w := &Weights{path: path, cfg: cfg, layout: gpt.NanoGPT}
	if dir := filepath.Dir(path); strings.HasPrefix(filepath.Base(path), filePrefix) && whole(dir) {
		return nil, errorf(path, "", "is a part of the checkpoint %s; autopar checkpoint export makes a file of weights of that", dir)
	}
	if isIndex(path) {
		f, err := openShards(path)
		if err != nil {
			return nil, &Error{File: path, Err: err}
		}
		w.closer, w.file = f, f
	} else {
		r, err := infile.Open(path)
		if err != nil {
			return nil, cannotOpen(path, err)
		}
		f, err := openTensors(path, r)
		if err == nil {
			err = checkWhole(path)
		}
		if err != nil {
			r.Close()
			return nil, &Error{File: path, Err: err}
		}
		w.closer, w.file = r, f
	}
	w.wrap = wrapping(w.file.Names())
	if w.prefix = w.wrap; w.has("model.layers.") || w.has("layers.") {
		w.layout = gpt.Llama
	}
	if w.has(trunk(w.layout)) {
		w.prefix += trunk(w.layout)
	}
	if info, err := w.file.Info(w.prefix + "h.0.attn.c_attn.weight"); err == nil && len(info.Shape) == 2 && info.Shape[1] == 3*info.Shape[0] {
		w.layout = gpt.GPT2
	}
	return w, nil
}

// has reports whether a name begins so.
func (w *Weights) has(beginning string) bool {
	return slices.ContainsFunc(w.file.Names(), func(n string) bool { return strings.HasPrefix(n, w.wrap+beginning) })
}

// cannotOpen is the error of a weights file that cannot be opened. Of a directory it names the file of
// weights in it.
func cannotOpen(path string, err error) error {
	switch file := weightsIn(path); {
	case !isDir(path):
		return &Error{File: path, Err: infile.WithoutPath(err)}
	case file == "":
		return errorf(path, "", "is a directory, want a file of weights")
	default:
		return errorf(path, "", "is a directory; name the file of weights in it, %s", file)
	}
}

// weightsIn returns the file of weights in a directory of transformers' or nanoGPT's; "" for none.
func weightsIn(dir string) string {
	for _, name := range []string{"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json", "ckpt.pt"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return filepath.Join(dir, name)
		}
	}
	return ""
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// wrappers lists what DistributedDataParallel and torch.compile put before every name.
func wrappers() []string { return []string{"module.", "_orig_mod."} }

// wrapping returns what begins all names of a model that was wrapped, also more than once.
func wrapping(names []string) string {
	wrap := ""
	for again := len(names) > 0; again; {
		again = false
		for _, by := range wrappers() {
			if !slices.ContainsFunc(names, func(n string) bool { return !strings.HasPrefix(n, wrap+by) }) {
				wrap, again = wrap+by, true
			}
		}
	}
	return wrap
}

// openTensors reads the descriptions of the tensors in a file of either kind.
func openTensors(path string, r *os.File) (tensorFile, error) {
	stat, err := r.Stat()
	if err != nil {
		return nil, err
	}
	if torchfile.Is(r) {
		return torchfile.New(path, r, stat.Size())
	}
	return safetensors.NewFile(path, r, stat.Size())
}

// Paths returns the files that the weights are read from: one, or an index and the files that it names.
func (w *Weights) Paths() []string {
	paths := []string{w.path}
	if s, several := w.file.(*shards); several {
		paths = append(paths, s.paths...)
	}
	return paths
}

// Close closes the file.
func (w *Weights) Close() error { return w.closer.Close() }

// bufferForm matches the causal masks and angles that HuggingFace's files have besides the weights.
var bufferForm = regexp.MustCompile(`\.attn\.(bias|masked_bias)$|\.rotary_emb\.inv_freq$`)

func (w *Weights) check() error {
	known := map[string]bool{}
	for _, p := range parameters(w.cfg) {
		for _, s := range w.stored(p) {
			known[s.Name] = true
			info, err := w.file.Info(s.Name)
			if err != nil {
				return errorf(w.path, s.Name, "is missing; the model wants it with shape %v", s.Shape)
			}
			got := slices.Clone(info.Shape)
			if p == "wpe.weight" && len(got) == 2 {
				got[0] = min(got[0], s.Shape[0])
			}
			if !slices.Equal(got, s.Shape) {
				return errorf(w.path, s.Name, "has shape %v, the model wants %v", info.Shape, s.Shape)
			}
			switch info.DType {
			case safetensors.F32, safetensors.F16, safetensors.BF16:
			default:
				return errorf(w.path, s.Name, "is %s, want F32, F16 or BF16", info.DType)
			}
		}
	}
	for _, name := range w.file.Names() {
		if !known[name] && !(w.cfg.TieEmbeddings && name == w.wrap+headName) && !bufferForm.MatchString(name) {
			return errorf(w.path, name, "is not a tensor of this model (%d layers, bias %v)", w.cfg.NLayer, w.cfg.Bias)
		}
	}
	return errors.Join(w.checkStated(), w.checkHead())
}

// checkStated compares the model with what the tensors do not show, if the file states it: the
// number of heads, and in a file of [ExportWeights] the activation. HuggingFace's config.json says
// tanh, whereas nanoGPT takes the exact GELU. If it says of its GPT-2 what no model here computes,
// it is refused. So is another epsilon of the norms; a file that states heads and no epsilon has the
// default. Of a Llama it is the number of heads, the epsilon and how positions rotate.
func (w *Weights) checkStated() error {
	if w.layout == gpt.Llama {
		return w.checkLlama()
	}
	meta := w.file.Metadata()
	stated := w.cfg
	if _, err := w.heads(&stated); err != nil {
		_, said := meta["n_head"]
		if _, missing := os.Stat(w.besideConfig()); said || w.layout == gpt.GPT2 && missing == nil {
			return err
		}
		return nil
	}
	if stated.NHead != w.cfg.NHead {
		return errorf(w.path, "", "is of a model with n_head %d, not %d", stated.NHead, w.cfg.NHead)
	}
	if stated.Eps() != w.cfg.Eps() {
		return errorf(w.path, "", "is of a model with norm_eps %v, not %v", stated.Eps(), w.cfg.Eps())
	}
	if a, said := meta["activation"]; said && a != w.cfg.Activation {
		return errorf(w.path, "", "is of a model with activation %.40s, not %s", a, w.cfg.Activation)
	}
	return nil
}

// checkHead compares the head with the token table, if the file has both.
func (w *Weights) checkHead() error {
	if !w.cfg.TieEmbeddings {
		return nil
	}
	head, err := w.file.Tensor(w.wrap + headName)
	if errors.Is(err, safetensors.ErrNotFound) {
		return nil
	}
	if err != nil {
		return &Error{File: w.path, Err: err}
	}
	name := w.stored("wte.weight")[0].Name
	table, err := w.file.Tensor(name)
	if err != nil {
		return &Error{File: w.path, Err: err}
	}
	if !slices.Equal(head.Shape, table.Shape) || string(head.Data) != string(table.Data) {
		return errorf(w.path, w.wrap+headName, "differs from %s, to which this model ties it", name)
	}
	return nil
}

// stored returns the tensors that have a parameter in the file.
func (w *Weights) stored(param string) []gpt.Stored {
	all := w.cfg.Stored(param, w.layout)
	for i := range all {
		if all[i].Name == headName {
			all[i].Name = w.wrap + headName
		} else {
			all[i].Name = w.prefix + strings.TrimPrefix(all[i].Name, trunk(w.layout))
		}
	}
	return all
}

// Read implements [Reader]. A value that is not finite, or too large for the type, is an *Error.
func (w *Weights) Read(param string, dtype ir.DType, slab ir.Slab, dst []byte) error {
	return w.read(w.file, w.stored(param), param, dtype, slab, dst)
}

// read reads the part slab of a parameter from the tensors of a file that have it.
func (w *Weights) read(file tensorFile, stored []gpt.Stored, param string, dtype ir.DType, slab ir.Slab, dst []byte) error {
	if stored == nil {
		return errorf(w.path, param, "is not a weight of a %s", map[bool]string{false: "GPT-2", true: "Llama"}[w.layout == gpt.Llama])
	}
	if ir.Elems(stored[0].Of) != ir.Elems(slab.Global) {
		return errorf(w.path, param, "has shape %v, want %v", stored[0].Of, slab.Global)
	}
	whole := make([]float32, ir.Elems(slab.Global))
	for _, s := range stored {
		tensor, err := file.Tensor(s.Name)
		if err != nil {
			return &Error{File: w.path, Tensor: s.Name, Err: err}
		}
		values, err := tensor.Float32s()
		if err != nil {
			return &Error{File: w.path, Tensor: s.Name, Err: err}
		}
		for _, x := range values { // a run would only report a loss that is NaN
			if most := largest(dtype); !(x >= -most && x <= most) {
				return errorf(w.path, s.Name, "holds %v, which is no finite %s", x, dtype)
			}
		}
		eachRun(s, func(at, of, n int) { copy(whole[of:of+n], values[at:]) }) // the rest of a longer position table is not used
	}
	ir.EachRun(slab, ir.Whole(slab.Global), func(a, b, n int) {
		for i := range n {
			dtype.Write(dst[dtype.Size()*int64(a+i):], whole[b+i])
		}
	})
	return nil
}

// largest returns the largest number of a floating-point type.
func largest(dtype ir.DType) float32 {
	switch dtype {
	case ir.F16:
		return 65504
	case ir.BF16:
		return 0x1.fep127
	}
	return math.MaxFloat32
}

// eachRun calls f for every run of elements that a tensor has in the order of the parameter: n elements, from at on in the tensor
// and from of on in the parameter.
func eachRun(s gpt.Stored, f func(at, of, n int)) {
	shape := slices.Clone(s.Of)
	stride := int(ir.Elems(shape[1:]))
	shape[0] = s.To - s.From
	strides := make([]int, len(shape))
	for d, n := len(shape)-1, 1; d >= 0; d-- {
		strides[d], n = n, n*shape[d]
	}
	n, outer := 1, len(s.Order)
	for ; outer > 0 && strides[s.Order[outer-1]] == n; outer-- {
		n *= shape[s.Order[outer-1]]
	}
	index := make([]int, outer)
	for at, of := 0, s.From*stride; ; at += n {
		f(at, of, n)
		d := outer - 1
		for ; d >= 0; d-- {
			dim := s.Order[d]
			index[d]++
			of += strides[dim]
			if index[d] < shape[dim] {
				break
			}
			of -= index[d] * strides[dim]
			index[d] = 0
		}
		if d < 0 {
			return
		}
	}
}

// ExportWeights writes the weights of a model, with adapters merged and without optimizer state, to
// one safetensors file of a layout. The metadata has the sizes of the model, so that the file can be
// used without a gpt.yaml.
func ExportWeights(path string, from Reader, cfg gpt.Config, layout gpt.Layout) error {
	if err := errors.Join(cfg.Validate(), cfg.Fits(layout)); err != nil {
		return err
	}
	var infos []safetensors.Info
	for _, p := range parameters(cfg) {
		for _, s := range cfg.Stored(p, layout) {
			infos = append(infos, safetensors.Info{Name: s.Name, DType: safetensors.F32, Shape: s.Shape})
		}
	}
	w, err := safetensors.Create(path, infos, metadata(cfg))
	if err != nil {
		return err
	}
	defer w.Close()
	for _, p := range parameters(cfg) {
		stored := cfg.Stored(p, layout)
		whole, err := readFloats(Folded(from, cfg), p, ir.Whole(stored[0].Of))
		if err != nil {
			return err
		}
		for _, s := range stored {
			values := make([]float32, ir.Elems(s.Shape))
			eachRun(s, func(at, of, n int) { copy(values[at:at+n], whole[of:]) })
			if err := w.Write(safetensors.FromFloat32s(s.Name, s.Shape, values)); err != nil {
				return err
			}
		}
	}
	return w.Commit()
}

// parameters lists the weights of a model, in the order of its forward pass.
func parameters(cfg gpt.Config) []string {
	withBias := func(module string) []string {
		if cfg.Bias {
			return []string{module + ".weight", module + ".bias"}
		}
		return []string{module + ".weight"}
	}
	names := []string{"wte.weight"}
	if cfg.Position == gpt.Learned {
		names = append(names, "wpe.weight")
	}
	for i := range cfg.NLayer {
		for _, m := range []string{"ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"} {
			names = append(names, withBias(fmt.Sprintf("h.%d.%s", i, m))...)
		}
	}
	names = append(names, withBias("ln_f")...)
	if !cfg.TieEmbeddings {
		names = append(names, headName)
	}
	return names
}

// metadata states the sizes of a model by the keys of gpt.yaml. HuggingFace's loader requires the
// format.
func metadata(cfg gpt.Config) map[string]string {
	number := func(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
	all := map[string]string{
		"format":     "pt",
		"n_layer":    strconv.Itoa(cfg.NLayer),
		"n_head":     strconv.Itoa(cfg.NHead),
		"n_embd":     strconv.Itoa(cfg.NEmbd),
		"block_size": strconv.Itoa(cfg.BlockSize),
		"vocab_size": strconv.Itoa(cfg.VocabSize),
		"bias":       strconv.FormatBool(cfg.Bias),
		"activation": cfg.Activation,
	}
	if cfg.Position == gpt.RoPE {
		maps.Copy(all, map[string]string{
			"n_kv_head":      strconv.Itoa(cfg.KVHeads()),
			"ffn_hidden":     strconv.Itoa(cfg.FFN()),
			"norm":           cfg.Norm,
			"position":       cfg.Position,
			"rope_theta":     number(cfg.Theta()),
			"tie_embeddings": strconv.FormatBool(cfg.TieEmbeddings),
		})
		if r := cfg.Rotation(); r.Factor > 0 {
			maps.Copy(all, map[string]string{
				"rope_factor":              number(r.Factor),
				"rope_low_freq_factor":     number(r.Low),
				"rope_high_freq_factor":    number(r.High),
				"rope_original_block_size": strconv.Itoa(r.Original),
			})
		}
	}
	if cfg.NormEps > 0 {
		all["norm_eps"] = number(cfg.NormEps)
	}
	return all
}

// blockForm matches the parameters of a block, by its number.
var blockForm = regexp.MustCompile(`^h\.(\d+)\.(ln_1|attn\.c_attn|attn\.c_proj|ln_2|mlp\.c_fc|mlp\.c_proj)\.(weight|bias)$`)

// WeightsConfig returns the configuration of the model in a weights file. Sizes are those of the
// tensors. The number of heads, the activation and the norms' epsilon, which no tensor shows, come from the file's
// metadata (as [ExportWeights] writes it), from nanoGPT's model_args (whose activation is the exact
// GELU), or from a config.json in the same directory. Sizes that these state must agree with the
// tensors. A tensor of no block that is stated, far from the others, is none of the model:
// [OpenWeights] names it. The configuration of a Llama is what its metadata or config.json states.
func WeightsConfig(path string) (gpt.Config, error) {
	w, err := openWeights(path, gpt.Config{})
	if err != nil {
		return gpt.Config{}, err
	}
	defer w.Close()
	if w.layout == gpt.Llama {
		return w.llamaConfig()
	}
	cfg := gpt.DefaultConfig()
	cfg.NLayer, cfg.Dropout, cfg.Bias = 0, 0, false
	blocks := map[int]bool{}
	for _, name := range w.file.Names() {
		name = strings.TrimPrefix(name, w.prefix)
		if m := blockForm.FindStringSubmatch(name); m != nil {
			if i, err := strconv.Atoi(m[1]); err == nil {
				blocks[i] = true
				cfg.NLayer = max(cfg.NLayer, i+1)
			}
		}
		cfg.Bias = cfg.Bias || name == "ln_f.bias"
	}
	for _, table := range []struct {
		name string
		rows *int
	}{{"wte.weight", &cfg.VocabSize}, {"wpe.weight", &cfg.BlockSize}} {
		info, err := w.file.Info(w.prefix + table.name)
		longer := slices.IndexFunc(w.file.Names(), func(n string) bool { return strings.HasSuffix(n, "."+table.name) })
		if err != nil && longer >= 0 {
			return gpt.Config{}, errorf(path, w.prefix+table.name, "is missing, but there is %.80q: of what begins every name only %s are passed over", w.file.Names()[longer], strings.Join(wrappers(), " and "))
		}
		if err != nil || len(info.Shape) != 2 {
			return gpt.Config{}, errorf(path, w.prefix+table.name, "is missing or no matrix: these are not the weights of a GPT-2")
		}
		*table.rows, cfg.NEmbd = info.Shape[0], info.Shape[1]
	}
	if ffn, ok := w.ffn(); ok && ffn != cfg.FFN() {
		cfg.FFNHidden = ffn
	}
	beside, err := w.heads(&cfg)
	if err != nil {
		return gpt.Config{}, err
	}
	meta := w.file.Metadata()
	said, _ := strconv.Atoi(meta["n_layer"])
	if beside != nil {
		if _, written := beside.Written("model.n_layer"); written {
			said = beside.Model.NLayer
		}
	}
	if said > 0 && said < cfg.NLayer && blocks[said-1] && !blocks[said] { // what comes after the gap is extra
		cfg.NLayer = said
	}
	if n := len(w.file.Names()); cfg.NLayer > n {
		return gpt.Config{}, errorf(path, "", "names layer %d, but has %d tensors", cfg.NLayer-1, n)
	}
	if beside != nil {
		if err := w.agrees(beside, &cfg); err != nil {
			return gpt.Config{}, err
		}
	}
	if err := cfg.Validate(); err != nil {
		return gpt.Config{}, &Error{File: path, Err: err}
	}
	is := metadata(cfg)
	for _, key := range slices.Sorted(maps.Keys(is)) {
		if said, ok := meta[key]; ok && key != "format" && said != is[key] {
			return gpt.Config{}, errorf(path, "", "says %s %.40s, but its tensors are of %s", key, said, is[key])
		}
	}
	return cfg, nil
}

// ffn returns the width of the first block's MLP, if the file has one.
func (w *Weights) ffn() (width int, ok bool) {
	info, err := w.file.Info(w.prefix + "h.0.mlp.c_fc.weight")
	if err != nil || len(info.Shape) != 2 {
		return 0, false
	}
	return info.Shape[map[gpt.Layout]int{gpt.NanoGPT: 0, gpt.GPT2: 1}[w.layout]], true
}

// agrees compares what a config.json states with the sizes of the tensors, which are in cfg. What is
// left out has the class's default, which says nothing.
func (w *Weights) agrees(beside *config.Config, cfg *gpt.Config) error {
	says := beside.Model
	for _, size := range []struct {
		theirs, ours string
		says, is     int
	}{
		{"n_layer", "n_layer", says.NLayer, cfg.NLayer},
		{"n_embd", "n_embd", says.NEmbd, cfg.NEmbd},
		{"n_positions", "block_size", says.BlockSize, cfg.BlockSize},
		{"n_ctx", "n_ctx", says.BlockSize, cfg.BlockSize},
		{"vocab_size", "vocab_size", says.VocabSize, cfg.VocabSize},
		{"n_inner", "ffn_hidden", says.FFNHidden, cfg.FFN()},
	} {
		at, written := beside.Written("model." + size.ours)
		if unstated := size.theirs == "n_inner" && size.says == 0; !written || unstated || size.says == size.is {
			continue
		}
		return at.Refuse(size.theirs, "is %d, but the tensors of %s are of %d", size.says, w.path, size.is)
	}
	if at, written := beside.Written("model.tie_embeddings"); written && !says.TieEmbeddings {
		return at.Refuse("tie_word_embeddings", "is false, but only weights whose head is the token table can be read: see %s", w.path)
	}
	return nil
}

// heads sets what the tensors do not show. It returns the config.json from which that comes, nil if
// the file states it.
func (w *Weights) heads(cfg *gpt.Config) (*config.Config, error) {
	meta := w.file.Metadata()
	if text, ok := meta["n_head"]; ok {
		n, err := strconv.Atoi(text)
		if err != nil {
			return nil, errorf(w.path, "", "n_head is %.40q, want an integer", text)
		}
		cfg.NHead = n
		if activation, ok := meta["activation"]; ok {
			cfg.Activation = activation
		}
		cfg.NormEps = 0
		if text, ok := meta["norm_eps"]; ok {
			if cfg.NormEps, err = strconv.ParseFloat(text, 64); err != nil {
				return nil, errorf(w.path, "", "norm_eps is %.40q, want a number", text)
			}
		}
		if text, ok := meta["dropout"]; ok { // nanoGPT's; it may be changed for further training
			if cfg.Dropout, err = strconv.ParseFloat(text, 64); err != nil {
				return nil, errorf(w.path, "", "dropout is %.40q, want a number", text)
			}
		}
		return nil, nil
	}
	beside := w.besideConfig()
	hf, err := w.loadBeside()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errorf(w.path, "", "says nothing of the number of heads: it states no n_head, and there is no %s", beside)
	}
	if err != nil {
		return nil, err
	}
	cfg.NHead, cfg.Activation, cfg.NormEps = hf.Model.NHead, hf.Model.Activation, hf.Model.NormEps
	return hf, nil
}
