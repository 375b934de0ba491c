package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	goruntime "runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
)

// memoryFile is a file that several [Memory] use one after another, as processes do.
func memoryFile(t *testing.T) *os.File {
	t.Helper()
	if goruntime.GOOS != "linux" {
		t.Skip("files are mapped on Linux alone")
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "memory"))
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// held returns what a new process finds in a file.
func held(t *testing.T, f *os.File) (*Held, error) {
	t.Helper()
	m := NewMemory(f)
	t.Cleanup(func() { m.Close() })
	return m.Held()
}

// TestMemoryOutlivesAProcess: one process finds what another has copied, with all that each rank
// holds.
func TestMemoryOutlivesAProcess(t *testing.T) {
	f := memoryFile(t)
	found, err := held(t, f)
	require.NoError(t, err)
	require.Nil(t, found, "nobody has left anything")
	reserved := NewMemory(f)
	_, err = reserved.Reserve(snapshot(0))
	require.NoError(t, err)
	require.NoError(t, reserved.Close())
	found, err = held(t, f)
	require.NoError(t, err, "its process ended before it had anything to copy")
	require.Nil(t, found)
	best := float32(1.5)
	for _, step := range []int{3, 70} { // the second in the room of the first
		s := snapshot(step)
		s.BestVal, s.BestStep = &best, 2
		m := NewMemory(f)
		_, err = m.Reserve(s)
		require.NoError(t, err)
		_, err = m.hold(s)
		require.NoError(t, err)
		require.NoError(t, m.Close())

		found, err = held(t, f)
		require.NoError(t, err)
		require.Equal(t, step, found.Step)
		require.Equal(t, best, *found.BestVal)
		require.True(t, found.Fits(snapshot(9)), "the step is no matter")
		for _, x := range s.Shards {
			got := make([]byte, 4*x.Slab.Elems())
			require.NoError(t, found.Read(x.Name, ir.F32, x.Slab, got))
			require.Equal(t, fill(x.Name, step, x.Slab), got, "%s of rank %d", x.Name, x.Rank)
		}
		require.ErrorContains(t, found.Read("w", ir.BF16, ir.Whole([]int{7, 5}), nil), `memory: tensor "w": has no part of type bf16 at [0 0]`)
	}
	// Another run has other parts, or other texts.
	for name, change := range map[string]func(*Snapshot){
		"config": func(s *Snapshot) { s.Config = "model: {n_layer: 3}\n" },
		"plan":   func(s *Snapshot) { s.Plan = []byte(`{"dp":3}`) },
		"parts":  func(s *Snapshot) { s.Shards = s.Shards[1:] },
		"slab":   func(s *Snapshot) { s.Shards[0].Slab.Local = []int{3, 5} },
		"type":   func(s *Snapshot) { s.Shards[1].Type.DType = ir.BF16 },
	} {
		other := snapshot(9)
		change(&other)
		require.False(t, found.Fits(other), name)
	}
}

// TestMemoryIsWholeOrNothing: a copy that was not finished, and every changed byte, is detected.
func TestMemoryIsWholeOrNothing(t *testing.T) {
	f := memoryFile(t)
	m := NewMemory(f)
	_, err := m.hold(snapshot(1))
	require.NoError(t, err)
	used := m.layoutEnd(t, snapshot(1))
	for at := range used {
		m.bytes[at] ^= 4
		_, err := held(t, f)
		require.Error(t, err, "byte %d of %d", at, used)
		m.bytes[at] ^= 4
	}
	_, err = held(t, f)
	require.NoError(t, err)

	cut := snapshot(2)
	cut.Shards[5].Read = func([]byte) error { return errors.New("killed here") }
	_, err = m.hold(cut)
	require.ErrorContains(t, err, "reading v on rank 1: killed here")
	_, err = held(t, f)
	require.EqualError(t, err, "its process ended while it was copied")

	require.NoError(t, os.WriteFile(f.Name(), []byte("short"), 0o644))
	_, err = held(t, f)
	require.EqualError(t, err, "5 bytes are no snapshot")
}

// layoutEnd is where a snapshot ends in memory, with the current head.
func (m *Memory) layoutEnd(t *testing.T, s Snapshot) int {
	t.Helper()
	_, _, total, err := m.layout(s)
	require.NoError(t, err)
	end := int(total)
	for end > 0 && m.bytes[end-1] == 0 {
		end--
	}
	return end
}

// TestReserve: the reserved memory is enough for any later step, and a copy goes there, not to new
// memory.
func TestReserve(t *testing.T) {
	for _, file := range []*os.File{nil, memoryFile(t)} {
		m, s := NewMemory(file), snapshot(0)
		missing, err := m.Missing(s)
		require.NoError(t, err)
		reserved, err := m.Reserve(s)
		require.NoError(t, err)
		require.Equal(t, missing, reserved)
		at, best := &m.bytes[0], float32(-1.2345678e-30)
		s.Step, s.BestVal, s.BestStep = 1<<31-1, &best, 1<<31-2
		_, err = m.hold(s)
		require.NoError(t, err)
		require.Same(t, at, &m.bytes[0])
		require.Len(t, m.bytes, int(reserved))
		missing, err = m.Missing(snapshot(0))
		require.NoError(t, err)
		require.Zero(t, missing)
		require.NoError(t, m.Close())
	}
}

// TestMemoryOfAProcess: memory of the process itself holds each part once.
func TestMemoryOfAProcess(t *testing.T) {
	m := NewMemory(nil)
	own, err := m.parts(snapshot(1))
	require.NoError(t, err)
	require.Len(t, own, 4, "w of the first two ranks, s and v of the first")
	all, err := NewMemory(memoryFile(t)).parts(snapshot(1))
	require.NoError(t, err)
	require.Len(t, all, 12)
}

// TestBackground: what was copied is written, whatever happens to the ranks meanwhile, in the files
// of [Save].
func TestBackground(t *testing.T) {
	want, dir := t.TempDir(), t.TempDir()
	s := snapshot(5)
	mustSave(t, want, s, Retention{})
	var told []int
	b := &Background{Dir: dir, Memory: NewMemory(nil), Patience: time.Minute, Done: func(step int, path string, _ error) {
		require.Equal(t, filepath.Join(dir, "ckpt", filepath.Base(path)), path)
		told = append(told, step)
	}}
	changed := false
	for i := range s.Shards {
		read := s.Shards[i].Read
		s.Shards[i].Read = func(dst []byte) error {
			if changed {
				return errors.New("the ranks are a step further")
			}
			return read(dst)
		}
	}
	require.NoError(t, b.Save(s))
	changed = true
	require.NoError(t, b.Wait())
	requireHolds(t, dir, 5)
	for _, name := range []string{"rank-00000.safetensors", "rank-00001.safetensors", manifestFile} {
		a, err := os.ReadFile(filepath.Join(want, "ckpt", "step-00000005", name))
		require.NoError(t, err)
		got, err := os.ReadFile(filepath.Join(dir, "ckpt", "step-00000005", name))
		require.NoError(t, err)
		require.Equal(t, a, got, name)
	}
	for step := 6; step < 9; step++ { // each waits for the one before
		require.NoError(t, b.Save(snapshot(step)))
	}
	require.NoError(t, b.Close())
	require.Equal(t, []int{5, 6, 7, 8}, told)
	require.NoError(t, b.Poll())
	requireHolds(t, dir, 8)
}

// TestBackgroundFails: the error of a checkpoint that could not be written is returned once, by
// whichever call comes first, and writing is bounded in time.
func TestBackgroundFails(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, rootDir), nil, 0o644))
	b := &Background{Dir: dir, Memory: NewMemory(nil), Patience: time.Minute}
	require.NoError(t, b.Save(snapshot(1)))
	require.ErrorContains(t, b.Save(snapshot(2)), "not a directory")
	require.NoError(t, b.Save(snapshot(2)))
	require.Eventually(t, func() bool { return b.Poll() != nil }, time.Minute, time.Millisecond)
	require.NoError(t, b.Close())

	slow := &Background{Dir: t.TempDir(), Memory: NewMemory(nil), Patience: time.Minute}
	slow.writing, slow.step, slow.bound = make(chan written), 7, 10*time.Millisecond
	require.ErrorContains(t, slow.Wait(), "step 7 is not in "+slow.Dir+" after 10ms")
	require.Error(t, slow.Close())
}
