package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner"
	"github.com/autopar/autopar/planner/cost"
)

// full is a writer to a full disk.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

// TestLostResults: a command that cannot print its results fails.
func TestLostResults(t *testing.T) {
	for _, args := range [][]string{{"cluster"}, {"size", "../../examples/quick.yaml"}} {
		var stderr bytes.Buffer
		require.Equal(t, statusFailed, execute(context.Background(), args, full{}, &stderr), args)
		require.Contains(t, stderr.String(), "results are lost: no space left")
	}
}

// TestOutputsReplaceNoInput: no name of an output makes a command replace its input, or another of its outputs.
func TestOutputsReplaceNoInput(t *testing.T) {
	dir := t.TempDir()
	yaml, link := filepath.Join(dir, "gpt.yaml"), filepath.Join(dir, "link")
	text := []byte("model: {n_layer: 1, n_head: 1, n_embd: 8, block_size: 8, vocab_size: 8}\nbatch: {global: 2}\n")
	plan, cluster := filepath.Join(dir, "plan.json"), filepath.Join(dir, "cluster.yaml")
	require.NoError(t, os.WriteFile(yaml, text, 0o666))
	machine, err := cost.Source("v100")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(cluster, machine, 0o666))
	mixed, pools := filepath.Join(dir, "mixed.yaml"), []byte("name: mixed\npools:\n  - {cluster: h100, devices: 1}\n  - {cluster: ./cluster.yaml, devices: 1}\n")
	require.NoError(t, os.WriteFile(mixed, pools, 0o666))
	require.NoError(t, os.Symlink(yaml, link))
	run := func(args ...string) (int, string) {
		var stderr bytes.Buffer
		return execute(t.Context(), args, &bytes.Buffer{}, &stderr), stderr.String()
	}
	status, stderr := run("plan", yaml, "-o", plan)
	require.Zero(t, status, stderr)
	planned, err := os.ReadFile(plan)
	require.NoError(t, err)
	for _, args := range [][]string{
		{"plan", yaml, "-o", yaml}, {"plan", yaml, "-o", link}, {"plan", link, "-o", yaml}, {"plan", yaml, "-o", cluster, "--cluster", cluster},
		{"plan", yaml, "-o", mixed, "--cluster", mixed}, {"plan", yaml, "-o", cluster, "--cluster", mixed}, {"plan", yaml, "-o", cluster, "--cluster", cluster + ":1+h100:1"},
		{"plan", yaml, "-o", dir + "/new", "--certificate", dir + "//new"}, {"plan", yaml, "-o", dir + "/new", "--lp", yaml},
		{"plan", yaml, "-o", "-", "--certificate", dir + "/new", "--lp", dir + "/new"},
		{"explain", plan, "-o", plan}, {"explain", plan, "--format", "html", "--versus", yaml, "-o", link}, {"explain", plan, "--cluster", mixed, "-o", cluster},
		{"export", plan, "--format", "slurm", "-o", dir + "/./plan.json"}, {"bench", yaml, "--profile", yaml},
	} {
		status, stderr := run(args...)
		require.Equal(t, statusInput, status, "%v: %s", args, stderr)
		require.Contains(t, stderr, " would replace ", args)
	}
	for name, want := range map[string][]byte{yaml: text, cluster: machine, mixed: pools, plan: planned} {
		there, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, string(want), string(there))
	}
	require.NoFileExists(t, filepath.Join(dir, "new"))
	for _, out := range []string{"-", "/dev/null"} {
		status, stderr := run("explain", plan, "-o", out)
		require.Zero(t, status, stderr)
	}
}

// TestWriteFile: a file is written, also by the name of a link to it, and links stay. What is no regular file stays what it is.
func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(file, link))
	require.NoError(t, writeFile(file, []byte("old")))
	require.NoError(t, writeFile(link, []byte("new")))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "new", string(text))
	require.NoError(t, os.Remove(file))
	require.NoError(t, writeFile(link, []byte("first")))
	text, err = os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "first", string(text))

	round := filepath.Join(t.TempDir(), "round")
	require.NoError(t, os.Symlink("round", round))
	require.ErrorContains(t, writeFile(round, nil), round)
	to, err := os.Readlink(round)
	require.NoError(t, err)
	require.Equal(t, "round", to)

	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	defer l.Close()
	require.ErrorContains(t, mayBeFile("plan: -o", socket), "plan: -o "+socket+" cannot be written: ")
	require.Error(t, writeFile(socket, nil))
	info, err := os.Lstat(socket)
	require.NoError(t, err)
	require.Equal(t, fs.ModeSocket, info.Mode().Type())
	all, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, all, 3)
}

// TestSettingsThatContradictThePlan: if a setting of explain --set contradicts the plan, the error names the plan's file, line and key.
func TestSettingsThatContradictThePlan(t *testing.T) {
	dir := t.TempDir()
	yaml, plan := filepath.Join(dir, "gpt.yaml"), filepath.Join(dir, "plan.json")
	text := "model: {n_layer: 1, n_head: 1, n_embd: 8, block_size: 8, vocab_size: 8, lora_rank: 2, lora_alpha: 4}\nbatch: {global: 2}\n"
	require.NoError(t, os.WriteFile(yaml, []byte(text), 0o666))
	var stderr bytes.Buffer
	require.Zero(t, execute(t.Context(), []string{"plan", yaml, "-o", plan}, &bytes.Buffer{}, &stderr), stderr.String())
	written, err := os.ReadFile(plan)
	require.NoError(t, err)
	at := func(key string) string {
		before, _, found := strings.Cut(string(written), strconv.Quote(key)+":")
		require.True(t, found, key)
		return fmt.Sprintf("%s:%d: config.model.%s: ", plan, 1+strings.Count(before, "\n"), key)
	}
	for set, want := range map[string]string{
		"model.lora_rank=0": at("lora_alpha") + "is of adapters, and lora_rank 0 has none\n",
		"model.n_head=3":    at("n_embd") + "8 does not divide by n_head 3\n",
		"model.n_head=0":    "--set: model.n_head: is 0, must be at least 1\n",
	} {
		var stderr bytes.Buffer
		require.Equal(t, statusInput, execute(t.Context(), []string{"explain", plan, "--set", set}, &bytes.Buffer{}, &stderr))
		require.Equal(t, "autopar: "+want, stderr.String())
	}
}

// TestDumpsAreWhole: --dump-dir replaces existing files whole: they are never half written.
func TestDumpsAreWhole(t *testing.T) {
	dir := t.TempDir()
	yaml, before, dump := filepath.Join(dir, "gpt.yaml"), filepath.Join(dir, "before"), filepath.Join(dir, "dump")
	require.NoError(t, os.WriteFile(yaml, []byte("model: {n_layer: 1, n_head: 1, n_embd: 8, block_size: 8, vocab_size: 8}\nbatch: {global: 2}\n"), 0o666))
	require.NoError(t, os.WriteFile(before, []byte("old"), 0o666))
	require.NoError(t, os.Mkdir(dump, 0o777))
	for _, name := range []string{"graph.txt", "graph.json", "partitioned.txt", "program-rank0.txt"} {
		require.NoError(t, os.Link(before, filepath.Join(dump, name)))
	}
	var said bytes.Buffer
	require.Zero(t, execute(t.Context(), []string{"plan", yaml, "-o", "-", "--dump-dir", dump}, &said, &said), said.String())
	old, err := os.ReadFile(before)
	require.NoError(t, err)
	require.Equal(t, "old", string(old), "written into, not replaced")
	files, err := os.ReadDir(dump)
	require.NoError(t, err)
	require.Len(t, files, 4)
}

// TestFlagsHaveValues: an empty value, as from -o "$NAME" with NAME unset, is refused. It does not mean the current directory, nor
// that the flag is not given.
func TestFlagsHaveValues(t *testing.T) {
	t.Chdir(t.TempDir())
	for args, want := range map[string]string{
		"plan gpt.yaml -o": "--out is empty, want FILE", "checkpoint merge run -o": "--out is empty, want DIR", "checkpoint reshard run plan.json -o": "--out is empty, want DIR",
		"checkpoint import model.safetensors -o": "--out is empty, want DIR", "checkpoint export run -o": "--out is empty, want FILE",
		"explain plan.json --versus": "explain: --versus is empty, want dp|fsdp|megatron|all|FILE", "explain plan.json --why": "--why is empty, want NAME",
		"plan gpt.yaml --plan-ngpus": "--plan-ngpus is empty, want N|auto", "plan gpt.yaml --schedule": "--schedule is empty, want gpipe|1f1b|interleaved|zero-bubble",
		"export plan.json --format k8s --image": "--image is empty, want NAME",
	} {
		var said bytes.Buffer
		require.Equal(t, statusInput, execute(t.Context(), append(strings.Fields(args), ""), &said, &said), args)
		require.Contains(t, said.String(), want)
	}
}

// TestPiecesOfNothing: a plan with pieces does not say that it makes some of a single sequence that is whole.
func TestPiecesOfNothing(t *testing.T) {
	doc := &planner.Document{Config: config.Default(), Plan: &partition.Plan{
		PlanNGPUs: 2, RuntimeNGPUs: 2, DP: 1, TP: 2, MicroBatch: 1, TPPieces: 4, Schedule: partition.OneFOneB, Stages: []partition.Stage{{Last: 2}},
	}}
	said := func() string {
		rows := choices(doc)
		return rows[len(rows)-1][1]
	}
	require.Equal(t, "nothing: micro-batches have one sequence each, which is not cut", said())
	doc.Plan.SequenceParts = 4
	require.Equal(t, "products and collectives of tp next to them, in 4 parts of each sequence", said())
	doc.Plan.SequenceParts, doc.Plan.MicroBatch = 0, 2
	require.Equal(t, "products and collectives of tp next to them, in 4 parts (2 empty) of the sequences", said())
	doc.Plan.MicroBatch = 4
	require.Equal(t, "products and collectives of tp next to them, in 4 parts of the sequences", said())
}
