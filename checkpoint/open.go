package checkpoint

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/autopar/autopar/checkpoint/safetensors"
	"github.com/autopar/autopar/infile"
	"github.com/autopar/autopar/ir"
)

// Checkpoint is an open checkpoint. Several goroutines may call its methods.
type Checkpoint struct {
	Manifest
	Dir   string
	files map[string]*safetensors.File
}

// Open opens a checkpoint, given its directory, or given the DIR of a run the one that
// DIR/ckpt/latest names. It reads every file once to verify its SHA-256. Errors have an *Error in
// their tree; that of a directory without a checkpoint wraps [fs.ErrNotExist].
//
// If the run saves meanwhile and removes the checkpoint that is being opened, Open opens the next
// one.
func Open(path string) (*Checkpoint, error) { return open(path, locate) }

func open(path string, locate func(path string) (string, error)) (*Checkpoint, error) {
	dir, err := locate(path)
	if err != nil {
		return nil, err
	}
	for again := 0; ; again++ {
		c, err := openDir(dir)
		if err == nil || dir == path {
			return c, err
		}
		newest, moved := locate(path)
		if moved != nil || newest == dir || again == 9 {
			return nil, beside(dir, err)
		}
		dir = newest
	}
}

// beside adds to the error of the newest checkpoint, which cannot be used, how to go back to the
// one before, if there is one.
func beside(dir string, err error) error {
	root, name := filepath.Split(dir)
	if other := lastOf(root, name); other != "" {
		return fmt.Errorf("%w; %s is there too: to go back to it write its name to %s", err, other, filepath.Join(root, latestFile))
	}
	return err
}

// lastOf returns the last whole checkpoint under root but one, "" if there is none.
func lastOf(root, but string) string {
	entries, _ := os.ReadDir(root) // none, if it cannot be read
	for _, e := range slices.Backward(entries) {
		if _, ok := parseName(e.Name()); ok && e.Name() != but && whole(filepath.Join(root, e.Name())) {
			return filepath.Join(root, e.Name())
		}
	}
	return ""
}

// Holds returns the last of the checkpoints in the DIR of a run, "" if there is none. Unlike [Newest] it does not depend on the
// file that names the newest one, so it also finds those that saving would remove though that file is damaged or missing.
func Holds(dir string) string { return lastOf(filepath.Join(dir, rootDir), "") }

// RunOf returns the DIR of the run whose checkpoints are in a directory, "" if there are none.
func RunOf(root string) string {
	if lastOf(root, "") == "" {
		return ""
	}
	return filepath.Join(root, "..")
}

// Beside returns the last of the other checkpoints beside one, "" if there is none.
func Beside(dir string) string { return lastOf(filepath.Split(dir)) }

// Is reports whether a directory is itself a checkpoint, and not the DIR of a run that has some.
func Is(dir string) bool { return whole(dir) }

// whole reports whether a directory has a manifest, which is written last and removed first.
func whole(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, manifestFile))
	return err == nil
}

// openDir opens the checkpoint in a directory.
func openDir(dir string) (*Checkpoint, error) {
	text, err := readText(filepath.Join(dir, manifestFile))
	if err != nil {
		return nil, err
	}
	m, err := parseManifest(filepath.Join(dir, manifestFile), text)
	if err != nil {
		return nil, err
	}
	c := &Checkpoint{Manifest: *m, Dir: dir, files: map[string]*safetensors.File{}}
	if err := c.openFiles(); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Close closes the files.
func (c *Checkpoint) Close() error { return closeAll(maps.Values(c.files)) }

// closeAll closes files.
func closeAll[C io.Closer](files iter.Seq[C]) error {
	var errs []error
	for f := range files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// Paths lists the files of the checkpoint, and the one that names it the newest of a run.
func (c *Checkpoint) Paths() []string {
	paths := []string{filepath.Join(c.Dir, manifestFile)}
	for _, f := range c.Files {
		paths = append(paths, filepath.Join(c.Dir, f.Name))
	}
	if root := filepath.Dir(c.Dir); filepath.Base(root) == rootDir {
		paths = append(paths, filepath.Join(root, latestFile))
	}
	return paths
}

// locate returns the directory of the checkpoint that path refers to.
func locate(path string) (string, error) {
	if whole(path) {
		return path, nil
	}
	if info, err := os.Stat(path); err == nil && !info.IsDir() {
		return "", errorf(path, "", "is a file, want the directory of a run or of one checkpoint")
	}
	root := filepath.Join(path, rootDir)
	name, err := readLatest(root)
	if errors.Is(err, fs.ErrNotExist) {
		err = &Error{File: path, Msg: "holds no checkpoint (neither " + manifestFile + " nor " + LatestFile + ")", Err: fs.ErrNotExist}
		if run := RunOf(path); run != "" {
			err = fmt.Errorf("%w; name the directory of the run, %s", err, run)
		} else if file := weightsIn(path); file != "" {
			err = fmt.Errorf("%w; name the file of weights in it, %s", err, file)
		}
	}
	if err != nil {
		return "", beside(root+string(filepath.Separator), err)
	}
	return filepath.Join(root, name), nil
}

// Mark identifies the newest checkpoint of a run at some time. The zero Mark is none.
type Mark struct {
	path string
	at   int64
}

// SavedSince reports whether a checkpoint was saved in the DIR of a run since Saved returned a
// mark. It does not rely on the clock, which may have been set back or not have advanced.
func SavedSince(dir string, before Mark) bool {
	now := Saved(dir)
	return now != before && now != Mark{}
}

// Saved returns the mark of the newest checkpoint in the DIR of a run.
func Saved(dir string) Mark {
	info, err := os.Stat(filepath.Join(dir, LatestFile))
	if err != nil {
		return Mark{}
	}
	path, _, err := Newest(dir)
	if err != nil {
		return Mark{}
	}
	return Mark{path, info.ModTime().UnixNano()}
}

// Newest returns the directory and step of the newest checkpoint in the DIR of a run, without
// opening it.
func Newest(dir string) (path string, step int, err error) {
	root := filepath.Join(dir, rootDir)
	name, err := readLatest(root)
	if err != nil {
		return "", 0, beside(root+string(filepath.Separator), err)
	}
	s, _ := parseName(name)
	return filepath.Join(root, name), s.step, nil
}

// readLatest returns the name of the newest checkpoint under root.
func readLatest(root string) (string, error) {
	path := filepath.Join(root, latestFile)
	text, err := readText(path)
	if err != nil {
		return "", err
	}
	name := strings.TrimSpace(string(text))
	if _, ok := parseName(name); !ok {
		return "", errorf(path, "", "holds %.40q, want the name of a checkpoint", name)
	}
	return name, nil
}

// readText reads a manifest, or a smaller file.
func readText(path string) ([]byte, error) {
	f, err := infile.Open(path)
	if err != nil {
		return nil, &Error{File: path, Msg: "cannot be read", Err: infile.WithoutPath(err)}
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxManifestBytes+1))
	if err != nil {
		return nil, &Error{File: path, Msg: "cannot be read", Err: infile.WithoutPath(err)}
	}
	if len(text) > maxManifestBytes {
		return nil, errorf(path, "", "is larger than %d bytes", maxManifestBytes)
	}
	return text, nil
}

// openFiles opens every file and compares it with the manifest.
func (c *Checkpoint) openFiles() error {
	for _, want := range c.Files {
		path := filepath.Join(c.Dir, want.Name)
		got, err := describe(path)
		if err != nil {
			return &Error{File: path, Msg: "cannot be read", Err: infile.WithoutPath(err)}
		}
		if got.Bytes != want.Bytes {
			return errorf(path, "", "has %d bytes, the manifest says %d", got.Bytes, want.Bytes)
		}
		if got.SHA256 != want.SHA256 {
			return errorf(path, "", "has SHA-256 %s, the manifest says %s", got.SHA256, want.SHA256)
		}
		f, err := safetensors.Open(path)
		if err != nil {
			return &Error{File: path, Err: err}
		}
		c.files[want.Name] = f
	}
	held := map[string]int{}
	for i := range c.Tensors {
		t := &c.Tensors[i]
		for _, p := range t.Parts {
			path := filepath.Join(c.Dir, p.File)
			info, err := c.files[p.File].Info(t.Name)
			if err != nil {
				return &Error{File: path, Tensor: t.Name, Msg: "is missing", Err: err}
			}
			if string(info.DType) != strings.ToUpper(t.DType) || !slices.Equal(info.Shape, p.Shape) {
				return errorf(path, t.Name, "is %s %v, the manifest says %s %v", info.DType, info.Shape, strings.ToUpper(t.DType), p.Shape)
			}
			held[p.File]++
		}
	}
	for name, f := range c.files {
		if n := len(f.Names()); n != held[name] {
			return errorf(filepath.Join(c.Dir, name), "", "holds %d tensors, the manifest knows %d of them", n, held[name])
		}
	}
	return nil
}

// describe returns size and SHA-256 of a file.
func describe(path string) (File, error) {
	f, err := infile.Open(path)
	if err != nil {
		return File{}, err
	}
	defer f.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, f)
	if err != nil {
		return File{}, err
	}
	return File{Name: filepath.Base(path), Bytes: n, SHA256: hex.EncodeToString(sum.Sum(nil))}, nil
}

// Read implements [Reader]. If a two-byte weight is wanted in another type and the checkpoint has
// its master copy, Read reads that.
func (c *Checkpoint) Read(name string, dtype ir.DType, slab ir.Slab, dst []byte) error {
	t := c.find(name)
	if t == nil {
		return errorf(c.Dir, name, "is not among its %d tensors", len(c.Tensors))
	}
	if !slices.Equal(t.Shape, slab.Global) {
		return errorf(c.Dir, name, "has shape %v, want %v", t.Shape, slab.Global)
	}
	if t.DType != dtype.String() && c.find(name+masterSuffix) != nil {
		return c.Read(name+masterSuffix, dtype, slab, dst)
	}
	stored, err := ir.ParseDType(t.DType)
	if err != nil {
		return &Error{File: c.Dir, Tensor: name, Err: err}
	}
	if want := slab.Elems() * dtype.Size(); int64(len(dst)) != want {
		panic(fmt.Sprintf("BUG: checkpoint: %d bytes for a part of %s that takes %d", len(dst), name, want))
	}
	for _, p := range t.Parts {
		part := t.slab(p)
		if !overlap(slab, part) {
			continue
		}
		section, err := c.files[p.File].Section(name)
		if err != nil {
			return &Error{File: filepath.Join(c.Dir, p.File), Tensor: name, Err: err}
		}
		// Read once from the first common element to the last, then copy run by run.
		first, last := int64(-1), int64(0)
		ir.EachRun(slab, part, func(_, b, n int) {
			if first < 0 {
				first = int64(b)
			}
			last = int64(b + n)
		})
		size := stored.Size()
		buf := make([]byte, (last-first)*size)
		if n, err := section.ReadAt(buf, first*size); n < len(buf) {
			return &Error{File: filepath.Join(c.Dir, p.File), Tensor: name, Msg: fmt.Sprintf("%d bytes at %d of the tensor cannot be read", len(buf), first*size), Err: infile.WithoutPath(err)}
		}
		var failed error
		ir.EachRun(slab, part, func(a, b, n int) {
			from := int64(b) - first
			failed = errors.Join(failed, convert(dst[int64(a)*dtype.Size():], dtype, buf[from*size:(from+int64(n))*size], stored))
		})
		if failed != nil {
			return &Error{File: c.Dir, Tensor: name, Err: failed}
		}
	}
	return nil
}

// Snapshot describes the contents of a checkpoint, cut into the given shards, for [Save]. It sets
// the shards' Read. nil shards stand for one rank that holds all.
func (c *Checkpoint) Snapshot(shards []Shard) (Snapshot, error) {
	s := Snapshot{Step: c.Step, BestVal: c.BestVal, BestStep: c.BestStep, Config: c.Config, Plan: c.Plan, Data: c.Data}
	if shards == nil {
		for _, t := range c.Tensors {
			dtype, err := ir.ParseDType(t.DType)
			if err != nil {
				return Snapshot{}, err
			}
			shards = append(shards, Shard{Name: t.Name, Type: ir.Type{DType: dtype, Shape: t.Shape}, Slab: ir.Whole(t.Shape)})
		}
	}
	for _, x := range shards {
		if err := c.CheckType(x.Name, x.Type.DType); err != nil {
			return Snapshot{}, err
		}
		x.Read = func(dst []byte) error { return c.Read(x.Name, x.Type.DType, x.Slab, dst) }
		s.Shards = append(s.Shards, x)
	}
	return s, nil
}

// Float32s returns a whole tensor, for a weight from its master copy if there is one.
func (c *Checkpoint) Float32s(name string) ([]float32, error) {
	t := c.find(name)
	if t == nil {
		return nil, errorf(c.Dir, name, "is not among its %d tensors", len(c.Tensors))
	}
	return readFloats(c, name, ir.Whole(t.Shape))
}

// readFloats returns a part of a tensor as float32.
func readFloats(r Reader, name string, slab ir.Slab) ([]float32, error) {
	data := make([]byte, 4*slab.Elems())
	if err := r.Read(name, ir.F32, slab, data); err != nil {
		return nil, err
	}
	out := make([]float32, len(data)/4)
	if _, err := binary.Decode(data, binary.LittleEndian, out); err != nil {
		panic("BUG: checkpoint: " + err.Error())
	}
	return out, nil
}
