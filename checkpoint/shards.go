package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/autopar/autopar/checkpoint/safetensors"
	"github.com/autopar/autopar/infile"
)

// maxIndex is far more than an index of ten thousand tensors takes.
const maxIndex = 8 << 20

// shards are several files that together have the tensors of a model, as transformers saves a large
// one. An index beside them, model.safetensors.index.json or pytorch_model.bin.index.json, says which
// file has which tensor.
type shards struct {
	paths []string              // of the files, sorted
	of    map[string]tensorFile // the file that has a tensor
	open  []io.Closer
}

// isIndex reports whether a file is an index, by its name: a safetensors file may begin with any byte.
func isIndex(path string) bool { return strings.HasSuffix(path, ".json") }

// shardForm matches the name of a file that is one of several, as transformers names them.
var shardForm = regexp.MustCompile(`^(.+)-\d+-of-0*(\d+)\.(safetensors|bin)$`)

// checkWhole refuses one of several files, by its name, and says which index to give instead.
func checkWhole(path string) error {
	m := shardForm.FindStringSubmatch(filepath.Base(path))
	if m == nil || m[2] == "1" {
		return nil
	}
	name := m[1] + "." + m[3] + ".index.json"
	index := filepath.Join(filepath.Dir(path), name)
	if _, err := os.Stat(index); err != nil {
		index = name + ", which is not beside it"
	}
	return fmt.Errorf("is one of %s files that have the weights together; give their index, %s", m[2], index)
}

// openShards opens the files of an index. Each has exactly the tensors that the index says.
func openShards(path string) (_ *shards, err error) {
	text, err := infile.Read(path, maxIndex)
	if err != nil {
		return nil, infile.WithoutPath(err)
	}
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(text, &index); err != nil {
		return nil, fmt.Errorf("is no index of weights files: %w", err)
	}
	if len(index.WeightMap) == 0 {
		return nil, errors.New("is no index of weights files: it has no weight_map, which names the file of each tensor")
	}
	s := &shards{of: map[string]tensorFile{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	names := slices.Compact(slices.Sorted(maps.Values(index.WeightMap)))
	for _, name := range names {
		if name != filepath.Base(name) || !filepath.IsLocal(name) || isIndex(name) {
			return nil, fmt.Errorf("names %.80q, want the name of a weights file beside it", name)
		}
	}
	for _, name := range names {
		shard := filepath.Join(filepath.Dir(path), name)
		r, err := infile.Open(shard)
		if err != nil {
			return nil, fmt.Errorf("names a file that cannot be read: %w", err)
		}
		s.open = append(s.open, r)
		s.paths = append(s.paths, shard)
		f, err := openTensors(shard, r)
		if err != nil {
			return nil, err
		}
		for _, tensor := range f.Names() {
			if index.WeightMap[tensor] != name {
				return nil, fmt.Errorf("does not say that tensor %.80q is in %s, which has it", tensor, name)
			}
			s.of[tensor] = f
		}
	}
	for _, tensor := range slices.Sorted(maps.Keys(index.WeightMap)) {
		if s.of[tensor] == nil {
			return nil, fmt.Errorf("says that tensor %.80q is in %s, which does not have it", tensor, index.WeightMap[tensor])
		}
	}
	return s, nil
}

// Close closes the files.
func (s *shards) Close() error { return closeAll(slices.Values(s.open)) }

func (s *shards) Names() []string { return slices.Sorted(maps.Keys(s.of)) }

func (s *shards) find(name string) (tensorFile, error) {
	f, ok := s.of[name]
	if !ok {
		return nil, fmt.Errorf("%w: %q (%d files have %d)", safetensors.ErrNotFound, name, len(s.paths), len(s.of))
	}
	return f, nil
}

func (s *shards) Info(name string) (safetensors.Info, error) {
	f, err := s.find(name)
	if err != nil {
		return safetensors.Info{}, err
	}
	return f.Info(name)
}

func (s *shards) Tensor(name string) (safetensors.Tensor, error) {
	f, err := s.find(name)
	if err != nil {
		return safetensors.Tensor{}, err
	}
	return f.Tensor(name)
}

// Metadata is empty: that of the files is about each of them.
func (s *shards) Metadata() map[string]string { return nil }
