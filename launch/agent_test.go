package launch_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/launch"
)

// machines are agents that run a shell script as each rank.
type machines struct {
	t           *testing.T
	addr        string
	least, most int
	restarts    int
	script      string
	patience    time.Duration // half a minute if 0
	exe         string        // of machine 1, a shell if ""
	again       int           // how often the job is started anew after it has ended well
	end         error         // how it ends then
	noPlan      int           // number of machines for which there is no plan
	unread      chan struct{} // nobody reads the output until it is closed, if not nil

	mu     sync.Mutex
	output bytes.Buffer // of all agents
	starts []launch.Start
}

func (m *machines) Write(b []byte) (int, error) {
	if m.unread != nil {
		<-m.unread
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.output.Write(b)
}

func (m *machines) text() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.output.String()
}

// run starts the agent of a machine and returns how it ends.
func (m *machines) run(ctx context.Context, node, procs int) <-chan error {
	shell, err := exec.LookPath("sh")
	if err != nil {
		m.t.Skip(err)
	}
	if node == 1 {
		shell = cmp.Or(m.exe, shell)
	}
	a := &launch.Agent{
		Exe: shell, Procs: procs, Least: m.least, Most: m.most, Node: node, Addr: m.addr, MaxRestarts: m.restarts,
		Patience: cmp.Or(m.patience, 30*time.Second),
		Brief: func(s launch.Start) ([]byte, error) {
			if s.Number == 9 || s.Nodes == m.noPlan {
				return nil, errors.New("no plan")
			}
			if l, err := net.Listen("tcp", s.Addr); err == nil && goruntime.GOOS == "linux" {
				l.Close()
				return nil, fmt.Errorf("somebody else gets the port of rank 0, %s", s.Addr)
			}
			return fmt.Appendf(nil, "start %d", s.Number), nil
		},
		Args: func(s launch.Start) ([]string, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			if node == 0 {
				m.starts = append(m.starts, s)
			}
			require.Equal(m.t, fmt.Sprintf("start %d", s.Number), string(s.Brief))
			return []string{"sh", "-c", m.script}, nil
		},
		Again: func() (bool, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.again--
			return m.again >= 0, m.end
		},
		Stdout: m, Stderr: m,
		Note: func(format string, args ...any) { fmt.Fprintf(m, format+"\n", args...) },
	}
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	return ended
}

// says waits until the agents or their processes have written a text a number of times.
func (m *machines) says(want string, times int) {
	m.t.Helper()
	require.Eventually(m.t, func() bool { return strings.Count(m.text(), want) == times }, time.Minute, 5*time.Millisecond, "%s", want)
}

// TestAgents starts jobs of three machines with two processes each.
func TestAgents(t *testing.T) {
	for name, c := range map[string]struct {
		script   string
		restarts int
		starts   int
		says     []string
		rank     int // that all agents blame, or -1
		status   int
	}{
		"well": {
			`printf "$RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE on $GROUP_RANK"`, 0, 1,
			[]string{"0 of 6, 0 of 2 on 0\n", "[rank 3] 3 of 6, 1 of 2 on 1\n", "[rank 5] 5 of 6, 1 of 2 on 2\n"}, -1, 0,
		},
		"restarts": {`test $RANK != 4 || test $TORCHELASTIC_RESTART_COUNT = 2 || exit 7; exec sleep 0.2`, 2, 3, []string{"rank 4 ended with exit status 7: restart 2 of at most 2"}, -1, 0},
		"too many": {`test $RANK != 4 || exit 7`, 1, 2, []string{"restart 1 of at most 1"}, 4, 7},
		"signal":   {`test $RANK != 3 || kill -SEGV $$; sleep 1; exit 1`, 0, 1, nil, 3, -1},
		"killed":   {`test $RANK != 3 || { sleep 0.3; kill -KILL $$; }; exit 1`, 0, 1, nil, 3, -1}, // as one that takes too much memory
		// What a process leaves in its memory the next one finds; a job that does not restart has none.
		"memory":    {`test -s /proc/self/fd/$AUTOPAR_MEMORY_FD && exec grep "of $RANK" /proc/self/fd/3; echo of $RANK > /proc/self/fd/3; exit 7`, 6, -1, []string{"[rank 5] of 5\n", "of 0\n"}, -1, 0},
		"no memory": {`test -z "$AUTOPAR_MEMORY_FD"`, 0, 1, nil, -1, 0},
		"listener":  {`if test $RANK = 0; then test -S /proc/self/fd/$AUTOPAR_LISTENER_FD; else test -z "$AUTOPAR_LISTENER_FD"; fi`, 1, 1, nil, -1, 0},
		"input":     {`test $RANK != 2 || { sleep 0.3; exit 66; }; exit 1`, 5, 1, nil, 2, 2}, // as [launch.ExitStatus] has it
		"again":     {`test $RANK != 2 || { sleep 0.3; exit 65; }; exit 1`, 5, 1, nil, 2, 1},
		"no word":   {`test $RANK != 2 || exit 68; exec sleep 0.3`, 1, 2, []string{"rank 2 ended with exit status 68: restart 1 of at most 1"}, 2, 68},
		"crash":     {`test $RANK != 2 || { sleep 0.3; exit 2; }; exit 1`, 1, 2, []string{"rank 2 has crashed (exit status 2): restart 1 of at most 1"}, 2, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if (name == "memory" || name == "listener") && goruntime.GOOS != "linux" {
				t.Skip("processes are given files on Linux alone")
			}
			m := &machines{t: t, addr: freeAddr(t), least: 3, most: 3, restarts: c.restarts, script: c.script}
			var ends []<-chan error
			for _, node := range []int{2, 0, 1} {
				ends = append(ends, m.run(t.Context(), node, 2))
			}
			for _, end := range ends {
				err := <-end
				if c.rank < 0 {
					require.NoError(t, err)
					continue
				}
				var exit *launch.ExitError
				require.ErrorAs(t, err, &exit)
				require.Equal(t, [2]int{c.rank, c.status}, [2]int{exit.Rank, exit.Status})
			}
			if c.starts >= 0 { // otherwise as many starts as it takes for each rank to fail once
				require.Len(t, m.starts, c.starts)
				require.Equal(t, c.starts-1, m.starts[c.starts-1].Restarts)
			}
			for _, want := range c.says {
				require.Contains(t, m.text(), want)
			}
		})
	}
}

// TestOthersHaveEnded: a process that hangs after others have ended well is killed, and the job
// starts again.
func TestOthersHaveEnded(t *testing.T) {
	t.Parallel() // it waits for a process that does not end
	m := &machines{t: t, addr: freeAddr(t), least: 1, most: 1, restarts: 1, patience: 2 * time.Second,
		script: `test $RANK != 1 || test $TORCHELASTIC_RESTART_COUNT = 1 || kill -STOP $$`}
	select {
	case err := <-m.run(t.Context(), 0, 3):
		require.NoError(t, err)
	case <-time.After(30 * time.Second):
		t.Fatal("the job does not end")
	}
	require.Contains(t, m.text(), "rank 1 had not ended 2s after the job was to end: restart 1 of at most 1")
}

// TestHungRanksAreNamed: where a rank has given up waiting for others, which hang, on its machine or another one, the failure of
// the job names those, too.
func TestHungRanksAreNamed(t *testing.T) {
	t.Parallel() // it waits for processes that do not end
	m := &machines{t: t, addr: freeAddr(t), least: 2, most: 2, script: `test $RANK = 0 || kill -STOP $$; sleep 0.2; exit 1`}
	ends := []<-chan error{m.run(t.Context(), 0, 2), m.run(t.Context(), 1, 2)}
	for _, end := range ends {
		select {
		case err := <-end:
			require.EqualError(t, err, "rank 0 ended with exit status 1 (ranks 1, 2, 3 had not ended 10s after the job was to end)")
		case <-time.After(time.Minute):
			t.Fatal("the job does not end")
		}
	}
}

// TestAgain: a job that has ended well is started anew if it is to be, which is no restart after a
// failure. One that has failed is not. All machines hear that its processes were interrupted.
func TestAgain(t *testing.T) {
	m := &machines{t: t, addr: freeAddr(t), least: 2, most: 2, again: 2, script: `echo start $TORCHELASTIC_RESTART_COUNT of $RANK`}
	ends := []<-chan error{m.run(t.Context(), 0, 1), m.run(t.Context(), 1, 1)}
	for _, end := range ends {
		require.NoError(t, <-end)
	}
	require.Len(t, m.starts, 3)
	require.Zero(t, m.starts[2].Restarts)
	require.Contains(t, m.text(), "start 2 of 0\n")
	require.NotContains(t, m.text(), "restart")
	m.addr, m.again, m.end = freeAddr(t), 0, context.Canceled
	ends = []<-chan error{m.run(t.Context(), 0, 1), m.run(t.Context(), 1, 1)}
	for _, end := range ends {
		require.ErrorIs(t, <-end, context.Canceled)
	}
	require.Len(t, m.starts, 4)
	m.addr, m.script, m.again, m.end = freeAddr(t), `exit 7`, 2, nil
	ends = []<-chan error{m.run(t.Context(), 0, 1), m.run(t.Context(), 1, 1)}
	for _, end := range ends {
		require.Error(t, <-end)
	}
	require.Len(t, m.starts, 5)
}

// TestExitStatus: a program that would end in the same way again tells only an agent, so that it is
// not taken for a crash of Go's runtime.
func TestExitStatus(t *testing.T) {
	for _, agent := range []bool{false, true} {
		for status := range 4 {
			require.Equal(t, status, launch.ExitStatus(status, false))
			want := status
			if agent {
				want += 64
			}
			require.Equal(t, want, launch.ExitStatus(status, true))
		}
		t.Setenv("AUTOPAR_AGENT", "1")
	}
}

// TestMachinesComeAndGo has machines come late, come twice, be refused, and leave. Three ranks do
// not save when they are interrupted.
func TestMachinesComeAndGo(t *testing.T) {
	t.Parallel() // it waits for machines that do not come
	m := &machines{t: t, addr: freeAddr(t), least: 1, most: 3, script: `test $WORLD_SIZE = 3 || trap 'exit 0' INT; echo $WORLD_SIZE ranks; while :; do sleep 0.01; done`}
	all, end := context.WithCancel(t.Context())
	defer end()
	first := m.run(all, 0, 1)
	m.says("1 ranks\n", 1)
	var refused *launch.RefusedError
	require.ErrorAs(t, <-m.run(t.Context(), 1, 2), &refused)
	require.ErrorContains(t, refused, "machine 1 is turned away by machine 0 at "+m.addr+": it has 2 processes, machine 0 has 1")
	require.ErrorContains(t, <-m.run(t.Context(), 3, 1), "the job has machines 0 to 2")
	ctx, leave := context.WithCancel(t.Context())
	second := m.run(ctx, 2, 1)
	m.says("machine 2 has come", 1)
	m.says("2 ranks\n", 2)
	patience, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	require.ErrorContains(t, <-m.run(patience, 2, 1), "there is a machine 2 already")
	third := m.run(t.Context(), 1, 1)
	m.says("3 ranks\n", 3)
	leave()
	require.NoError(t, <-second)
	m.says("machine 2 leaves", 1)
	m.says("2 ranks\n", 4)
	m.mu.Lock()
	var worlds []int
	for _, s := range m.starts {
		worlds = append(worlds, s.Nodes)
	}
	m.mu.Unlock()
	require.Equal(t, []int{1, 2, 3, 2}, worlds)
	end()
	require.ErrorIs(t, <-first, context.Canceled)
	require.ErrorIs(t, <-third, context.Canceled)
}

// TestNotUsed: a machine with which there is no plan does not end the job. It waits, and takes the place of one that leaves.
func TestNotUsed(t *testing.T) {
	t.Parallel() // it waits for machines that do not come
	m := &machines{t: t, addr: freeAddr(t), least: 2, most: 3, noPlan: 3, script: `trap 'exit 0' INT; echo $WORLD_SIZE ranks on $GROUP_RANK; while :; do sleep 0.01; done`}
	all, end := context.WithCancel(t.Context())
	defer end()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	third, second := m.run(t.Context(), 2, 1), m.run(ctx, 1, 1)
	first := m.run(all, 0, 1)
	m.says("machine 2 is not used: with 3 machines: no plan\n", 2) // on machines 0 and 2
	m.says("2 ranks on 1\n", 1)
	leave()
	require.NoError(t, <-second)
	m.says("2 ranks on 1\n", 2)
	again := m.run(t.Context(), 1, 1)
	m.says("machine 1 is not used: with 3 machines: no plan\n", 2) // 2 has taken its place
	m.says("2 ranks on 1\n", 3)
	end()
	for _, ended := range []<-chan error{first, third, again} {
		require.ErrorIs(t, <-ended, context.Canceled)
	}
}

// TestInterruptedEarly: a job is interrupted, and has not failed, if its processes have saved nothing when they are: because a
// signal ends them before they handle it, or because they say so. It does not matter whether an agent signals them or, one of them,
// somebody else.
func TestInterruptedEarly(t *testing.T) {
	const waits = `while :; do sleep 0.01; done`
	for name, c := range map[string]struct {
		script string
		agent  bool // is interrupted
	}{
		"before they handle it":    {`echo started; exec sleep 60`, true},
		"before training":          {`trap 'exit 64' INT; echo started; ` + waits, true},
		"one before it handles it": {`trap 'exit 64' INT; test $RANK != 3 || { trap - INT; kill -TERM $$; }; ` + waits, false},
		"one before training":      {`trap 'exit 64' INT; test $RANK != 0 || exit 64; ` + waits, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &machines{t: t, addr: freeAddr(t), least: 2, most: 2, restarts: 5, script: c.script}
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			ends := []<-chan error{m.run(ctx, 0, 2), m.run(t.Context(), 1, 2)}
			if c.agent {
				m.says("started\n", 4)
				interrupt()
			}
			for _, end := range ends {
				require.ErrorIs(t, <-end, context.Canceled)
			}
			require.Len(t, m.starts, 1)
		})
	}
}

// TestBriefFails ends a job whose Brief fails on machine 0.
func TestBriefFails(t *testing.T) {
	m := &machines{t: t, addr: freeAddr(t), least: 2, most: 2, restarts: 20, script: `exit 1`}
	first, second := m.run(t.Context(), 0, 1), m.run(t.Context(), 1, 1)
	require.EqualError(t, <-first, "no plan")
	require.EqualError(t, <-second, "no plan")
	require.Len(t, m.starts, 9)
}

// TestMachineFails: if a machine cannot start its processes, all learn which one.
func TestMachineFails(t *testing.T) {
	m := &machines{t: t, addr: freeAddr(t), least: 2, most: 2, restarts: 5, script: `exec sleep 0.2`, exe: "/no/program"}
	first, second := m.run(t.Context(), 0, 1), m.run(t.Context(), 1, 1)
	for _, end := range []<-chan error{first, second} {
		require.ErrorContains(t, <-end, "machine 1 at 127.0.0.1: fork/exec /no/program: ")
	}
	require.Len(t, m.starts, 1)
}

// TestOutputOutlivesProcess: a job ends well if its processes do, even if something that one has started keeps its output open.
func TestOutputOutlivesProcess(t *testing.T) {
	t.Parallel() // it waits for the output to end
	m := &machines{t: t, addr: freeAddr(t), least: 1, most: 1, script: `sleep 60 & echo $!`}
	err := <-m.run(t.Context(), 0, 1)
	require.Regexp(t, `(?m)^rank 0 is process \[\d+\]$`, m.text())
	pid := 0
	for line := range strings.Lines(m.text()) {
		if n, bad := strconv.Atoi(strings.TrimSpace(line)); bad == nil {
			pid = n
		}
	}
	process, found := os.FindProcess(pid)
	require.NoError(t, found)
	require.NoError(t, process.Kill())
	require.NoError(t, err)
}

// TestUnreadOutput: a process does not wait for its output to be read, as it would keep the others waiting. More lines than are kept
// are left out, and counted.
func TestUnreadOutput(t *testing.T) {
	const lines = 1<<16 + 20_000 // half of the rest may be on the way in a pipe
	done := filepath.Join(t.TempDir(), "done")
	m := &machines{t: t, addr: freeAddr(t), least: 1, most: 1, unread: make(chan struct{}), script: fmt.Sprintf("seq %d; : > %s", lines, done)}
	end := m.run(t.Context(), 0, 1)
	require.Eventually(t, func() bool { _, err := os.Stat(done); return err == nil }, time.Minute, time.Millisecond)
	close(m.unread)
	require.NoError(t, <-end)
	left := regexp.MustCompile(`(?m)^(\d+) lines of output are left out`).FindStringSubmatch(m.text())
	require.NotNil(t, left)
	count, err := strconv.Atoi(left[1])
	require.NoError(t, err)
	require.Equal(t, lines-count, len(regexp.MustCompile(`(?m)^\d+$`).FindAllString(m.text(), -1)))
}

// TestComesTooLate: an agent that identifies itself when the job has just ended does not hold its end up.
func TestComesTooLate(t *testing.T) {
	t.Parallel() // it waits for the job to end
	m := &machines{t: t, addr: freeAddr(t), least: 1, most: 1, script: `echo runs; exec sleep 0.5`}
	end := m.run(t.Context(), 0, 1)
	m.says("runs\n", 1)
	conn, err := net.Dial("tcp", m.addr)
	require.NoError(t, err)
	defer conn.Close()
	require.Eventually(t, func() bool { // the job has ended, and waits for what this connection says
		other, err := net.Dial("tcp", m.addr)
		if err == nil {
			other.Close()
		}
		return err != nil
	}, time.Minute, 5*time.Millisecond)
	began := time.Now()
	const hello = "autopar agent 1 0 1"
	_, err = fmt.Fprintf(conn, "h\x00\x00\x00%c%s", len(hello), hello)
	require.NoError(t, err)
	require.NoError(t, <-end)
	require.Less(t, time.Since(began), 7*time.Second) // it would be waited for for ten
}

// TestDoesNotReport: of a machine that does not report the end of its processes it is said so, and not that the network has
// failed.
func TestDoesNotReport(t *testing.T) {
	t.Parallel() // it waits for a machine in vain
	m := &machines{t: t, addr: freeAddr(t), least: 2, most: 2, script: "", patience: time.Second}
	end := m.run(t.Context(), 0, 1)
	var conn net.Conn
	require.Eventually(t, func() (ok bool) {
		var err error
		conn, err = net.Dial("tcp", m.addr)
		return err == nil
	}, time.Minute, 5*time.Millisecond)
	defer conn.Close()
	const hello = "autopar agent 1 1 1"
	_, err := fmt.Fprintf(conn, "h\x00\x00\x00%c%s", len(hello), hello)
	require.NoError(t, err)
	err = <-end
	var lost *launch.MachineError
	require.ErrorAs(t, err, &lost)
	require.EqualError(t, err, "machine 1 at 127.0.0.1 is gone: its processes had not ended 11s after the first of the job")
}

// TestSilence: a process that did not identify itself may come again.
func TestSilence(t *testing.T) {
	m := &machines{t: t, addr: freeAddr(t), least: 2, most: 2}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ranks := make(chan error, 1)
	addr := freeAddr(t)
	go func() {
		_, err := launch.Join(ctx, launch.Place{World: 2, Addr: addr})
		ranks <- err
	}()
	first := m.run(ctx, 0, 1)
	for _, addr := range []string{m.addr, addr} {
		var conn net.Conn
		require.Eventually(t, func() (ok bool) {
			var err error
			conn, err = net.Dial("tcp", addr)
			return err == nil
		}, time.Minute, 5*time.Millisecond)
		require.NoError(t, conn.(*net.TCPConn).CloseWrite())
		said, err := io.ReadAll(conn)
		require.NoError(t, err)
		require.Empty(t, said)
		conn.Close()
	}
	cancel()
	require.ErrorIs(t, <-ranks, context.Canceled)
	require.Error(t, <-first)
}

// TestLastAnswer has machine 0 answer once, and never again.
func TestLastAnswer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	m := &machines{t: t, addr: listener.Addr().String(), least: 1, most: 3}
	ctx, cancel := context.WithCancel(t.Context())
	end := m.run(ctx, 2, 1)
	const busy = "there is a machine 2 already"
	for _, answer := range []string{"b\x00\x00\x00" + string(rune(len(busy))) + busy, ""} {
		conn, err := listener.Accept()
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.Write([]byte(answer))
		require.NoError(t, err)
	}
	cancel()
	require.ErrorContains(t, <-end, busy)
}
