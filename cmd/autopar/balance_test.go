package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner"
	"github.com/autopar/autopar/planner/cost"
)

// documentOf is a document of a small model with a plan of some data-parallel ranks.
func documentOf(t *testing.T, dp, batch int) *planner.Document {
	t.Helper()
	cfg := config.Default()
	m := &cfg.Model
	m.NLayer, m.NHead, m.NEmbd, m.BlockSize, m.VocabSize, m.Dropout = 2, 3, 24, 17, 38, 0
	cfg.Batch.Global, cfg.Data.Dir = batch, "data"
	step, _, err := cfg.Steps()
	require.NoError(t, err)
	cluster, err := cost.Load("h100")
	require.NoError(t, err)
	plan := &partition.Plan{
		PlanNGPUs: dp, RuntimeNGPUs: dp, DP: dp, TP: 1, MicroBatch: 1, Schedule: partition.OneFOneB,
		Stages: []partition.Stage{{Last: 2}}, Placements: []partition.Placement{},
	}
	return planner.NewDocument(cfg, step, cluster, &planner.Result{Plan: plan})
}

// TestBalancer: a job goes on by another plan if the slow rank stays slow, if that saves much of a step and more than a start
// takes, and if there is memory for it. What does not pay is said and priced once. A rank that is well again has its share
// again.
func TestBalancer(t *testing.T) {
	const long = time.Hour
	var log bytes.Buffer
	b := &balancer{con: &console{stderr: &log}, doc: documentOf(t, 4, 32), to: filepath.Join(t.TempDir(), "plan.json"), start: time.Second}
	says := func(want string) {
		t.Helper()
		if want == "" {
			require.Empty(t, log.String())
		} else {
			require.Regexp(t, "^balance: "+want+"\n$", log.String())
		}
		log.Reset()
	}
	next := &nextPlan{dir: filepath.Dir(b.to), plans: map[int][]byte{}}
	require.Equal(t, b.to, next.file())
	require.False(t, b.judge([]float64{1, 1.1, 1.15, 1}, long))
	says("")
	require.False(t, b.judge([]float64{1, 1, 1.25, 1}, long), "a little slower")
	says("")
	require.False(t, b.judge([]float64{1, 1, 3, 1}, time.Second))
	says(`rank 2 computes 3\.0 times .*; the plan stays: with the batch shared as 10:10:3:9 the rest is predicted to take \d+ ms less, but a start takes 1 s`)
	require.False(t, b.judge([]float64{1, 1, 3, 1}, long), "judged already")
	says("")
	b.doc.Config.Parallel.MemoryLimit = 1
	b.doc.Plan.ZeRO = 1
	require.False(t, b.judge([]float64{1, 1, 3.4, 1}, long))
	says(`rank 2 computes 3\.4 times .*; the plan stays: with the batch shared as 10:10:2:10 a rank lacks .*iB of memory`)
	b.doc.Config.Parallel.MemoryLimit, b.doc.Plan.ZeRO = 0, 0
	require.False(t, next.take(b.con))
	require.False(t, b.judge([]float64{1, 1, 5, 1}, long), "judged already")
	says("")
	require.True(t, b.judge([]float64{1, 1, 5.2, 1}, long), "half as slow again")
	says(`ranks compute 1\.0 \(rank 0\) to 5\.2 \(rank 2\) times .*; with the batch shared as 10:10:2:10 a step is predicted to take \d\d\.\d % less`)

	require.True(t, next.take(b.con))
	require.Equal(t, "goes on by dp 4 x tp 1 x pp 1, micro-batch 1, 1f1b, the batch shared as 10:10:2:10\n", log.String())
	log.Reset()
	require.False(t, next.take(b.con), "once")
	require.Nil(t, next.of(b.con, 3))
	doc, err := planner.ParseDocument("plan.json", next.of(b.con, 4))
	require.NoError(t, err)
	b = &balancer{con: b.con, doc: doc, to: b.to}
	require.False(t, b.judge([]float64{1, 1, 5.2, 1}, long), "it is as slow as before")
	says("")
	require.False(t, b.judge([]float64{1, 1, 1, 1}, long), "8 sequences for 10 are too little")
	says("")
	b = &balancer{con: b.con, doc: documentOf(t, 2, 8), to: b.to}
	b.doc.Plan.BatchShares = []int{6, 2}
	require.True(t, b.judge([]float64{1, 1}, long))
	says(`ranks compute 1\.0 \(rank 0\) to 1\.0 \(rank 0\) times .*; with equal shares of the batch a step is predicted to take \d\d\.\d % less`)

	one := &balancer{con: b.con, doc: documentOf(t, 1, 4), to: b.to}
	require.False(t, one.judge([]float64{9}, long))
	says("rank 0 computes 9.0 times .*: no data-parallel rank can have fewer sequences")
	require.False(t, one.judge([]float64{9}, long))
	says("")
	full := &balancer{con: b.con, doc: documentOf(t, 4, 4), to: filepath.Join(b.to, "plan.json")} // under a file
	require.False(t, full.judge([]float64{1, 1, 9, 1}, long))
	says("rank 2 computes 9.0 times .*: no data-parallel rank can have fewer sequences")
	full.doc = documentOf(t, 4, 32)
	require.False(t, full.judge([]float64{1, 1, 9, 1}, long), "it cannot be written")
	says("rank 2 computes 9.0 times .*; the plan stays: .*plan.json.*")
}

// slowDown stops a process most of the time, until the test has ended or the function that it returns is called.
func slowDown(t *testing.T, pid int) (well func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil && syscall.Kill(pid, syscall.SIGSTOP) == nil {
			time.Sleep(8 * time.Millisecond)
			syscall.Kill(pid, syscall.SIGCONT)
			time.Sleep(time.Millisecond)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// TestRebalance slows one of four ranks down. The job goes on, from where it is, by a plan in which that rank has the fewest
// sequences, with the losses of a job that was never disturbed.
func TestRebalance(t *testing.T) {
	t.Parallel() // with the others: processes are waited for
	w := newWorkplace(t, 100_000)
	w.run(t, "plan", "small.yaml", "--cluster", "cluster.yaml", "--dp", "2", "--tp", "1", "--pp", "1", "-q", "--set", "batch.global=16",
		"--set", "train.max_iters=100000", "--set", "train.eval_interval=1000000", "--set", "train.checkpoint_interval=1000000")
	j := w.launch(t, "--out", "balanced", "--rebalance")
	w.waitFor(t, "balanced", 1)
	well := slowDown(t, j.pids(t)[2])
	require.Eventually(t, func() bool { return strings.Contains(j.output.String(), "resuming at iteration") }, 2*time.Minute, 10*time.Millisecond, "%s", &j.output)
	well()
	require.Regexp(t, `(?m)^straggler: rank 2 computes `, j.output.String())
	told := regexp.MustCompile(`balance: ranks compute \S+ \(rank \d\) to \S+ \(rank 2\) times as long as at the median speed; with the batch shared as (\d+):(\d+):(\d+):(\d+) a step is predicted to take \d\d\.\d % less`).FindStringSubmatch(j.output.String())
	require.NotNil(t, told, "%s", &j.output)
	from := regexp.MustCompile(`resuming at iteration (\d+) from`).FindStringSubmatch(j.output.String())[1]
	require.Contains(t, j.output.String(), "interrupted after "+from+" iterations, saved in ", "no update is lost")
	doc, err := planner.ReadDocument(filepath.Join(w.dir, "balanced", "plan-4.json"))
	require.NoError(t, err)
	shares := doc.Plan.BatchShares
	require.Equal(t, told[1:], strings.Fields(strings.Trim(fmt.Sprint(shares), "[]")))
	for _, other := range []int{0, 1, 3} {
		require.Greater(t, shares[other], shares[2])
	}
	require.Equal(t, 16, shares[0]+shares[1]+shares[2]+shares[3])

	iter := 0
	fmt.Sscan(from, &iter)
	w.waitFor(t, "balanced", iter+20)
	require.NoError(t, j.Process.Signal(os.Interrupt))
	requireInterrupted(t, j.Wait())
	require.Regexp(t, `go on with: autopar launch plan\.json --resume --out balanced --rebalance`, j.output.String())
	balanced := w.numbers(t, "balanced")
	w.run(t, "run", "plan.json", "--out", "whole", "--steps", fmt.Sprint(len(balanced)), "-q")
	whole := w.numbers(t, "whole")
	require.Equal(t, len(whole), len(balanced), "each update once")
	for i := range whole {
		require.InDelta(t, whole[i], balanced[i], 1e-5, "iteration %d", i)
	}
}
