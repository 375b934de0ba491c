package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
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

// slowDown stops the processes of a rank most of the time, until the test has ended or the function that it returns is called.
func slowDown(t *testing.T, j *job, rank int) (well func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for pid := 0; ctx.Err() == nil; time.Sleep(time.Millisecond) {
			if pid == 0 || syscall.Kill(pid, syscall.SIGSTOP) != nil { // it has ended, and there may be another
				pid = j.pids(t)[rank]
				continue
			}
			time.Sleep(20 * time.Millisecond)
			syscall.Kill(pid, syscall.SIGCONT)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// TestRebalance slows one of four ranks down. The job goes on, from where it is, by a plan in which that rank has the fewest
// sequences, with the losses of a job that was never disturbed. The machine may disturb other ranks too.
func TestRebalance(t *testing.T) {
	t.Parallel() // with the others: processes are waited for
	w := newWorkplace(t, 100_000)
	w.run(t, "plan", "small.yaml", "--cluster", "cluster.yaml", "--dp", "2", "--tp", "1", "--pp", "1", "-q", "--set", "batch.global=16",
		"--set", "train.max_iters=100000", "--set", "train.eval_interval=1000000", "--set", "train.checkpoint_interval=1000000")
	j := w.launch(t, "--out", "balanced", "--rebalance")
	w.waitFor(t, "balanced", 1)
	well := slowDown(t, j, 2)
	goesOn := regexp.MustCompile(`balance: ranks compute \S+ \(rank \d\) to \S+ \(rank 2\) times as long as at the median speed; with (the batch shared as (\d+):(\d+):(\d+):(\d+)) a step is predicted to take \d\d\.\d % less\n(?s:.*?)goes on by .* (the batch shared as \S+)\n(?s:.*?)resuming at iteration (\d+) from`)
	require.Eventually(t, func() bool { return goesOn.MatchString(j.output.String()) }, 2*time.Minute, 10*time.Millisecond, "%s", &j.output)
	well()
	told := goesOn.FindStringSubmatch(j.output.String())
	require.Equal(t, told[1], told[6])
	shares := told[2:6]
	for _, other := range []int{0, 1, 3} {
		require.Greater(t, atoi(t, shares[other]), atoi(t, shares[2]), "%s", told[1])
	}
	require.Equal(t, 16, atoi(t, shares[0])+atoi(t, shares[1])+atoi(t, shares[2])+atoi(t, shares[3]))
	require.FileExists(t, filepath.Join(w.dir, "balanced", "plan-4.json"))

	w.waitFor(t, "balanced", atoi(t, told[7])+20)
	require.NoError(t, j.Process.Signal(os.Interrupt))
	requireInterrupted(t, j.Wait())
	require.Regexp(t, `go on with: autopar launch plan\.json --resume --out balanced --rebalance`, j.output.String())
	require.Regexp(t, `(?m)^0 restarts, \d+ changes? of plan, goodput `, j.output.String())
	for _, start := range regexp.MustCompile(`resuming at iteration \d+`).FindAllString(j.output.String(), -1) {
		require.Contains(t, j.output.String(), strings.Replace(start, "resuming at iteration", "interrupted after", 1)+" iterations, saved in ", "no update is lost")
	}
	balanced := w.numbers(t, "balanced")
	w.run(t, "run", "plan.json", "--out", "whole", "--steps", fmt.Sprint(len(balanced)), "-q")
	whole := w.numbers(t, "whole")
	require.Equal(t, len(whole), len(balanced), "each update once")
	for i := range whole {
		require.InDelta(t, whole[i], balanced[i], 1e-5, "iteration %d", i)
	}
}

func atoi(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}
