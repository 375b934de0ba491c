package cpu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	rendezvous "github.com/autopar/autopar/launch" // in this package launch runs a kernel
	"github.com/autopar/autopar/launch/launchtest"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/backendtest"
)

// several is a backend for each rank, connected like several processes, but in this one. Ranks with
// the same node share memory.
type several struct {
	node     func(rank int) string
	threads  func(rank int) int
	backends []*Backend
	peers    []*rendezvous.Peers
}

// oneMachine is processes that share memory and cores.
func oneMachine() *several {
	return &several{node: func(int) string { return "" }, threads: func(int) int { return 0 }}
}

func (s *several) Open(world runtime.World) ([]runtime.Device, error) {
	addr, err := launchtest.FreeAddr()
	if err != nil {
		return nil, err
	}
	n := world.Ranks
	s.backends, s.peers = make([]*Backend, n), make([]*rendezvous.Peers, n)
	devices, errs := make([]runtime.Device, n), make([]error, n)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var ranks sync.WaitGroup
	for r := range n {
		ranks.Go(func() {
			w := world
			w.Timeout = max(w.Timeout, time.Minute) // enough to connect
			var opened []runtime.Device
			s.peers[r], errs[r] = rendezvous.Join(ctx, rendezvous.Place{Rank: r, World: n, Addr: addr, Node: s.node(r)})
			if errs[r] != nil {
				return
			}
			w.Peers, w.Timeout = s.peers[r], world.Timeout
			if s.backends[r], errs[r] = New(Options{Threads: s.threads(r)}); errs[r] == nil {
				opened, errs[r] = s.backends[r].Open(w)
			}
			if errs[r] == nil {
				devices[r] = opened[0]
			}
		})
	}
	ranks.Wait()
	return devices, errors.Join(errs...)
}

func (s *several) Abort() {
	for _, b := range s.backends {
		b.Abort()
	}
}

func TestConformanceOfProcesses(t *testing.T) {
	for name, node := range map[string]func(rank int) string{
		"shared memory":  func(int) string { return "" },
		"TCP":            func(rank int) string { return fmt.Sprint(rank) },
		"pairs over TCP": func(rank int) string { return fmt.Sprint(rank / 2) },
		"odd over TCP":   func(rank int) string { return fmt.Sprint(rank % 2) },
	} {
		t.Run(name, func(t *testing.T) {
			open := func(t *testing.T) runtime.Backend {
				s := &several{node: node, threads: func(rank int) int { return 1 + rank%2 }}
				t.Cleanup(func() {
					for _, p := range s.peers {
						go p.Close()
					}
				})
				return s
			}
			backendtest.RunTogether(t, open)
			backendtest.RunFixedPoint(t, open)
		})
	}
}

// shared returns the lines of this process's memory map about shared memory, except for some: those
// of others may disappear meanwhile.
func shared(t *testing.T, but []string) (lines []string) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "memfd:autopar") && !slices.Contains(but, line) {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestSharedMemoryGoes checks that shared memory is unmapped when all processes have closed.
func TestSharedMemoryGoes(t *testing.T) {
	before := shared(t, nil)
	s := oneMachine()
	devices, err := s.Open(runtime.World{Ranks: 3, Timeout: time.Minute})
	require.NoError(t, err)
	for _, d := range devices {
		require.NoError(t, d.Alloc(runtime.OnDevice, 1<<20))
	}
	require.Len(t, shared(t, before), 3*(3+1), "each maps three arenas and the table")
	for _, d := range devices {
		require.NoError(t, d.Close())
	}
	require.Eventually(t, func() bool { return len(shared(t, before)) == 0 }, time.Minute, time.Millisecond)
}

// TestArenaWaits: the arena of a rank that has closed stays while a rank of another machine still sends to it, as when the first
// could not save and the other one trains on.
func TestArenaWaits(t *testing.T) {
	s := &several{node: func(rank int) string { return fmt.Sprint(rank) }, threads: func(int) int { return 1 }}
	devices, err := s.Open(runtime.World{Ranks: 2, Timeout: time.Minute})
	require.NoError(t, err)
	const words = 1 << 20
	for _, d := range devices {
		require.NoError(t, d.Alloc(runtime.OnDevice, 4*words))
	}
	got := s.backends[0].counter(wireID, 0)
	require.NoError(t, devices[0].Close())
	require.NoError(t, s.backends[1].others.put(&runtime.Transfer{Peer: 0}, make([]float32, words)))
	require.Eventually(t, func() bool { return got.n.Load() == 1 }, time.Minute, time.Millisecond)
	require.NoError(t, devices[1].Close())
}

// TestSharedMemoryWaits: it stays mapped until a stream that has announced the end of its work has
// woken whoever waits for that.
func TestSharedMemoryWaits(t *testing.T) {
	before := shared(t, nil)
	s := oneMachine()
	devices, err := s.Open(runtime.World{Ranks: 2, Timeout: time.Minute})
	require.NoError(t, err)
	done := s.backends[0].devices[0].stream(runtime.Communication).events
	done.least[0].Store(1)
	done.mu.Lock() // as one does that is about to wait
	require.NoError(t, devices[0].Record(runtime.Communication))
	require.Eventually(t, func() bool { return done.n.Load() == 1 }, time.Minute, time.Millisecond)
	for _, d := range devices {
		require.NoError(t, d.Close())
	}
	require.Eventually(t, func() bool { return len(shared(t, before)) == 2+1 }, 10*time.Second, time.Millisecond, "that of the other rank goes")
	time.Sleep(50 * time.Millisecond)
	require.Len(t, shared(t, before), 2+1)
	done.mu.Unlock()
	require.Eventually(t, func() bool { return len(shared(t, before)) == 0 }, time.Minute, time.Millisecond)
}

// TestLateOperand has the last rank write its operand of a collective just before it enters, long
// after the others have, and counts what each receives.
func TestLateOperand(t *testing.T) {
	cores := func(n int) runtime.Backend {
		b, err := New(Options{Threads: n})
		require.NoError(t, err)
		return b
	}
	for name, backend := range map[string]runtime.Backend{"two cores": cores(2), "a core each": cores(3), "processes": oneMachine()} {
		t.Run(name, func(t *testing.T) {
			const n = 200_001 // each rank makes a share, except on two cores
			devices, err := backend.Open(runtime.World{Ranks: 3, Timeout: time.Minute})
			require.NoError(t, err)
			all, _, _ := collectives(t, devices, ir.OpAllReduce, n)
			require.True(t, large(all[0]))
			var ranks sync.WaitGroup
			got := make([][]float32, len(devices))
			for r, d := range devices {
				ranks.Go(func() {
					time.Sleep(time.Duration(r) * 30 * time.Millisecond)
					x := slices.Repeat([]float32{float32(1 + r)}, n)
					err := errors.Join(d.Upload(runtime.OnDevice, 0, bytesOf(x)), d.Collective(all[r]), d.Wait(runtime.Host, runtime.Event{Rank: r}),
						d.Download(bytesOf(x), runtime.OnDevice, 0))
					got[r] = x
					if err != nil {
						t.Error(err)
					}
				})
			}
			ranks.Wait()
			for r, d := range devices {
				require.Equal(t, slices.Repeat([]float32{6}, n), got[r], "rank %d", r)
				own := codegen.ReduceShare(n, 3, r).Len
				require.Equal(t, int64(4*(n-own+2*own)), d.(*Device).moved.Load(), "rank %d", r)
				require.NoError(t, d.Close())
			}
		})
	}
}
