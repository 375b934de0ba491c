package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/bits"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/autopar/autopar/ir"
)

// Version is the version of the manifest's schema.
const Version = 1

// Manifest is the contents of manifest.json.
type Manifest struct {
	Version int `json:"version"`
	// Step is the number of updates made, and so the number of the next iteration.
	Step int `json:"step"`
	// BestVal is the lowest validation loss so far and BestStep the step at which it was measured;
	// nil before the first.
	BestVal  *float32 `json:"best_val"`
	BestStep int      `json:"best_step"`
	// Config is the gpt.yaml of the run, every key of it.
	Config string `json:"config"`
	// Plan is the plan that the run had. Reading does not depend on it.
	Plan json.RawMessage `json:"plan"`
	// Data identifies the data of the run, by file. Checkpoints of older versions have none.
	Data    map[string]string `json:"data,omitempty"`
	Files   []File            `json:"files"`   // sorted by name
	Tensors []Tensor          `json:"tensors"` // sorted by name
}

// File is one safetensors file of a checkpoint.
type File struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"` // lower-case hexadecimal
}

// Tensor is one parameter: a weight or a moment.
type Tensor struct {
	Name  string `json:"name"`
	DType string `json:"dtype"`
	Shape []int  `json:"shape"` // of the whole
	// Parts are disjoint and cover the whole.
	Parts []Part `json:"parts"`
}

// Part is a slab of a tensor, stored in a file under the tensor's name.
type Part struct {
	File   string `json:"file"`
	Offset []int  `json:"offset"`
	Shape  []int  `json:"shape"`
}

func (t *Tensor) slab(p Part) ir.Slab {
	return ir.Slab{Global: t.Shape, Offset: p.Offset, Local: p.Shape}
}

const (
	manifestFile = "manifest.json"
	// maxManifestBytes is far above any manifest. It stops a data file given by mistake.
	maxManifestBytes = 256 << 20
)

// parseManifest reads and checks a manifest; path is for errors, which are *Error.
func parseManifest(path string, text []byte) (*Manifest, error) {
	if !utf8.Valid(text) {
		return nil, errorf(path, "", "is not UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	m := &Manifest{}
	if err := dec.Decode(m); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, errorf(path, "", "ends after %d bytes, in the middle of the manifest", len(text))
		}
		return nil, &Error{File: path, Msg: "is not a manifest", Err: err}
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errorf(path, "", "has something after the manifest, at byte %d", dec.InputOffset())
	}
	if err := m.validate(path); err != nil {
		return nil, err
	}
	return m, nil
}

func (m *Manifest) validate(path string) error {
	switch {
	case m.Version != Version:
		return errorf(path, "", "schema version is %d, this program reads %d", m.Version, Version)
	case m.Step < 0:
		return errorf(path, "", "step is %d", m.Step)
	case m.BestStep < 0 || m.BestStep > m.Step:
		return errorf(path, "", "best_step is %d of %d steps", m.BestStep, m.Step)
	}
	files := map[string]bool{}
	for i, f := range m.Files {
		if err := f.validate(path); err != nil {
			return err
		}
		if i > 0 && f.Name <= m.Files[i-1].Name {
			return errorf(path, "", "file %q comes after %q, want them sorted and each once", f.Name, m.Files[i-1].Name)
		}
		files[f.Name] = true
	}
	for i := range m.Tensors {
		t := &m.Tensors[i]
		if i > 0 && t.Name <= m.Tensors[i-1].Name {
			return errorf(path, t.Name, "comes after %q, want them sorted and each once", m.Tensors[i-1].Name)
		}
		if err := t.validate(path, files); err != nil {
			return err
		}
	}
	return nil
}

var (
	fileForm = regexp.MustCompile(`^[A-Za-z0-9_-]+\.safetensors$`)
	sumForm  = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

func (f File) validate(path string) error {
	switch {
	case !fileForm.MatchString(f.Name) || f.Name != filepath.Base(f.Name):
		return errorf(path, "", "%q is not the name of a file of a checkpoint", f.Name)
	case f.Bytes < 0:
		return errorf(path, "", "file %s has %d bytes", f.Name, f.Bytes)
	case !sumForm.MatchString(f.SHA256):
		return errorf(path, "", "file %s has SHA-256 %q, want 64 hexadecimal digits", f.Name, f.SHA256)
	}
	return nil
}

// validate checks that the parts are inside the tensor, in files that exist, disjoint, and cover it.
func (t *Tensor) validate(path string, files map[string]bool) error {
	if t.Name == "" {
		return errorf(path, "", "a tensor has no name")
	}
	if _, err := ir.ParseDType(t.DType); err != nil {
		return &Error{File: path, Tensor: t.Name, Err: err}
	}
	if len(t.Shape) > ir.MaxSlabDims {
		return errorf(path, t.Name, "has %d dimensions, want at most %d", len(t.Shape), ir.MaxSlabDims)
	}
	whole, ok := elems(t.Shape)
	if !ok {
		return errorf(path, t.Name, "shape %v is not one of a tensor", t.Shape)
	}
	seen := map[string]bool{}
	covered := int64(0)
	for i, p := range t.Parts {
		switch {
		case !files[p.File]:
			return errorf(path, t.Name, "part %d is in file %q, which is not listed", i, p.File)
		case seen[p.File]:
			return errorf(path, t.Name, "has two parts in file %q", p.File)
		case len(p.Offset) != len(t.Shape) || len(p.Shape) != len(t.Shape):
			return errorf(path, t.Name, "part %d at %v of shape %v has not the %d dimensions of %v", i, p.Offset, p.Shape, len(t.Shape), t.Shape)
		}
		seen[p.File] = true
		for d, size := range t.Shape {
			if p.Offset[d] < 0 || p.Shape[d] < 1 || p.Shape[d] > size || p.Offset[d] > size-p.Shape[d] {
				return errorf(path, t.Name, "part %d at %v of shape %v is not inside %v", i, p.Offset, p.Shape, t.Shape)
			}
		}
		for j, other := range t.Parts[:i] {
			if overlap(t.slab(p), t.slab(other)) {
				return errorf(path, t.Name, "parts %d (%s) and %d (%s) overlap", j, other.File, i, p.File)
			}
		}
		covered += ir.Elems(p.Shape)
	}
	if covered != whole {
		return errorf(path, t.Name, "its %d parts hold %d of %d elements", len(t.Parts), covered, whole)
	}
	return nil
}

// elems multiplies the sizes of a shape. It returns false if one is not positive or there are more
// than 2^60 elements.
func elems(shape []int) (int64, bool) {
	n := uint64(1)
	for _, s := range shape {
		hi, lo := bits.Mul64(n, uint64(max(s, 0)))
		if s < 1 || hi != 0 || lo > 1<<60 {
			return 0, false
		}
		n = lo
	}
	return int64(n), true
}

// find returns the tensor of the given name, or nil.
func (m *Manifest) find(name string) *Tensor {
	i, ok := slices.BinarySearchFunc(m.Tensors, name, func(t Tensor, name string) int {
		return strings.Compare(t.Name, name)
	})
	if !ok {
		return nil
	}
	return &m.Tensors[i]
}
