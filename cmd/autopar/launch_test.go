package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/checkpoint"
	"github.com/autopar/autopar/data"
	"github.com/autopar/autopar/launch/launchtest"
)

// workplace is a directory with a plan for four ranks, and with the program under its name.
type workplace struct{ dir string }

// newWorkplace plans a run of a number of updates that saves every 50th. The run is long enough to be disturbed.
func newWorkplace(t *testing.T, iters int) workplace {
	t.Helper()
	if goruntime.GOOS != "linux" {
		t.Skip("signals, /proc and network namespaces are Linux's")
	}
	if testing.Short() {
		t.Skip("-short: it takes processes many seconds")
	}
	w := workplace{t.TempDir()}
	archive, err := txtar.ParseFile("testdata/script/launch.txtar")
	require.NoError(t, err)
	require.NoError(t, txtar.Write(archive, w.dir))
	exe, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.Symlink(exe, filepath.Join(w.dir, "autopar")))
	w.run(t, "data", "prepare", "--input", "poem.txt", "-q")
	w.run(t, "plan", "small.yaml", "--cluster", "cluster.yaml", "-q", "--set", fmt.Sprint("train.max_iters=", iters-1),
		"--set", "train.eval_interval=1000000", "--set", "train.checkpoint_interval=50")
	return w
}

func (w workplace) command(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(w.dir, "autopar"), args...)
	cmd.Dir = w.dir
	return cmd
}

func (w workplace) run(t *testing.T, args ...string) {
	t.Helper()
	out, err := w.command(args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// losses returns the losses of each iteration in metrics.jsonl, as text.
func (w workplace) losses(t *testing.T, out string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(w.dir, out, "metrics.jsonl"))
	require.NoError(t, err)
	var all []string
	for line := range bytes.Lines(text) {
		var record struct {
			Iter     int
			Loss     json.Number
			GradNorm json.Number `json:"grad_norm"`
		}
		require.NoError(t, json.Unmarshal(line, &record))
		all = append(all, fmt.Sprint(record))
	}
	return all
}

// waitFor waits until a run has logged an iteration.
func (w workplace) waitFor(t *testing.T, out string, iter int) {
	t.Helper()
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(filepath.Join(w.dir, out, "metrics.jsonl"))
		return err == nil && bytes.Contains(text, fmt.Appendf(nil, `"iter":%d,`, iter))
	}, 2*time.Minute, 10*time.Millisecond)
}

// job is a launch in progress.
type job struct {
	*exec.Cmd
	output syncBuffer
}

func (w workplace) launch(t *testing.T, args ...string) *job {
	t.Helper()
	j := &job{Cmd: w.command(append([]string{"launch", "plan.json"}, args...)...)}
	j.Stdout, j.Stderr = &j.output, &j.output
	require.NoError(t, j.Start())
	t.Cleanup(func() { j.Process.Kill() })
	return j
}

// pids returns the processes of the ranks of the latest start.
func (j *job) pids(t *testing.T) (pids []int) {
	t.Helper()
	starts := regexp.MustCompile(`(?:is process|are processes) \[(.*)\]`).FindAllStringSubmatch(j.output.String(), -1)
	require.NotEmpty(t, starts)
	for field := range strings.FieldsSeq(starts[len(starts)-1][1]) {
		pid, err := strconv.Atoi(field)
		require.NoError(t, err)
		pids = append(pids, pid)
	}
	return pids
}

// requireGone fails if a process has outlived its job.
func requireGone(t *testing.T, pids []int) {
	t.Helper()
	for _, pid := range pids {
		require.Eventually(t, func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH }, time.Minute, 10*time.Millisecond, "process %d", pid)
	}
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// TestLaunchRestarts kills a rank after 60 updates or more, and has a rank of the second start crash after 160. The job names the
// rank and goes on from the snapshot in memory, or from the one on disk if a rank was killed while it copied. At its end it has the
// losses of an undisturbed job, to the bit, though another plan was written to the file of its own.
func TestLaunchRestarts(t *testing.T) {
	t.Parallel() // with the others: processes are waited for
	const iters = 400
	w := newWorkplace(t, iters)
	w.run(t, "run", "plan.json", "--out", "whole", "-q")
	j := w.launch(t, "--out", "disturbed", "--max-restarts", "2")
	for i, at := range []int{60, 160} {
		w.waitFor(t, "disturbed", at)
		if i == 0 {
			w.run(t, "plan", "small.yaml", "--cluster", "cluster.yaml", "-q", "--set", "optimizer.learning_rate=1e-3")
		}
		require.Eventually(t, func() bool { return strings.Count(j.output.String(), "are processes") == i+1 }, time.Minute, 10*time.Millisecond)
		require.NoError(t, syscall.Kill(j.pids(t)[3-3*i], []syscall.Signal{syscall.SIGKILL, syscall.SIGSEGV}[i]))
		require.Eventually(t, func() bool {
			return strings.Contains(j.output.String(), fmt.Sprintf("restart %d of at most 2", i+1))
		}, time.Minute, 10*time.Millisecond)
	}
	require.NoError(t, j.Wait(), "%s", &j.output)
	require.Regexp(t, `rank 3 was ended by signal 9 \(killed\): restart 1 of at most 2`, j.output.String())
	require.Regexp(t, `rank 0 has crashed \(exit status 2\): restart 2 of at most 2`, j.output.String())
	require.Contains(t, j.output.String(), "\nplan.json is not what it was when the job began, which goes on by disturbed/plan-4.json, as it was\n")
	require.Regexp(t, `rank 0, step \d+, .*: rank 3 (has failed: rank 3 )?at 127\.0\.0\.1:\d+ is gone`, j.output.String())
	require.Regexp(t, `(?m)^2 restarts, goodput [1-9]\d*\.\d %: 400 updates of \S+ m?s that stay, in \S+ m?s$`, j.output.String())
	require.Regexp(t, `resuming at iteration (50|100|150|200|250|300|350) from memory`, j.output.String())
	whole, disturbed := w.losses(t, "whole"), w.losses(t, "disturbed")
	require.Equal(t, iters+1, len(whole), "an evaluation and the updates")
	require.True(t, slices.Equal(whole, disturbed), "losses differ")
}

// TestLaunchEnds kills or stops a rank, or kills the agent. The job ends in bounded time, with an error that names rank, step and
// op, and leaves no process.
func TestLaunchEnds(t *testing.T) {
	t.Parallel() // with the others: processes are waited for
	w := newWorkplace(t, 1_000_000)
	for name, c := range map[string]struct {
		signal syscall.Signal
		rank   int // -1 is the agent
		want   string
	}{
		"rank 0 killed": {syscall.SIGKILL, 0, `rank 2, step \d+, .*: rank 0 (has failed: rank 0 )?at .* is gone`},
		"rank 1 stops":  {syscall.SIGSTOP, 1, `rank \d, step \d+, (\w+( mb=\d)?, \w+ \S+: (on the communication stream: )?|upd: the end of the step: )waited \d+(\.\d)?s for rank`},
		"agent killed":  {syscall.SIGKILL, -1, ``},
	} {
		t.Run(name, func(t *testing.T) {
			out := strings.ReplaceAll(name, " ", "-")
			j := w.launch(t, "--out", out, "--timeout", "5s")
			w.waitFor(t, out, 30)
			pids := j.pids(t)
			began, victim := time.Now(), j.Process.Pid
			if c.rank >= 0 {
				victim = pids[c.rank]
			}
			require.NoError(t, syscall.Kill(victim, c.signal))
			require.Error(t, j.Wait())
			require.Less(t, time.Since(began), time.Minute)
			require.Regexp(t, c.want, j.output.String())
			requireGone(t, pids)
		})
	}
}

// TestOutputIsLost: a run whose output has no reader any more saves and ends; a run whose log file is full trains to its end. Both
// fail, and lose only lines of output.
func TestOutputIsLost(t *testing.T) {
	t.Parallel() // with the others: processes are waited for
	w := newWorkplace(t, 1_000_000)
	for _, command := range []string{"run", "launch"} {
		t.Run(command, func(t *testing.T) {
			read, write, err := os.Pipe()
			require.NoError(t, err)
			defer read.Close()
			cmd := w.command(command, "plan.json", "--out", command)
			var stderr syncBuffer
			cmd.Stdout, cmd.Stderr = write, &stderr
			require.NoError(t, cmd.Start())
			defer time.AfterFunc(time.Minute, func() { cmd.Process.Kill() }).Stop()
			require.NoError(t, write.Close())
			w.waitFor(t, command, 20)
			require.NoError(t, read.Close())
			w.requireSaved(t, cmd.Wait(), command, 21)
			require.Contains(t, stderr.String(), "results are lost: write /dev/stdout: broken pipe")

			full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
			require.NoError(t, err)
			defer full.Close()
			cmd = w.command(command, "plan.json", "--out", command+"-full", "--steps", "20")
			cmd.Stdout = full
			w.requireSaved(t, cmd.Run(), command+"-full", 20)
		})
	}
}

// requireSaved fails the test unless a command has failed and left a checkpoint of at least a number of updates.
func (w workplace) requireSaved(t *testing.T, err error, out string, updates int) {
	t.Helper()
	requireInterrupted(t, err)
	c, err := checkpoint.Open(filepath.Join(w.dir, out))
	require.NoError(t, err)
	defer c.Close()
	require.GreaterOrEqual(t, c.Step, updates)
}

// requireInterrupted fails the test unless a command has ended by itself, with the status of an interrupted one.
func requireInterrupted(t *testing.T, err error) {
	t.Helper()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, statusFailed, exit.ExitCode(), "%v", exit)
}

// TestHangUp closes the terminal of a run: the run saves and ends. Under nohup it goes on.
func TestHangUp(t *testing.T) {
	t.Parallel() // with the others: processes are waited for
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, syscall.SIGHUP) // else, if the tests run under nohup, so would the processes that they start
	defer signal.Stop(heard)
	w := newWorkplace(t, 1_000_000)
	for name, c := range map[string]struct {
		before string // what the shell runs first
		end    syscall.Signal
	}{
		"closed": {"", syscall.SIGHUP},
		"nohup":  {"trap '' HUP; ", syscall.SIGINT},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("sh", "-c", c.before+"exec ./autopar run plan.json --out "+name)
			cmd.Dir = w.dir
			require.NoError(t, cmd.Start())
			defer time.AfterFunc(time.Minute, func() { cmd.Process.Kill() }).Stop()
			w.waitFor(t, name, 20)
			for range 2 {
				require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
			}
			if c.end != syscall.SIGHUP {
				w.waitFor(t, name, 200)
				require.NoError(t, cmd.Process.Signal(c.end))
			}
			requireInterrupted(t, cmd.Wait())
			saved, err := checkpoint.Open(filepath.Join(w.dir, name))
			require.NoError(t, err)
			require.NoError(t, saved.Close())
		})
	}
}

// TestSuspended suspends a job, as ^Z does: its ranks stop with it, and all go on when it is continued.
func TestSuspended(t *testing.T) {
	t.Parallel() // with the others: processes are waited for
	w := newWorkplace(t, 1_000_000)
	j := w.launch(t, "--out", "out")
	w.waitFor(t, "out", 20)
	all := append(j.pids(t), j.Process.Pid)
	are := func(stopped bool) {
		for _, pid := range all {
			require.Eventually(t, func() bool {
				stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
				require.NoError(t, err)
				return bytes.Contains(stat, []byte(") T ")) == stopped
			}, time.Minute, time.Millisecond)
		}
	}
	for range 2 {
		require.NoError(t, j.Process.Signal(syscall.SIGTSTP))
		are(true)
		require.NoError(t, j.Process.Signal(syscall.SIGCONT))
		are(false)
	}
	require.NoError(t, j.Process.Signal(syscall.SIGINT))
	requireInterrupted(t, j.Wait())
}

// TestSignalToAll stops a job as systemd and Slurm do: they signal every process, on some machines later than on others, and the
// launcher signals its processes as well. All save and end. So does a single process that is signalled twice.
func TestSignalToAll(t *testing.T) {
	t.Parallel() // with the others: processes are waited for
	w := newWorkplace(t, 1_000_000)
	j := w.launch(t, "--out", "all")
	w.waitFor(t, "all", 20)
	ranks := j.pids(t)
	tell := func(signal syscall.Signal, pids ...int) {
		for _, pid := range pids {
			require.NoError(t, syscall.Kill(pid, signal))
		}
	}
	tell(syscall.SIGSTOP, ranks[1]) // so that all others wait for it in the middle of a step
	tell(syscall.SIGTERM, append(ranks, j.Process.Pid)...)
	time.Sleep(sameWish + 200*time.Millisecond)
	tell(syscall.SIGTERM, ranks...)
	tell(syscall.SIGCONT, ranks[1])
	requireInterrupted(t, j.Wait())

	alone := w.command("run", "plan.json", "--out", "alone")
	require.NoError(t, alone.Start())
	defer time.AfterFunc(time.Minute, func() { alone.Process.Kill() }).Stop()
	w.waitFor(t, "alone", 20)
	for range 20 {
		tell(syscall.SIGTERM, alone.Process.Pid)
		time.Sleep(time.Millisecond) // else all may be delivered as one signal
	}
	requireInterrupted(t, alone.Wait())
	for _, out := range []string{"all", "alone"} {
		saved, err := checkpoint.Open(filepath.Join(w.dir, out))
		require.NoError(t, err)
		require.NoError(t, saved.Close())
	}
}

// TestOneRankIsInterrupted: whoever interrupts a rank ends the job. On no machine is it taken for done.
func TestOneRankIsInterrupted(t *testing.T) {
	t.Parallel() // with the others: processes are waited for
	w := newWorkplace(t, 1_000_000)
	addr, err := launchtest.FreeAddr()
	require.NoError(t, err)
	var machines [2]*job
	for node := range machines {
		machines[node] = w.launch(t, "--out", "out", "--nproc", "2", "--nnodes", "2", "--node-rank", strconv.Itoa(node), "--master", addr)
	}
	w.waitFor(t, "out", 20)
	require.NoError(t, syscall.Kill(machines[1].pids(t)[0], syscall.SIGTERM))
	for node, m := range machines {
		requireInterrupted(t, m.Wait())
		require.Contains(t, m.output.String(), fmt.Sprintf("\ngo on with: autopar launch plan.json --resume --out out --nproc 2 --nnodes 2 --node-rank %d ", node))
	}
}

// TestInterruptedBeforeTraining: whatever the ranks of a job are doing when it is interrupted, before they train, the job says that it
// is interrupted, and not that a rank has failed. A rank by itself does so, too.
func TestInterruptedBeforeTraining(t *testing.T) {
	t.Parallel() // with the others: processes are waited for
	w := newWorkplace(t, 1_000_000)
	for _, after := range []time.Duration{0, 5 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond} {
		j := w.launch(t, "--out", after.String(), "--max-restarts", "1")
		require.Eventually(t, func() bool { return strings.Contains(j.output.String(), "are processes") }, time.Minute, time.Millisecond)
		time.Sleep(after)
		require.NoError(t, j.Process.Signal(syscall.SIGINT))
		requireInterrupted(t, j.Wait())
		require.Contains(t, j.output.String(), "\nautopar: interrupted\n")
		require.NotRegexp(t, `exit status|signal|fail|restart [0-9]`, j.output.String())
	}

	addr, err := launchtest.FreeAddr()
	require.NoError(t, err)
	host, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	rank := w.command("run", "plan.json")
	rank.Env = append(os.Environ(), "RANK=0", "WORLD_SIZE=4", "MASTER_ADDR="+host, "MASTER_PORT="+port)
	var output syncBuffer
	rank.Stdout, rank.Stderr = &output, &output
	require.NoError(t, rank.Start())
	defer time.AfterFunc(time.Minute, func() { rank.Process.Kill() }).Stop()
	require.Eventually(t, func() bool { // it waits for the others
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
		}
		return err == nil
	}, time.Minute, time.Millisecond)
	require.NoError(t, rank.Process.Signal(syscall.SIGTERM))
	requireInterrupted(t, rank.Wait())
	require.Equal(t, "autopar: interrupted\n", output.String())
}

// TestLaunchOverNetwork runs a job on two network namespaces, which stand for machines that reach each other by address only.
func TestLaunchOverNetwork(t *testing.T) {
	t.Parallel() // with the others: processes are waited for
	w := newWorkplace(t, 20)
	ip := func(args string) error { return exec.Command("ip", strings.Fields(args)...).Run() }
	var names [2]string
	for i := range names {
		names[i] = fmt.Sprintf("ap%d-%d", os.Getpid()%100000, i)
		if err := ip("netns add " + names[i]); err != nil {
			t.Skipf("no network namespaces here: %v", err)
		}
		t.Cleanup(func() { ip("netns del " + names[i]) })
	}
	if err := ip(fmt.Sprintf("link add v0 netns %s type veth peer name v1 netns %s", names[0], names[1])); err != nil {
		t.Skipf("no virtual links here: %v", err)
	}
	for i, name := range names {
		for _, args := range []string{fmt.Sprintf("addr add 10.77.0.%d/24 dev v%d", i+1, i), fmt.Sprintf("link set v%d up", i), "link set lo up"} {
			require.NoError(t, ip("-n "+name+" "+args), args)
		}
	}
	agent := func(node int, args ...string) *exec.Cmd {
		cmd := w.command()
		cmd.Args = append([]string{"ip", "netns", "exec", names[node], cmd.Path, "launch", "plan.json", "--nproc", "2", "--nnodes", "2", "--node-rank", fmt.Sprint(node)}, args...)
		cmd.Path, _ = exec.LookPath("ip")
		return cmd
	}
	w.run(t, "run", "plan.json", "--out", "whole", "-q")
	first := agent(0, "--master", "10.77.0.1:29500", "--out", "apart")
	require.NoError(t, first.Start())
	out, err := agent(1, "--master", "10.77.0.1:29500", "--out", "apart").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, first.Wait())
	require.Equal(t, w.losses(t, "whole"), w.losses(t, "apart"))

	began := time.Now()
	out, err = agent(1, "--master", "10.77.0.9:29500", "--timeout", "1s").CombinedOutput()
	require.Error(t, err)
	require.Regexp(t, `machine 1 has no answer of machine 0 at 10\.77\.0\.9:29500 after \d\.\d s`, string(out))
	require.Less(t, time.Since(began), 30*time.Second)
}

// TestLaunchElastic has a job of four machines lose one, get it back, and let another go. The job goes on with the machines that
// are left, by a plan for them, and its losses are those of a job with four machines.
func TestLaunchElastic(t *testing.T) {
	t.Parallel() // with the others: processes are waited for
	const iters = 700
	w := newWorkplace(t, iters)
	w.run(t, "run", "plan.json", "--out", "whole", "-q")
	master, err := launchtest.FreeAddr()
	require.NoError(t, err)
	machine := func(node int) *job {
		return w.launch(t, "--nproc", "1", "--nnodes", "2:4", "--node-rank", fmt.Sprint(node), "--master", master, "--out", "elastic", "--max-restarts", "1")
	}
	var jobs [4]*job
	for node := range jobs {
		jobs[node] = machine(node)
	}
	says := func(want string, times int) {
		t.Helper()
		require.Eventually(t, func() bool {
			return len(regexp.MustCompile(want).FindAllString(jobs[0].output.String(), -1)) == times
		}, 2*time.Minute, 10*time.Millisecond, "%s: %s", want, &jobs[0].output)
	}
	w.waitFor(t, "elastic", 60)
	require.Eventually(t, func() bool { // the checkpoint of iteration 50 is written while training goes on
		_, err := os.Stat(filepath.Join(w.dir, "elastic", "ckpt", "latest"))
		return err == nil
	}, 2*time.Minute, 10*time.Millisecond)
	lost := jobs[3].pids(t)
	require.NoError(t, jobs[3].Process.Kill())
	require.Error(t, jobs[3].Wait())
	requireGone(t, lost)
	says(`: restart 1 of at most 1`, 1)
	says(`planned anew for 3 ranks: `, 1)
	says(`resuming at iteration \d+ `, 1)
	jobs[3] = machine(3)
	says(`machine 3 has come`, 1)
	says(`resuming at iteration \d+ `, 2)
	require.NoError(t, jobs[2].Process.Signal(os.Interrupt))
	require.NoError(t, jobs[2].Wait(), "%s", &jobs[2].output)
	says(`planned anew for 3 ranks: `, 2)
	for _, node := range []int{0, 1, 3} {
		require.NoError(t, jobs[node].Wait(), "%s", &jobs[node].output)
	}
	require.Regexp(t, `(?m)^1 restart, 2 changes of plan, goodput `, jobs[0].output.String())

	whole, elastic := w.numbers(t, "whole"), w.numbers(t, "elastic")
	require.Equal(t, iters, len(whole))
	require.Equal(t, len(whole), len(elastic), "each update once")
	for i := range whole {
		require.InDelta(t, whole[i], elastic[i], 1e-5, "iteration %d", i)
	}
}

// numbers returns the losses of all updates in metrics.jsonl.
func (w workplace) numbers(t *testing.T, out string) (losses []float64) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(w.dir, out, "metrics.jsonl"))
	require.NoError(t, err)
	for line := range bytes.Lines(text) {
		var record struct {
			Iter int
			Loss *float64
		}
		require.NoError(t, json.Unmarshal(line, &record))
		if record.Loss != nil {
			require.Equal(t, len(losses), record.Iter)
			losses = append(losses, *record.Loss)
		}
	}
	return losses
}

// TestEachWindowIsConsumed kills a rank in the middle of an epoch of a run that samples without replacement and saves before every
// step. The updates that stay have consumed every window of the epoch, and at most one global batch was computed twice.
func TestEachWindowIsConsumed(t *testing.T) {
	t.Parallel() // with the others: processes are waited for
	const batch, tokens = 30, 17
	w := newWorkplace(t, 1)
	poem, err := os.ReadFile(filepath.Join(w.dir, "poem.txt"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(w.dir, "long.txt"), bytes.Repeat(poem, 100), 0o666))
	w.run(t, "data", "prepare", "--input", "long.txt", "-q")
	dir := filepath.Join("data", "long")
	bins, err := data.OpenBins(filepath.Join(w.dir, dir), data.BinsOptions{BlockSize: tokens})
	require.NoError(t, err)
	defer bins.Close()
	const seed = 1337 // the default
	sampler, err := data.NewSampler(data.SamplerOptions{Seed: seed, Stream: "train", Tokens: bins.Train.Tokens(), BlockSize: tokens, Batch: batch, EachOnce: true})
	require.NoError(t, err)
	epoch := (sampler.Windows() + batch - 1) / batch
	w.run(t, "plan", "small.yaml", "--cluster", "cluster.yaml", "-q", "--set", fmt.Sprint("batch.global=", batch), "--set", "data.dir="+dir, "--set", "data.sampling=without_replacement",
		"--set", fmt.Sprint("train.max_iters=", epoch-1), "--set", "train.eval_interval=1000000", "--set", "train.checkpoint_interval=1")
	j := w.launch(t, "--out", "disturbed", "--max-restarts", "1")
	w.waitFor(t, "disturbed", epoch/2)
	require.NoError(t, syscall.Kill(j.pids(t)[3], syscall.SIGKILL))
	require.NoError(t, j.Wait(), "%s", &j.output)
	require.Contains(t, j.output.String(), "rank 3 was ended by signal 9 (killed): restart 1 of at most 1")

	computed := map[int]int{} // by step, how often
	for _, line := range regexp.MustCompile(`(?m)^iter (\d+): `).FindAllStringSubmatch(j.output.String(), -1) {
		step, err := strconv.Atoi(line[1])
		require.NoError(t, err)
		computed[step]++
	}
	consumed, twice := map[int]bool{}, 0 // by where a window starts
	for step := range w.numbers(t, "disturbed") {
		for _, start := range sampler.Batch(step) {
			consumed[start] = true
		}
		require.Positive(t, computed[step])
		twice += computed[step] - 1
	}
	t.Logf("%d windows in %d steps, %d of them computed twice", sampler.Windows(), epoch, twice)
	require.LessOrEqual(t, twice, 1)
	offset := sampler.Batch(0)[0] % tokens
	for i := range sampler.Windows() {
		require.True(t, consumed[offset+i*tokens], "window %d", i)
	}
}
