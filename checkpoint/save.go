package checkpoint

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/autopar/autopar/checkpoint/safetensors"
	"github.com/autopar/autopar/infile"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/launch"
	"github.com/autopar/autopar/wholefile"
)

const (
	rootDir    = "ckpt" // under the DIR of a run
	latestFile = "latest"
	nextFile   = "latest.next" // renamed to latest
	filePrefix = "rank-"       // of the files of a checkpoint
	tempPrefix = ".tmp-"       // of directories that are being written
)

// LatestFile is the file in the DIR of a run that names its newest checkpoint.
const LatestFile = rootDir + "/" + latestFile

// Snapshot is the state to save.
type Snapshot struct {
	Step     int      // updates made
	BestVal  *float32 // see Manifest
	BestStep int
	Config   string
	Plan     json.RawMessage
	Data     map[string]string
	// Shards are what all ranks hold, in order of rank. Of parts that several ranks hold only the
	// first is saved, so replicas, and a table that two pipeline stages share, are saved once.
	Shards []Shard
	// Peers are the processes that save together, each what its rank holds. All call Save with the
	// same snapshot, and with a directory that all can see. It is nil if there is only one process.
	Peers *launch.Peers
	// Patience bounds how long they wait for each other if nothing is written. Every 10 MB may take
	// a second more.
	Patience time.Duration
}

// slowest is the rate of the slowest disk that is waited for, in bytes/s.
const slowest = 10e6

// bound returns how long writing the snapshot may take.
func (s *Snapshot) bound(patience time.Duration) time.Duration {
	total := int64(0)
	for _, x := range s.Shards {
		total += x.Slab.Elems() * x.Type.DType.Size()
	}
	return patience + time.Duration(float64(total)/slowest*float64(time.Second))
}

// Shard is a part of a tensor that a rank holds.
type Shard struct {
	Rank int
	Name string // structural name of the tensor
	Type ir.Type
	Slab ir.Slab
	// Read fills dst with the elements, in row-major order and little-endian.
	Read func(dst []byte) error
}

// Retention says which checkpoints are kept when a new one is saved. The newest and the one with
// the best validation loss always are. The zero value keeps only those.
type Retention struct {
	Last int // how many newest ones, at least 1
	// New says that this is the first save of a new run. Existing checkpoints are not its own, so
	// none is kept.
	New bool
	// From is, at the first save of a run that has been resumed, the step that it went on from, or 0.
	// Existing checkpoints of later steps are not its own, so none of them is kept.
	From int
	// Spare keeps all existing checkpoints.
	Spare bool
}

// Save saves a snapshot under the DIR of a run and returns the checkpoint's directory. Then it
// removes checkpoints that are not retained. Those of later steps are never retained: they belong
// to a run that this one has replaced.
//
// If Save returns a directory, the checkpoint is there, and an error is a [*StaleError]. Until then
// DIR/ckpt/latest leads to the checkpoint before.
func Save(dir string, s Snapshot, keep Retention) (string, error) {
	return (&saver{root: filepath.Join(dir, rootDir), keep: keep}).save(s)
}

// Writable returns an error if [Save] could not write to the DIR of a run, which it would do after hours of training.
func Writable(dir string) error {
	root := filepath.Join(dir, rootDir)
	if why := wholefile.Obstacle(root); why != "" {
		return errorf(root, "", "cannot be a directory: %s", why)
	}
	temp, err := os.MkdirTemp(root, tempPrefix)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // which Save makes
		return fmt.Errorf("checkpoint: nothing can be saved in %s: %w", root, infile.WithoutPath(err))
	}
	os.Remove(temp) // or the next Save does
	return nil
}

// A StaleError says that checkpoints which are not retained could not be removed: permissions
// forbid it, or somebody reads them on a network file system, where an open file keeps a name until
// it is closed. A later Save tries again.
type StaleError struct{ Err error }

func (e *StaleError) Error() string {
	return "checkpoint: old ones are not removed: " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *StaleError) Unwrap() error { return e.Err }

// saver is one call of Save.
type saver struct {
	root string
	keep Retention
	left error // why not all that killed writers have left was removed
	// before, if set, is called before each stage; an error ends the saving there. Tests use it.
	before func(stage string) error
}

func (w *saver) stage(name string) error {
	if w.before == nil {
		return nil
	}
	return w.before(name)
}

// save saves in three stages: the directory is made, the files are written, the checkpoint is
// committed. After each stage all processes know whether it has succeeded everywhere. The first
// process makes the directory and commits.
func (w *saver) save(s Snapshot) (string, error) {
	first := s.Peers == nil || s.Peers.Rank() == 0
	ctx, cancel := context.WithTimeout(context.Background(), s.bound(s.Patience))
	defer cancel()
	var temp string
	var err error
	if first {
		if temp, err = w.begin(); err == nil {
			defer os.RemoveAll(temp) // after the rename it does not exist any more
		}
	}
	told, err := together(ctx, s.Peers, progress{Name: filepath.Base(temp)}, err)
	if err != nil {
		return "", fmt.Errorf("checkpoint: %w", err)
	}
	temp = filepath.Join(w.root, told[0].Name) // each process may have its own name for the directory
	m := Manifest{Version: Version, Step: s.Step, BestVal: s.BestVal, BestStep: s.BestStep, Config: s.Config, Plan: s.Plan, Data: s.Data}
	files, err := w.fill(temp, &m, s)
	if told, err = together(ctx, s.Peers, progress{Files: files}, err); err != nil {
		return "", fmt.Errorf("checkpoint: step %d: %w", s.Step, err)
	}
	for _, p := range told {
		m.Files = append(m.Files, p.Files...)
	}
	var name string
	var stale error
	if first {
		name, stale, err = w.finish(temp, m)
	}
	if told, err = together(ctx, s.Peers, progress{Name: name}, err); err != nil {
		return "", fmt.Errorf("checkpoint: step %d: %w", s.Step, err)
	}
	return filepath.Join(w.root, told[0].Name), stale
}

// progress is what a process tells the others about its part of a stage.
type progress struct {
	Name  string
	Files []File
	Err   string
}

// together returns the progress of all processes by rank, or the error of the first process that
// has failed. err is the error of this one.
func together(ctx context.Context, peers *launch.Peers, mine progress, err error) ([]progress, error) {
	if peers == nil {
		return []progress{mine}, err
	}
	if err != nil {
		mine.Err = err.Error()
	}
	b, err2 := json.Marshal(mine)
	if err2 != nil {
		return nil, err2
	}
	texts, err2 := peers.GatherAside(ctx, b)
	if err2 != nil {
		return nil, err2
	}
	all := make([]progress, len(texts))
	for rank, text := range texts {
		if err := json.Unmarshal(text, &all[rank]); err != nil {
			return nil, fmt.Errorf("what rank %d has saved: %w", rank, err)
		}
		if err == nil && all[rank].Err != "" {
			err = fmt.Errorf("rank %d: %s", rank, all[rank].Err)
		}
	}
	return all, err
}

// begin makes the temporary directory. First it removes those that killed writers have left: the
// disk may not have room for another.
func (w *saver) begin() (string, error) {
	if err := os.MkdirAll(w.root, 0o777); err != nil {
		return "", err
	}
	entries, err := os.ReadDir(w.root)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempPrefix) && e.IsDir() {
			w.left = errors.Join(w.left, os.RemoveAll(filepath.Join(w.root, e.Name())))
		}
	}
	return os.MkdirTemp(w.root, tempPrefix)
}

// fill writes this process's files to the temporary directory, and sets the tensors of the
// manifest.
func (w *saver) fill(temp string, m *Manifest, s Snapshot) (files []File, err error) {
	saved, err := m.assign(s.Shards)
	if err != nil {
		return nil, err
	}
	for _, file := range slices.Sorted(maps.Keys(saved)) {
		if s.Peers != nil && saved[file][0].Rank != s.Peers.Rank() {
			continue
		}
		if err := w.stage(file); err != nil {
			return nil, err
		}
		path := filepath.Join(temp, file)
		if err := writeShards(path, saved[file]); err != nil {
			return nil, err
		}
		f, err := describe(path)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

// finish writes the manifest, commits the directory, and removes what is not retained. stale is the
// error of the removal.
func (w *saver) finish(temp string, m Manifest) (name string, stale, err error) {
	if err := m.validate(temp); err != nil {
		return "", nil, err
	}
	if err := w.stage("manifest"); err != nil {
		return "", nil, err
	}
	text, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return "", nil, err
	}
	if err := writeFile(filepath.Join(temp, manifestFile), append(text, '\n')); err != nil {
		return "", nil, err
	}
	if err := syncDir(temp); err != nil {
		return "", nil, err
	}
	if name, err = w.commit(temp, m.Step); err != nil {
		return "", nil, err
	}
	if err := w.stage("retention"); err != nil {
		return "", nil, err
	}
	if err := errors.Join(w.left, w.retain(name, m.BestStep)); err != nil {
		return name, &StaleError{err}, nil
	}
	return name, nil, nil
}

// assign decides which rank saves which part: of each tensor the parts of the lowest ranks that
// together hold all of it. It sets the tensors of the manifest and returns the shards by file.
func (m *Manifest) assign(shards []Shard) (map[string][]Shard, error) {
	tensors := map[string]*Tensor{}
	files := map[string][]Shard{}
	for _, s := range shards {
		t := tensors[s.Name]
		if t == nil {
			t = &Tensor{Name: s.Name, DType: s.Type.DType.String(), Shape: slices.Clone(s.Type.Shape)}
			tensors[s.Name] = t
		}
		if !slices.Equal(t.Shape, s.Slab.Global) {
			return nil, fmt.Errorf("rank %d holds a part of %s of shape %v, others of %v", s.Rank, s.Name, s.Slab.Global, t.Shape)
		}
		taken := slices.ContainsFunc(t.Parts, func(p Part) bool { return overlap(t.slab(p), s.Slab) })
		if taken || s.Slab.Elems() == 0 {
			continue
		}
		file := fmt.Sprintf(filePrefix+"%05d.safetensors", s.Rank)
		t.Parts = append(t.Parts, Part{File: file, Offset: slices.Clone(s.Slab.Offset), Shape: slices.Clone(s.Slab.Local)})
		files[file] = append(files[file], s)
	}
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		m.Tensors = append(m.Tensors, *tensors[name])
	}
	return files, nil
}

// writeShards writes one file, tensor by tensor.
func writeShards(path string, shards []Shard) error {
	infos := make([]safetensors.Info, len(shards))
	for i, s := range shards {
		infos[i] = safetensors.Info{Name: s.Name, DType: safetensors.DType(strings.ToUpper(s.Type.DType.String())), Shape: s.Slab.Local}
	}
	w, err := safetensors.Create(path, infos, nil)
	if err != nil {
		return err
	}
	defer w.Close()
	var buf []byte
	for i, s := range shards {
		n := int(s.Slab.Elems() * s.Type.DType.Size())
		buf = slices.Grow(buf[:0], n)[:n]
		if err := s.Read(buf); err != nil {
			return fmt.Errorf("reading %s on rank %d: %w", s.Name, s.Rank, err)
		}
		if err := w.Write(safetensors.Tensor{Name: infos[i].Name, DType: infos[i].DType, Shape: infos[i].Shape, Data: buf}); err != nil {
			return err
		}
	}
	return w.Commit()
}

// commit renames the finished directory and points latest to it. On a full disk it fails before the
// first rename. If the step was saved before, the directory gets another name, because a rename
// cannot replace a directory.
func (w *saver) commit(temp string, step int) (string, error) {
	base := fmt.Sprintf("step-%08d", step)
	name := base
	for i := 1; ; i++ {
		if _, err := os.Lstat(filepath.Join(w.root, name)); errors.Is(err, fs.ErrNotExist) {
			break
		} else if err != nil {
			return "", err
		}
		name = fmt.Sprintf("%s.%d", base, i)
	}
	if err := w.stage("rename"); err != nil {
		return "", err
	}
	// MkdirTemp's directories are private. Give this one the permissions of its parent.
	info, err := os.Stat(w.root)
	if err == nil {
		err = os.Chmod(temp, info.Mode())
	}
	if err != nil {
		return "", err
	}
	next := filepath.Join(w.root, nextFile)
	if err := writeFile(next, []byte(name+"\n")); err != nil { // the last write that takes space
		return "", err
	}
	if err := os.Rename(temp, filepath.Join(w.root, name)); err != nil {
		return "", err
	}
	if err := syncDir(w.root); err != nil {
		return "", err
	}
	if err := w.stage("latest"); err != nil {
		return "", err
	}
	if err := os.Rename(next, filepath.Join(w.root, latestFile)); err != nil {
		return "", err
	}
	return name, syncDir(w.root)
}

// saved is a directory with a checkpoint. again counts further checkpoints of the same step.
type saved struct {
	name        string
	step, again int
}

// parseName reads step-NNNNNNNN or step-NNNNNNNN.N.
func parseName(name string) (saved, bool) {
	digits, ok := strings.CutPrefix(name, "step-")
	digits, again, _ := strings.Cut(digits, ".")
	if !ok || len(digits) < 8 {
		return saved{}, false
	}
	s := saved{name: name}
	var err, err2 error
	s.step, err = strconv.Atoi(digits)
	if again != "" {
		s.again, err2 = strconv.Atoi(again)
	}
	if err != nil || err2 != nil || s.step < 0 || s.again < 0 {
		return saved{}, false
	}
	return s, true
}

// retain removes what is neither latest nor retained.
func (w *saver) retain(latest string, best int) error {
	entries, err := os.ReadDir(w.root)
	if err != nil {
		return err
	}
	var all []saved
	var drop []string
	for _, e := range entries {
		if s, ok := parseName(e.Name()); ok && e.IsDir() {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b saved) int { // newest first
		return cmp.Or(cmp.Compare(b.step, a.step), cmp.Compare(b.again, a.again))
	})
	if w.keep.Spare {
		all = nil
	}
	now, _ := parseName(latest)
	kept := map[int]bool{now.step: true}
	for _, s := range all {
		switch {
		case s.name == latest:
		case s.step < now.step && !kept[s.step] && !w.keep.New && (w.keep.From == 0 || s.step <= w.keep.From) && whole(filepath.Join(w.root, s.name)) &&
			(len(kept) < max(1, w.keep.Last) || s.step == best):
			kept[s.step] = true
		default:
			drop = append(drop, s.name)
		}
	}
	var failed error
	for _, name := range drop {
		// Remove the manifest first, so that half a checkpoint does not look like one.
		err := os.Remove(filepath.Join(w.root, name, manifestFile))
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			err = os.RemoveAll(filepath.Join(w.root, name))
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

// writeFile writes a file and makes it durable.
func writeFile(path string, content []byte) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Sync(), f.Close())
}

// syncDir makes the names in a directory durable.
func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
