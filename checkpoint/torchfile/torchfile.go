// Package torchfile reads the weights in a file of PyTorch's torch.save: a state dict, or nanoGPT's checkpoint with one.
//
// Since PyTorch 1.6 such a file is a zip archive, in which nothing is compressed:
//
//	archive/data.pkl     the pickled value; its tensors are views (offset, shape, strides) of storages
//	archive/data/KEY     the elements of a storage
//	archive/byteorder    "little" or "big" (since 2.1)
//
// Reading treats the file as hostile. Nothing in the pickle is ever run: see package pickle. [New]
// looks for tensors where weights are expected, and an entry there that is not a tensor is an error
// that names it. [File.Training] looks at the optimizer's state beside them; other contents of a
// checkpoint are ignored. Every view is checked against its storage, and every storage against the
// file, before anything is read or allocated for it.
package torchfile

import (
	"archive/zip"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/autopar/autopar/checkpoint/safetensors"
	"github.com/autopar/autopar/pickle"
)

// maxPickle is more than the pickle of ten thousand tensors takes, with two optimizer tensors for
// each.
const maxPickle = 8 << 20

// A File is an open file of torch.save. Only the descriptions of its tensors are in memory. Methods
// may be called from several goroutines at once.
type File struct {
	name     string
	data     io.ReaderAt
	tensors  map[string]tensor
	metadata map[string]string
	archive  *archive
	beside   pickle.Dict // what the file has beside the weights, if these are its "model"
}

// A tensor is a view of a storage.
type tensor struct {
	safetensors.Info
	strides []int64 // in elements, like what follows
	elems   int64
	span    int64 // from its first element to its last in the storage, both included
	begin   int64 // offset in the file of the first element
}

// Is reports whether a file is a zip archive, as torch.save writes.
func Is(r io.ReaderAt) bool {
	var magic [4]byte
	_, err := r.ReadAt(magic[:], 0)
	return (err == nil || err == io.EOF) && string(magic[:]) == "PK\x03\x04"
}

// New opens a file of size bytes that r reads. The name only appears in errors.
func New(name string, r io.ReaderAt, size int64) (*File, error) {
	f := &File{name: name, data: r, tensors: map[string]tensor{}, metadata: map[string]string{}}
	a, err := openArchive(r, size)
	if err == nil {
		err = f.load(a)
	}
	if err != nil {
		return nil, fmt.Errorf("torchfile: %s: %w", name, err)
	}
	return f, nil
}

// Names returns the names of all tensors, sorted.
func (f *File) Names() []string { return slices.Sorted(maps.Keys(f.tensors)) }

// Metadata returns what a checkpoint of nanoGPT says about its model, by the keys of gpt.yaml. For
// a state dict it is empty.
func (f *File) Metadata() map[string]string { return maps.Clone(f.metadata) }

// Info describes a tensor without reading its data. The error of an unknown name wraps [safetensors.ErrNotFound].
func (f *File) Info(name string) (safetensors.Info, error) {
	t, err := f.find(name)
	t.Shape = slices.Clone(t.Shape)
	return t.Info, err
}

// Tensor reads a tensor. The error of an unknown name wraps [safetensors.ErrNotFound].
func (f *File) Tensor(name string) (safetensors.Tensor, error) {
	t, err := f.find(name)
	if err != nil {
		return safetensors.Tensor{}, err
	}
	return f.read(t)
}

func (f *File) read(t tensor) (safetensors.Tensor, error) {
	size := t.DType.Size()
	data := make([]byte, t.span*int64(size))
	if n, err := f.data.ReadAt(data, t.begin); n < len(data) {
		return safetensors.Tensor{}, fmt.Errorf("torchfile: %s: tensor %q: read %d bytes at %d: %w", f.name, t.Name, len(data), t.begin, err)
	}
	if !t.contiguous() {
		data = t.gather(data, size)
	}
	return safetensors.Tensor{Name: t.Name, DType: t.DType, Shape: slices.Clone(t.Shape), Data: data}, nil
}

func (f *File) find(name string) (tensor, error) {
	t, ok := f.tensors[name]
	if !ok {
		return tensor{}, fmt.Errorf("torchfile: %s: %w: %q (the file has %d)", f.name, safetensors.ErrNotFound, name, len(f.tensors))
	}
	return t, nil
}

// contiguous reports whether the elements are contiguous, in row-major order.
func (t tensor) contiguous() bool {
	next := int64(1)
	for d := len(t.Shape) - 1; d >= 0; d-- {
		if t.Shape[d] != 1 && t.strides[d] != next {
			return t.elems == 0
		}
		next *= int64(t.Shape[d])
	}
	return true
}

// gather copies the elements from their span to row-major order.
func (t tensor) gather(span []byte, size int) []byte {
	out := make([]byte, 0, t.elems*int64(size))
	at, from := make([]int, len(t.Shape)), 0
	for range t.elems {
		out = append(out, span[from:from+size]...)
		for d := len(at) - 1; d >= 0; d-- { // the next place
			step := int(t.strides[d]) * size
			from += step
			if at[d]++; at[d] < t.Shape[d] {
				break
			}
			from -= at[d] * step
			at[d] = 0
		}
	}
	return out
}

// load finds the tensors of the state dict.
func (f *File) load(a *archive) error {
	f.archive = a
	text, err := a.read("data.pkl", maxPickle)
	if err != nil {
		return err
	}
	top, err := pickle.Read(text)
	if err != nil {
		return fmt.Errorf("data.pkl: %w", err)
	}
	state, err := f.state(top)
	if err != nil {
		return err
	}
	var keys []string
	for key := range state {
		name, ok := key.(string)
		if !ok {
			return fmt.Errorf("has %s where the name of a tensor belongs", pickle.Describe(key))
		}
		keys = append(keys, name)
	}
	slices.Sort(keys) // so that the first error is always the same
	for _, name := range keys {
		t, err := a.tensor(name, state[name])
		if err != nil {
			return fmt.Errorf("tensor %q: %w", name, err)
		}
		f.tensors[name] = t
	}
	return nil
}

// state returns the tensors of a model by name, and keeps what the file says about the model.
func (f *File) state(top any) (pickle.Dict, error) {
	state, ok := top.(pickle.Dict)
	if !ok {
		return nil, fmt.Errorf("holds %s, want a dict of tensors by their names, which torch.save(model.state_dict(), ...) writes", pickle.Describe(top))
	}
	model, ok := state["model"]
	if !ok {
		return state, nil
	}
	f.beside = state
	args, _ := state["model_args"].(pickle.Dict)
	for key, v := range args {
		name, _ := key.(string)
		switch v := v.(type) {
		case bool:
			f.metadata[name] = strconv.FormatBool(v)
		case int64:
			f.metadata[name] = strconv.FormatInt(v, 10)
		case float64:
			f.metadata[name] = strconv.FormatFloat(v, 'g', -1, 64)
		}
	}
	state, ok = model.(pickle.Dict)
	if !ok {
		return nil, fmt.Errorf("model is %s, want a dict of tensors by their names", pickle.Describe(model))
	}
	return state, nil
}

// storages are the classes of storages, by the type of their elements.
var storages = map[pickle.Global]safetensors.DType{
	"torch.DoubleStorage":   safetensors.F64,
	"torch.FloatStorage":    safetensors.F32,
	"torch.HalfStorage":     safetensors.F16,
	"torch.BFloat16Storage": safetensors.BF16,
	"torch.LongStorage":     safetensors.I64,
	"torch.IntStorage":      safetensors.I32,
	"torch.ShortStorage":    safetensors.I16,
	"torch.CharStorage":     safetensors.I8,
	"torch.ByteStorage":     safetensors.U8,
	"torch.BoolStorage":     safetensors.Bool,
}

// tensor returns what these functions of torch._utils would return:
//
//	_rebuild_parameter(tensor, requires_grad, hooks)
//	_rebuild_parameter_with_state(tensor, requires_grad, hooks, attributes)
//	_rebuild_tensor_v2(storage, offset, shape, strides, requires_grad, hooks[, metadata])
func (a *archive) tensor(name string, v any) (tensor, error) {
	o, ok := v.(*pickle.Object)
	if ok && (o.Func == "torch._utils._rebuild_parameter" || o.Func == "torch._utils._rebuild_parameter_with_state") && len(o.Args) > 0 {
		v = o.Args[0]
		o, ok = v.(*pickle.Object)
	}
	if !ok || o.Func != "torch._utils._rebuild_tensor_v2" || len(o.Args) < 6 || len(o.Args) > 7 {
		return tensor{}, fmt.Errorf("is %s, which is not among what weights files need: want tensors", pickle.Describe(v))
	}
	if len(o.Args) == 7 {
		if lazy, _ := o.Args[6].(pickle.Dict); len(lazy) > 0 {
			return tensor{}, fmt.Errorf("is a conjugate or negative view: save a clone of it")
		}
	}
	dtype, numel, begin, err := a.storage(o.Args[0])
	if err != nil {
		return tensor{}, err
	}
	offset, ok := o.Args[1].(int64)
	shape, ok1 := integers(o.Args[2])
	strides, ok2 := integers(o.Args[3])
	if !ok || !ok1 || !ok2 || offset < 0 || offset > numel || len(shape) != len(strides) {
		return tensor{}, fmt.Errorf("is no view of its storage of %d elements: its offset, shape or strides are not integers from 0 on, as many of each and at most %d", numel, maxRank)
	}
	t := tensor{Info: safetensors.Info{Name: name, DType: dtype}, strides: strides, begin: begin + offset*int64(dtype.Size())}
	for _, d := range shape {
		t.Shape = append(t.Shape, int(d))
	}
	return t, t.measure(numel - offset)
}

// measure counts the elements and checks that all lie within the left elements that the storage has
// from the first one on.
func (t *tensor) measure(left int64) error {
	if slices.Contains(t.Shape, 0) {
		return nil
	}
	t.elems, t.span = min(1, left), min(1, left)
	for d, n := range t.Shape {
		steps := int64(n) - 1
		if t.elems > left/int64(n) || steps > 0 && t.strides[d] > (left-t.span)/steps {
			t.elems = 0
			break
		}
		t.elems *= int64(n)
		t.span += steps * t.strides[d]
	}
	if t.elems == 0 {
		return fmt.Errorf("shape %v with strides %v is more than the %d elements that its storage has from there on", t.Shape, t.strides, left)
	}
	return nil
}

// storage returns the type and number of elements of a storage, and the offset in the file of the
// first.
func (a *archive) storage(v any) (dtype safetensors.DType, numel, begin int64, err error) {
	p, _ := v.(pickle.Persistent)
	id, _ := p.ID.(pickle.Tuple) // 'storage', class, key, device, elements
	if len(id) != 5 || id[0] != any("storage") {
		return "", 0, 0, fmt.Errorf("is a view of %s, want a storage", pickle.Describe(v))
	}
	class, _ := id[1].(pickle.Global)
	key, ok1 := id[2].(string)
	numel, ok2 := id[4].(int64)
	if !ok1 || !ok2 {
		return "", 0, 0, fmt.Errorf("has a storage with key %s of %s elements", pickle.Describe(id[2]), pickle.Describe(id[4]))
	}
	dtype, ok := storages[class]
	if !ok {
		return "", 0, 0, fmt.Errorf("is in a %s, which is not among what weights files need", pickle.Describe(id[1]))
	}
	begin, bytes, err := a.section("data/" + key)
	if err != nil {
		return "", 0, 0, err
	}
	if size := int64(dtype.Size()); bytes%size != 0 || numel != bytes/size {
		return "", 0, 0, fmt.Errorf("data/%s has %d bytes, but a %s of %d elements takes %d each", key, bytes, class, numel, size)
	}
	return dtype, numel, begin, nil
}

// maxRank is PyTorch's. Many tensors of a pickle may share one tuple as shape, but each has a copy
// here.
const maxRank = 64

// integers returns the items of a tuple of integers: at most maxRank, none negative, and none
// larger than a dimension can be.
func integers(v any) ([]int64, bool) {
	items, ok := v.(pickle.Tuple)
	if len(items) > maxRank {
		return nil, false
	}
	out := make([]int64, len(items))
	for i, item := range items {
		n, is := item.(int64)
		if !is || n < 0 || n > math.MaxInt32 {
			return nil, false
		}
		out[i] = n
	}
	return out, ok
}

// An archive is the zip file.
type archive struct {
	data    io.ReaderAt
	size    int64
	folder  string // that all is in, with a slash
	entries map[string]*zip.File
}

// openArchive finds the folder and checks the byte order.
func openArchive(r io.ReaderAt, size int64) (*archive, error) {
	z, err := zip.NewReader(r, size)
	if err != nil {
		return nil, fmt.Errorf("is a zip archive that is cut short or damaged: %w", err)
	}
	a := &archive{data: r, size: size, entries: map[string]*zip.File{}}
	for _, e := range z.File {
		if _, twice := a.entries[e.Name]; twice {
			return nil, fmt.Errorf("has %.80q twice", e.Name)
		}
		a.entries[e.Name] = e
		if folder, is := strings.CutSuffix(e.Name, "/data.pkl"); is && !strings.Contains(folder, "/") {
			if a.folder != "" {
				return nil, fmt.Errorf("has several data.pkl, want one")
			}
			a.folder = folder + "/"
		}
	}
	if a.folder == "" {
		return nil, fmt.Errorf("is a zip archive without a data.pkl, and so not of torch.save")
	}
	if _, said := a.entries[a.folder+"byteorder"]; said {
		order, err := a.read("byteorder", 16)
		if err != nil {
			return nil, err
		}
		if string(order) != "little" {
			return nil, fmt.Errorf("has byteorder %q: only little-endian files are read; save the weights as safetensors", order)
		}
	}
	return a, nil
}

// section returns offset and size of an entry's bytes in the file.
func (a *archive) section(name string) (begin, size int64, err error) {
	e, ok := a.entries[a.folder+name]
	if !ok {
		return 0, 0, fmt.Errorf("%.80s is missing", name)
	}
	if e.Method != zip.Store || e.Flags&1 != 0 || e.CompressedSize64 != e.UncompressedSize64 {
		return 0, 0, fmt.Errorf("%.80s is compressed or encrypted, which torch.save never does", name)
	}
	begin, err = e.DataOffset()
	if err != nil {
		return 0, 0, fmt.Errorf("%.80s: %w", name, err)
	}
	if begin < 0 || begin > a.size || e.UncompressedSize64 > uint64(a.size-begin) {
		return 0, 0, fmt.Errorf("%.80s of %d bytes at %d reaches beyond the file's %d", name, e.UncompressedSize64, begin, a.size)
	}
	return begin, int64(e.UncompressedSize64), nil
}

// read returns an entry of at most most bytes.
func (a *archive) read(name string, most int64) ([]byte, error) {
	begin, size, err := a.section(name)
	if err != nil {
		return nil, err
	}
	if size > most {
		return nil, fmt.Errorf("%s of %d bytes is more than the limit of %d", name, size, most)
	}
	text := make([]byte, size)
	if n, err := a.data.ReadAt(text, begin); n < len(text) {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return text, nil
}
