package checkpoint

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/checkpoint/safetensors"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/launch"
	"github.com/autopar/autopar/launch/launchtest"
)

// value is element i of a tensor at a step. All values are different.
func value(name string, step int, i int64) uint32 {
	return uint32(step)<<24 ^ uint32(len(name))<<16 ^ uint32(name[0])<<20 ^ uint32(i)
}

// fill reads a slab of a made-up tensor.
func fill(name string, step int, slab ir.Slab) []byte {
	dst := make([]byte, 4*slab.Elems())
	ir.EachRun(slab, ir.Whole(slab.Global), func(a, b, n int) {
		for i := range n {
			binary.LittleEndian.PutUint32(dst[4*(a+i):], value(name, step, int64(b+i)))
		}
	})
	return dst
}

func shard(rank int, name string, step int, slab ir.Slab) Shard {
	return Shard{Rank: rank, Name: name, Type: ir.Type{Shape: slab.Global}, Slab: slab, Read: func(dst []byte) error {
		copy(dst, fill(name, step, slab))
		return nil
	}}
}

// snapshot is of four ranks: w is cut over the first two and replicated on the others, s is a
// scalar, and v is cut differently on the last rank.
func snapshot(step int) Snapshot {
	s := Snapshot{Step: step, Config: "model: {}\n", Plan: json.RawMessage(`{"dp":2}`)}
	mesh := ir.Mesh{Axes: []ir.Axis{{Name: "tp", Size: 2}}}
	var rows ir.ShardSpec
	rows[0] = ir.ShardOn(0)
	for r := range 4 {
		s.Shards = append(s.Shards, shard(r, "w", step, mesh.Local([]int{7, 5}, rows, ir.Coord{r % 2})), shard(r, "s", step, ir.Whole(nil)))
		if r < 3 {
			s.Shards = append(s.Shards, shard(r, "v", step, ir.Whole([]int{3})))
		} else {
			s.Shards = append(s.Shards, shard(r, "v", step, ir.Slab{Global: []int{3}, Offset: []int{1}, Local: []int{2}}))
		}
	}
	return s
}

func mustSave(t *testing.T, dir string, s Snapshot, keep Retention) string {
	t.Helper()
	path, err := Save(dir, s, keep)
	require.NoError(t, err)
	return path
}

// requireHolds fails unless the newest checkpoint of a run is complete, and of the given step.
func requireHolds(t *testing.T, dir string, step int) {
	t.Helper()
	c, err := Open(dir)
	require.NoError(t, err)
	defer c.Close()
	require.Equal(t, step, c.Step)
	for name, shape := range map[string][]int{"w": {7, 5}, "v": {3}, "s": nil} {
		whole := ir.Whole(shape)
		got := make([]byte, 4*whole.Elems())
		require.NoError(t, c.Read(name, ir.F32, whole, got))
		require.Equal(t, fill(name, step, whole), got, name)
	}
}

func TestSaveAndOpen(t *testing.T) {
	dir := t.TempDir()
	s := snapshot(3)
	best := float32(1.8857)
	s.BestVal, s.BestStep = &best, 2
	path := mustSave(t, dir, s, Retention{})
	require.Equal(t, filepath.Join(dir, "ckpt", "step-00000003"), path)
	requireHolds(t, dir, 3)
	requireHolds(t, path, 3)

	c, err := Open(dir)
	require.NoError(t, err)
	defer c.Close()
	require.Equal(t, best, *c.BestVal)
	require.Equal(t, s.Config, c.Config)
	require.JSONEq(t, string(s.Plan), string(c.Plan))
	// Each part is saved by the first rank that holds it; the last two ranks save nothing.
	require.Equal(t, []string{"rank-00000.safetensors", "rank-00001.safetensors"}, []string{c.Files[0].Name, c.Files[1].Name})
	require.Equal(t, []Part{{"rank-00000.safetensors", []int{0, 0}, []int{4, 5}}, {"rank-00001.safetensors", []int{4, 0}, []int{3, 5}}}, c.find("w").Parts)
	require.Len(t, c.find("v").Parts, 1)

	err = c.Read("x", ir.F32, ir.Whole([]int{3}), make([]byte, 12))
	require.ErrorContains(t, err, `tensor "x": is not among its 3 tensors`)
	err = c.Read("w", ir.F32, ir.Whole([]int{5, 7}), make([]byte, 140))
	require.ErrorContains(t, err, `tensor "w": has shape [7 5], want [5 7]`)
}

// TestOverlap: whether parts overlap is known without allocating, as the parts of a tensor of hundreds of ranks are compared in
// pairs, while training waits.
func TestOverlap(t *testing.T) {
	at := func(row, col, rows, cols int) ir.Slab {
		return ir.Slab{Global: []int{9, 9}, Offset: []int{row, col}, Local: []int{rows, cols}}
	}
	of := at(2, 3, 4, 2)
	for _, c := range []struct {
		other ir.Slab
		want  bool
	}{
		{of, true}, {at(0, 0, 9, 9), true}, {at(5, 4, 1, 1), true}, {at(0, 0, 3, 4), true},
		{at(6, 3, 1, 2), false}, {at(0, 3, 2, 2), false}, {at(2, 5, 4, 4), false}, {at(2, 0, 4, 3), false}, {at(3, 4, 0, 1), false},
	} {
		require.Equal(t, c.want, overlap(of, c.other), c.other)
		require.Equal(t, c.want, overlap(c.other, of), c.other)
		require.Zero(t, testing.AllocsPerRun(10, func() { overlap(of, c.other) }))
	}
	require.True(t, overlap(ir.Whole(nil), ir.Whole(nil)), "scalars")
}

// TestAnyToAny: however uneven grids cut a tensor when it is saved and when it is read, every
// element arrives.
func TestAnyToAny(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	// grid cuts a shape at random places.
	grid := func(shape []int) []ir.Slab {
		slabs := []ir.Slab{{Global: shape, Offset: make([]int, len(shape)), Local: slices.Clone(shape)}}
		for range rng.IntN(5) {
			i := rng.IntN(len(slabs))
			a := slabs[i]
			d := rng.IntN(len(shape))
			if a.Local[d] < 2 {
				continue
			}
			at := 1 + rng.IntN(a.Local[d]-1)
			b := ir.Slab{Global: shape, Offset: slices.Clone(a.Offset), Local: slices.Clone(a.Local)}
			a.Local = slices.Clone(a.Local)
			a.Local[d] = at
			b.Offset[d] += at
			b.Local[d] -= at
			slabs[i] = a
			slabs = append(slabs, b)
		}
		return slabs
	}
	for range 30 {
		shape := make([]int, 1+rng.IntN(4))
		for d := range shape {
			shape[d] = 1 + rng.IntN(6)
		}
		dir := t.TempDir()
		s := Snapshot{Step: 1}
		for r, slab := range grid(shape) {
			s.Shards = append(s.Shards, shard(r, "w", 1, slab))
		}
		mustSave(t, dir, s, Retention{})
		c, err := Open(dir)
		require.NoError(t, err)
		for _, slab := range grid(shape) {
			got := make([]byte, 4*slab.Elems())
			require.NoError(t, c.Read("w", ir.F32, slab, got))
			require.Equal(t, fill("w", 1, slab), got, "%v of %v", slab, shape)
		}
		merged, err := c.Snapshot(nil)
		require.NoError(t, err)
		again := t.TempDir()
		mustSave(t, again, merged, Retention{})
		one, err := Open(again)
		require.NoError(t, err)
		require.Len(t, one.Files, 1)
		got := make([]byte, 4*ir.Elems(shape))
		require.NoError(t, one.Read("w", ir.F32, ir.Whole(shape), got))
		require.Equal(t, fill("w", 1, ir.Whole(shape)), got)
		require.NoError(t, errors.Join(c.Close(), one.Close()))
	}
}

// TestIncomplete: a tensor that the ranks do not hold completely cannot be saved.
func TestIncomplete(t *testing.T) {
	s := Snapshot{Step: 1, Shards: []Shard{shard(0, "w", 1, ir.Slab{Global: []int{7}, Offset: []int{0}, Local: []int{4}})}}
	_, err := Save(t.TempDir(), s, Retention{})
	require.ErrorContains(t, err, "hold 4 of 7 elements")
}

// TestFailureAtEachStage: a writer that stops before any stage leaves the previous checkpoint, and
// the next one is complete.
func TestFailureAtEachStage(t *testing.T) {
	for _, stage := range []string{"rank-00000.safetensors", "rank-00001.safetensors", "manifest", "rename", "latest", "retention"} {
		t.Run(stage, func(t *testing.T) {
			dir := t.TempDir()
			mustSave(t, dir, snapshot(1), Retention{})
			w := &saver{root: filepath.Join(dir, rootDir), before: func(s string) error {
				if s == stage {
					return errors.New("disk full")
				}
				return nil
			}}
			_, err := w.save(snapshot(2))
			require.ErrorContains(t, err, "disk full")
			if stage == "retention" {
				requireHolds(t, dir, 2)
			} else {
				requireHolds(t, dir, 1)
			}
			mustSave(t, dir, snapshot(2), Retention{})
			requireHolds(t, dir, 2)
			mustSave(t, dir, snapshot(3), Retention{})
			requireHolds(t, dir, 3)
			require.Len(t, names(t, dir), 1)
		})
	}
	dir := t.TempDir()
	mustSave(t, dir, snapshot(1), Retention{})
	full := filepath.Join(dir, rootDir, nextFile)
	require.NoError(t, os.Mkdir(full, 0o755))
	_, err := Save(dir, snapshot(2), Retention{})
	require.ErrorContains(t, err, full)
	require.NoError(t, os.Remove(full))
	require.Equal(t, []string{"step-00000001"}, names(t, dir), "nothing is left of one that latest cannot lead to")

	dir = t.TempDir()
	bad := snapshot(2)
	bad.Shards[2].Read = func([]byte) error { return errors.New("rank is gone") }
	mustSave(t, dir, snapshot(1), Retention{})
	_, err = Save(dir, bad, Retention{})
	require.ErrorContains(t, err, "step 2: reading v on rank 0: rank is gone")
	requireHolds(t, dir, 1)
}

// TestRoomForTheNext: what killed writers have left is removed before anything is written. A disk may have room for one
// directory that is being written, and not for two.
func TestRoomForTheNext(t *testing.T) {
	dir := t.TempDir()
	mustSave(t, dir, snapshot(1), Retention{})
	left := filepath.Join(dir, rootDir, tempPrefix+"1")
	require.NoError(t, os.Mkdir(left, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(left, "rank-00000.safetensors"), nil, 0o644))
	w := &saver{root: filepath.Join(dir, rootDir), before: func(string) error {
		require.NoDirExists(t, left)
		return errors.New("disk full")
	}}
	_, err := w.save(snapshot(2))
	require.ErrorContains(t, err, "disk full")
	require.Equal(t, []string{"step-00000001"}, names(t, dir))
}

// TestOldOnesStay: a checkpoint that cannot be removed is reported, does not keep others from being
// removed, and does not make a save fail, whether anybody waits for it or not. The next save tries
// again.
func TestOldOnesStay(t *testing.T) {
	dir := t.TempDir()
	manifest := filepath.Join(dir, rootDir, "step-00000001", manifestFile)
	require.NoError(t, os.MkdirAll(filepath.Join(manifest, "x"), 0o755)) // so that it cannot be removed
	mustSave(t, dir, snapshot(7), Retention{Last: 9})
	path, err := Save(dir, snapshot(8), Retention{})
	var stale *StaleError
	require.ErrorAs(t, err, &stale)
	require.ErrorContains(t, err, "old ones are not removed: remove "+manifest)
	require.Equal(t, filepath.Join(dir, rootDir, "step-00000008"), path)
	requireHolds(t, dir, 8)
	require.Equal(t, []string{"step-00000001", "step-00000008"}, names(t, dir))

	var done []error
	b := &Background{Dir: dir, Memory: NewMemory(nil), Patience: time.Minute, Done: func(_ int, _ string, stale error) { done = append(done, stale) }}
	require.NoError(t, b.Save(snapshot(9)))
	require.NoError(t, b.Wait())
	require.NoError(t, os.RemoveAll(manifest))
	require.NoError(t, b.Save(snapshot(10)))
	require.NoError(t, b.Close())
	require.Len(t, done, 2)
	require.ErrorAs(t, done[0], &stale)
	require.NoError(t, done[1])
	require.Equal(t, []string{"step-00000010"}, names(t, dir))
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, rootDir))
	require.NoError(t, err)
	var out []string
	for _, e := range entries {
		if e.Name() != latestFile {
			out = append(out, e.Name())
		}
	}
	return out
}

// TestOpenWhileSaving: a reader that is slower than a run, which removes what it reads, gets a
// newer checkpoint.
func TestOpenWhileSaving(t *testing.T) {
	dir := t.TempDir()
	mustSave(t, dir, snapshot(1), Retention{})
	c, err := open(dir, func(path string) (string, error) {
		at, err := locate(path)
		if filepath.Base(at) == "step-00000001" {
			mustSave(t, dir, snapshot(2), Retention{})
		}
		return at, err
	})
	require.NoError(t, err)
	defer c.Close()
	require.Equal(t, 2, c.Step)
	require.NoError(t, os.Remove(filepath.Join(c.Dir, manifestFile)))
	_, err = Open(dir)
	require.ErrorIs(t, err, fs.ErrNotExist, "which nobody mends")
}

// TestSaved: whether a checkpoint is new does not depend on the clock.
func TestSaved(t *testing.T) {
	dir := t.TempDir()
	require.Zero(t, Saved(dir))
	var before Mark
	require.False(t, SavedSince(dir, before))
	for i, step := range []int{5, 5, 3} {
		mustSave(t, dir, snapshot(step), Retention{})
		at := time.Unix(1e9, 0).Add(-time.Duration(i/2) * time.Hour) // the same times, and earlier ones
		require.NoError(t, os.Chtimes(filepath.Join(dir, LatestFile), at, at))
		require.True(t, SavedSince(dir, before))
		before = Saved(dir)
		require.False(t, SavedSince(dir, before))
	}
	require.NoError(t, os.Remove(filepath.Join(dir, LatestFile)))
	require.False(t, SavedSince(dir, before))
}

func TestRetention(t *testing.T) {
	dir := t.TempDir()
	save := func(step, best int, keep Retention) {
		s := snapshot(step)
		s.BestStep = best
		mustSave(t, dir, s, keep)
		requireHolds(t, dir, step)
	}
	keep := Retention{Last: 2}
	for step := 5; step <= 25; step += 5 {
		save(step, min(step, 15), keep)
	}
	require.Equal(t, []string{"step-00000015", "step-00000020", "step-00000025"}, names(t, dir))
	// A run that begins again replaces checkpoints of later steps; a step that is saved again
	// replaces itself.
	save(20, 0, keep)
	require.Equal(t, []string{"step-00000015", "step-00000020.1"}, names(t, dir))
	save(20, 0, keep)
	require.Equal(t, []string{"step-00000015", "step-00000020"}, names(t, dir))
	save(21, 0, Retention{})
	require.Equal(t, []string{"step-00000021"}, names(t, dir))
	// A half-removed checkpoint does not count as one.
	require.NoError(t, os.Mkdir(filepath.Join(dir, rootDir, "step-00000022"), 0o777))
	save(23, 0, Retention{Last: 2})
	require.Equal(t, []string{"step-00000021", "step-00000023"}, names(t, dir))
}

// TestKilledWriter kills a writer at random moments. What it leaves must open, and be no older than
// it reported.
func TestKilledWriter(t *testing.T) {
	const variable = "CHECKPOINT_TEST_WRITER"
	if dir := os.Getenv(variable); dir != "" {
		for step := 1; ; step++ {
			if _, err := Save(dir, snapshot(step%200), Retention{Last: 1 + step%3}); err != nil {
				fmt.Println("failed:", err)
				os.Exit(1)
			}
			fmt.Println(step % 200)
		}
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	for range 20 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilledWriter$")
		cmd.Env = append(os.Environ(), variable+"="+dir)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := bufio.NewScanner(out)
		require.True(t, lines.Scan(), "the writer has saved once")
		require.NotContains(t, lines.Text(), "failed")
		time.Sleep(time.Duration(rng.Int64N(int64(30 * time.Millisecond))))
		require.NoError(t, cmd.Process.Kill())
		for lines.Scan() {
			require.NotContains(t, lines.Text(), "failed")
		}
		_ = cmd.Wait()
		c, err := Open(dir)
		require.NoError(t, err)
		step := c.Step
		require.NoError(t, c.Close())
		requireHolds(t, dir, step)
	}
}

// TestWayBack: if the newest checkpoint cannot be used, the error names the one before, and how to
// continue from it; but not if the user named the checkpoint.
func TestWayBack(t *testing.T) {
	dir := t.TempDir()
	older, err := Save(dir, snapshot(3), Retention{Last: 2})
	require.NoError(t, err)
	newest, err := Save(dir, snapshot(8), Retention{Last: 2})
	require.NoError(t, err)
	require.NoError(t, os.Truncate(filepath.Join(newest, "rank-00000.safetensors"), 9))
	require.NoError(t, os.Mkdir(filepath.Join(dir, rootDir, "step-00000007"), 0o777)) // a half-removed checkpoint
	latest := filepath.Join(dir, LatestFile)
	_, err = Open(dir)
	require.ErrorAs(t, err, new(*Error))
	require.ErrorContains(t, err, "has 9 bytes, the manifest says")
	require.ErrorContains(t, err, "; "+older+" is there too: to go back to it write its name to "+latest)
	_, err = Open(newest)
	require.ErrorContains(t, err, "has 9 bytes, the manifest says")
	require.NotContains(t, err.Error(), older)
	require.NoError(t, os.WriteFile(latest, []byte(filepath.Base(older)), 0o644))
	c, err := Open(dir)
	require.NoError(t, err)
	require.Equal(t, 3, c.Step)
	require.NoError(t, c.Close())
}

// TestWritable: what would keep checkpoints from being saved is found before, and nothing is left behind.
func TestWritable(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, rootDir)
	require.NoError(t, Writable(dir))
	require.NoDirExists(t, root)
	require.NoError(t, os.Symlink("gone", root))
	require.ErrorAs(t, Writable(dir), new(*Error))
	require.NoError(t, os.Remove(root))
	require.NoError(t, os.WriteFile(root, nil, 0o600))
	require.EqualError(t, Writable(dir), "checkpoint: "+root+": cannot be a directory: "+root+" is a file")
	require.NoError(t, os.Remove(root))
	require.NoError(t, os.Mkdir(root, 0o700))
	require.NoError(t, Writable(dir))
	there, err := os.ReadDir(root)
	require.NoError(t, err)
	require.Empty(t, there)
	if os.Geteuid() > 0 { // whom permissions bind
		require.NoError(t, os.Chmod(root, 0o500))
		require.EqualError(t, Writable(dir), "checkpoint: nothing can be saved in "+root+": permission denied")
	}
}

// TestCorruption: every kind of damage to a checkpoint is an *Error that says where and what.
func TestCorruption(t *testing.T) {
	file := "rank-00000.safetensors"
	edit := func(path string, change func([]byte) []byte) error {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(path, change(text), 0o644)
	}
	// editManifest changes the manifest's content and keeps its form.
	editManifest := func(change func(*Manifest)) func(string) error {
		return func(dir string) error {
			return edit(filepath.Join(dir, manifestFile), func(text []byte) []byte {
				var m Manifest
				if err := json.Unmarshal(text, &m); err != nil {
					panic(err)
				}
				change(&m)
				out, err := json.Marshal(m)
				if err != nil {
					panic(err)
				}
				return out
			})
		}
	}
	replace := func(old, new string) func(string) error {
		return func(dir string) error {
			return edit(filepath.Join(dir, manifestFile), func(text []byte) []byte {
				if !strings.Contains(string(text), old) {
					panic("BUG: manifest has no " + old)
				}
				return []byte(strings.Replace(string(text), old, new, 1))
			})
		}
	}
	// rewrite replaces the file by a valid one with other contents, with the manifest updated to
	// its bytes.
	rewrite := func(tensors ...safetensors.Tensor) func(string) error {
		return func(dir string) error {
			path := filepath.Join(dir, file)
			if err := safetensors.WriteFile(path, nil, tensors...); err != nil {
				return err
			}
			f, err := describe(path)
			if err != nil {
				return err
			}
			return editManifest(func(m *Manifest) { m.Files[0] = f })(dir)
		}
	}
	w := safetensors.FromFloat32s("w", []int{4, 5}, make([]float32, 20))
	v := safetensors.FromFloat32s("v", []int{3}, make([]float32, 3))
	s := safetensors.FromFloat32s("s", nil, make([]float32, 1))
	for name, test := range map[string]struct {
		damage func(dir string) error
		want   []string
	}{
		"truncated file": {
			func(dir string) error {
				return edit(filepath.Join(dir, file), func(b []byte) []byte { return b[:100] })
			},
			[]string{file, "has 100 bytes, the manifest says"},
		},
		"flipped bit": {
			func(dir string) error {
				return edit(filepath.Join(dir, file), func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
			},
			[]string{file, "has SHA-256"},
		},
		"missing file": {func(dir string) error { return os.Remove(filepath.Join(dir, file)) }, []string{file, "cannot be read"}},
		"a directory": {func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, file)), os.Mkdir(filepath.Join(dir, file), 0o755))
		}, []string{file, "cannot be read"}},
		"tensor missing":   {rewrite(v, s), []string{file, `tensor "w": is missing`}},
		"tensor misshapen": {rewrite(safetensors.FromFloat32s("w", []int{5, 4}, make([]float32, 20)), v, s), []string{file, `tensor "w": is F32 [5 4], the manifest says F32 [4 5]`}},
		"tensor of i32":    {rewrite(safetensors.FromInt32s("w", []int{4, 5}, make([]int32, 20)), v, s), []string{file, `tensor "w": is I32 [4 5]`}},
		"stowaway":         {rewrite(w, v, s, safetensors.FromFloat32s("x", nil, make([]float32, 1))), []string{file, "holds 4 tensors, the manifest knows 3"}},
		"not safetensors": {
			func(dir string) error {
				path := filepath.Join(dir, file)
				if err := os.WriteFile(path, []byte("hello"), 0o644); err != nil {
					return err
				}
				f, err := describe(path)
				return errors.Join(err, editManifest(func(m *Manifest) { m.Files[0] = f })(dir))
			},
			[]string{file, "5 bytes is too short"},
		},
		"no manifest": {func(dir string) error { return os.Remove(filepath.Join(dir, manifestFile)) }, []string{manifestFile, "cannot be read"}},
		"half a manifest": {func(dir string) error {
			return edit(filepath.Join(dir, manifestFile), func(b []byte) []byte { return b[:len(b)/2] })
		}, []string{manifestFile, "in the middle of the manifest"}},
		"empty manifest": {func(dir string) error { return os.WriteFile(filepath.Join(dir, manifestFile), nil, 0o644) }, []string{"ends after 0 bytes"}},
		"two manifests": {func(dir string) error {
			return edit(filepath.Join(dir, manifestFile), func(b []byte) []byte { return append(b, b...) })
		}, []string{"has something after the manifest"}},
		"not JSON":             {replace(`"version"`, `version`), []string{manifestFile, "is not a manifest"}},
		"unknown key":          {replace(`"version"`, `"vertion": 1, "version"`), []string{"vertion"}},
		"version":              {replace(`"version": 1`, `"version": 2`), []string{"schema version is 2"}},
		"negative step":        {replace(`"step": 1`, `"step": -1`), []string{"step is -1"}},
		"step of text":         {replace(`"step": 1`, `"step": "1"`), []string{"is not a manifest"}},
		"file outside":         {replace(file, `../`+file), []string{"is not the name of a file"}},
		"short sum":            {editManifest(func(m *Manifest) { m.Files[0].SHA256 = "ab" }), []string{`SHA-256 "ab"`}},
		"files twice":          {editManifest(func(m *Manifest) { m.Files[1] = m.Files[0] }), []string{"want them sorted and each once"}},
		"tensors unsorted":     {editManifest(func(m *Manifest) { slices.Reverse(m.Tensors) }), []string{`tensor "v"`, "want them sorted"}},
		"unnamed tensor":       {editManifest(func(m *Manifest) { m.Tensors[0].Name = "" }), []string{"a tensor has no name"}},
		"unknown dtype":        {editManifest(func(m *Manifest) { m.Tensors[0].DType = "f7" }), []string{`tensor "s"`, "f7"}},
		"missing shard":        {editManifest(func(m *Manifest) { m.Tensors[2].Parts = m.Tensors[2].Parts[:1] }), []string{`tensor "w"`, "its 1 parts hold 20 of 35 elements"}},
		"hole":                 {editManifest(func(m *Manifest) { m.Tensors[2].Parts[1].Shape[0] = 2 }), []string{`tensor "w"`, "hold 30 of 35 elements"}},
		"overlap":              {editManifest(func(m *Manifest) { m.Tensors[2].Parts[1].Offset[0] = 3 }), []string{`tensor "w"`, "parts 0 (rank-00000.safetensors) and 1 (rank-00001.safetensors) overlap"}},
		"part outside":         {editManifest(func(m *Manifest) { m.Tensors[2].Parts[1].Offset[0] = 5 }), []string{`tensor "w"`, "at [5 0] of shape [3 5] is not inside [7 5]"}},
		"negative offset":      {editManifest(func(m *Manifest) { m.Tensors[2].Parts[1].Offset[0] = -1 }), []string{"is not inside"}},
		"wrong rank":           {editManifest(func(m *Manifest) { m.Tensors[2].Parts[1].Offset = []int{4} }), []string{"has not the 2 dimensions"}},
		"unlisted file":        {editManifest(func(m *Manifest) { m.Tensors[2].Parts[1].File = "rank-7.safetensors" }), []string{`"rank-7.safetensors", which is not listed`}},
		"two parts in a file":  {editManifest(func(m *Manifest) { m.Tensors[2].Parts[1].File = file }), []string{"two parts in file"}},
		"zero dimension":       {editManifest(func(m *Manifest) { m.Tensors[2].Shape[0] = 0 }), []string{"shape [0 5] is not one of a tensor"}},
		"overflowing shape":    {editManifest(func(m *Manifest) { m.Tensors[2].Shape = []int{1 << 40, 1 << 40} }), []string{"is not one of a tensor"}},
		"many dimensions":      {editManifest(func(m *Manifest) { m.Tensors[2].Shape = slices.Repeat([]int{1}, 9) }), []string{`tensor "w"`, "has 9 dimensions, want at most 8"}},
		"shape of a neighbour": {editManifest(func(m *Manifest) { m.Tensors[2].Shape[1] = 6 }), []string{"hold 35 of 42 elements"}},
		"latest is nonsense": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "..", latestFile), []byte("../../etc"), 0o644)
		}, []string{latestFile, `holds "../../etc"`}},
		"latest is elsewhere": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "..", latestFile), []byte("step-00000009\n"), 0o644)
		}, []string{"step-00000009", "cannot be read"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := mustSave(t, dir, snapshot(1), Retention{})
			require.NoError(t, test.damage(path))
			_, err := Open(dir)
			var bad *Error
			require.ErrorAs(t, err, &bad)
			for _, want := range test.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
	_, err := Open(t.TempDir())
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "holds no checkpoint")
}

func FuzzManifest(f *testing.F) {
	dir := f.TempDir()
	path, err := Save(dir, snapshot(1), Retention{})
	require.NoError(f, err)
	text, err := os.ReadFile(filepath.Join(path, manifestFile))
	require.NoError(f, err)
	f.Add(text)
	f.Add([]byte(`{"version":1,"tensors":[{"name":"w","dtype":"f32","shape":[4611686018427387904,4]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := parseManifest("fuzz", text)
		if err != nil {
			var bad *Error
			require.ErrorAs(t, err, &bad)
			return
		}
		out, err := json.Marshal(m)
		require.NoError(t, err)
		again, err := parseManifest("fuzz", out)
		require.NoError(t, err)
		require.Equal(t, len(m.Tensors), len(again.Tensors))
	})
}

// join returns two processes of a job.
func join(t *testing.T) [2]*launch.Peers {
	t.Helper()
	addr, err := launchtest.FreeAddr()
	require.NoError(t, err)
	var peers [2]*launch.Peers
	var errs [2]error
	var all sync.WaitGroup
	for rank := range peers {
		all.Go(func() {
			peers[rank], errs[rank] = launch.Join(t.Context(), launch.Place{Rank: rank, World: len(peers), Addr: addr})
		})
	}
	all.Wait()
	require.NoError(t, errors.Join(errs[:]...))
	return peers
}

// TestNamesOfDirectory: processes save together where each of them has another name for the directory, and fail if it is not
// the same one.
func TestNamesOfDirectory(t *testing.T) {
	dir, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(dir, link))
	peers := join(t)
	save := func(dirs ...string) (paths [2]string, errs [2]error) {
		var all sync.WaitGroup
		for rank, p := range peers {
			all.Go(func() {
				s := snapshot(1)
				s.Peers, s.Patience = p, time.Minute
				paths[rank], errs[rank] = Save(dirs[rank], s, Retention{})
			})
		}
		all.Wait()
		return paths, errs
	}
	paths, errs := save(dir, link)
	require.NoError(t, errors.Join(errs[:]...))
	require.Equal(t, [2]string{filepath.Join(dir, "ckpt", "step-00000001"), filepath.Join(link, "ckpt", "step-00000001")}, paths)
	requireHolds(t, link, 1)
	_, errs = save(dir, t.TempDir())
	require.ErrorContains(t, errs[0], "checkpoint: step 1: rank 1: safetensors: create ")
	require.ErrorContains(t, errs[1], "checkpoint: step 1: safetensors: create ")
	require.Equal(t, []string{"step-00000001"}, names(t, dir), "nothing is left behind")
	closed := make(chan error)
	for _, p := range peers {
		go func() { closed <- p.Close() }()
	}
	for range peers {
		require.NoError(t, <-closed)
	}
}

// TestSaveWaitsInVain: if a process hangs while all save, the others fail within their bound and
// name it.
func TestSaveWaitsInVain(t *testing.T) {
	peers := join(t)
	s := snapshot(1)
	s.Peers, s.Patience = peers[0], 100*time.Millisecond
	_, err := Save(t.TempDir(), s, Retention{})
	require.ErrorContains(t, err, "checkpoint: waited 100ms for rank 1 at 127.0.0.1: context deadline exceeded")
	for _, p := range peers {
		require.NoError(t, p.Close())
	}
}
