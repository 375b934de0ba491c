package train

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/autopar/autopar/checkpoint"
	"github.com/autopar/autopar/infile"
)

// Checks at the start of a run of several processes: that all have the same settings, kernels and
// weights. Each process takes them from its own command line and files, and replicas that differ
// would drift apart without any other sign.

// agree returns an error, in all processes, if one of them has other settings than rank 0.
func (r *run) agree(ctx context.Context) error {
	if r.exec.Peers() == nil {
		return nil
	}
	mine, told := r.settings(), ""
	if r.exec.Here()[0] == 0 { // rank 0 alone, because what is sent goes to all
		told = mine
	}
	first, err := r.gather(ctx, []byte(told))
	if err != nil {
		return fmt.Errorf("train: how rank 0 is to train: %w", err)
	}
	differs, err := r.gather(ctx, []byte(difference(mine, string(first[0]))))
	if err != nil {
		return fmt.Errorf("train: how the processes are to train: %w", err)
	}
	for rank, text := range differs {
		if len(text) > 0 {
			return &InputError{What: fmt.Sprintf("rank %d", rank), Msg: string(text) + ": all processes need the same plan, flags and data"}
		}
	}
	return r.sameArithmetic(ctx)
}

// sameArithmetic returns an error, in all processes, if one of them rounds differently from rank 0.
// Replicated weights, which each rank updates for itself, would drift apart.
func (r *run) sameArithmetic(ctx context.Context) error {
	all, err := r.gather(ctx, []byte(r.exec.Arithmetic()))
	if err != nil {
		return fmt.Errorf("train: what the processes compute with: %w", err)
	}
	for rank, other := range all { // a backend that names no kernels is not compared
		if len(other) > 0 && len(all[0]) > 0 && string(other) != string(all[0]) {
			return &InputError{What: fmt.Sprintf("rank %d", rank), Msg: fmt.Sprintf("computes with kernels for %s, rank 0 for %s, which round differently: "+
				"all processes need the same; GODEBUG=cpu.amxtile=off, cpu.avx512f=off or cpu.avx2=off in the environment of all leaves a set out", other, all[0])}
		}
	}
	return nil
}

// settings returns how a process trains, one key and value per line, without the directories of
// data and output.
func (r *run) settings() string {
	c := *r.Config
	c.Data.Dir, c.Train.OutDir = "", ""
	text := string(c.Marshal())
	contents := r.contents()
	for _, name := range slices.Sorted(maps.Keys(contents)) {
		text += fmt.Sprintf("%s: %s\n", name, contents[name])
	}
	return text + fmt.Sprintf("steps: %d\nresume: %v\nscratch: %v\n", r.last, r.opts.Resume, r.opts.InitFrom == "" || r.opts.InitFrom == scratch)
}

// sameSource returns an error, in all processes, if one of them begins with other weights than rank
// 0: from another machine's file of the same name, or from a run that saved meanwhile. sum
// identifies the weights that this process reads: see [sumOf] and [run.sumOfFiles].
func (r *run) sameSource(ctx context.Context, from, sum string) error {
	sums, err := r.gather(ctx, []byte(sum))
	if err != nil {
		return fmt.Errorf("train: what the processes read from %s: %w", from, err)
	}
	for rank, other := range sums {
		if string(other) != string(sums[0]) {
			return &InputError{What: fmt.Sprintf("rank %d", rank),
				Msg: fmt.Sprintf("reads other weights than rank 0 (%s, not %s), here from %s: all processes need the same", other, sums[0], from)}
		}
	}
	return nil
}

// sumOf identifies a checkpoint by its step and the checksums of its files.
func sumOf(c *checkpoint.Checkpoint) string {
	return fmt.Sprintf("step %d, SHA-256 %.8x", c.Step, sha256.Sum256(fmt.Append(nil, c.Files)))
}

// sumOfFiles identifies the weights in files by their contents. In a run of one process it returns "".
func (r *run) sumOfFiles(paths []string) (string, error) {
	if r.exec.Peers() == nil {
		return "", nil
	}
	sum := sha256.New()
	for _, path := range paths {
		f, err := infile.Open(path)
		if err != nil {
			return "", err
		}
		_, err = io.Copy(sum, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("SHA-256 %.8x", sum.Sum(nil)), nil
}

// difference describes the first line of settings that differs from rank 0's, or returns "" if all
// are equal.
func difference(mine, first string) string {
	theirs := strings.Split(first, "\n")
	for i, line := range strings.Split(mine, "\n") {
		if i >= len(theirs) {
			return "is of another version of autopar than rank 0"
		}
		if line != theirs[i] {
			return fmt.Sprintf("has %s, rank 0 has %s", strings.TrimSpace(line), strings.TrimSpace(theirs[i]))
		}
	}
	return ""
}

// sameDirectory returns an error, in all processes, if one of them does not find in the output directory what rank 0 makes there:
// its part of a checkpoint would be missing in rank 0's.
func (r *run) sameDirectory(ctx context.Context) error {
	if r.exec.Peers() == nil || r.Config.Train.EvalOnly {
		return nil
	}
	var name, lacks []byte
	if r.exec.Here()[0] == 0 && r.opts.Out != "" {
		f, err := os.CreateTemp(r.opts.Out, ".seen-by-all-*") // a name that nobody has looked for, so that no file system remembers its absence
		if err != nil {
			return fmt.Errorf("train: %w", err)
		}
		defer os.Remove(f.Name())
		if err := f.Close(); err != nil {
			return fmt.Errorf("train: %w", err)
		}
		name = []byte(filepath.Base(f.Name()))
	}
	names, err := r.gather(ctx, name)
	if err != nil {
		return fmt.Errorf("train: where rank 0 saves: %w", err)
	}
	if _, err := os.Lstat(filepath.Join(r.opts.Out, string(names[0]))); err != nil && len(names[0]) > 0 {
		lacks = fmt.Appendf(nil, "%q", r.opts.Out)
	}
	dirs, err := r.gather(ctx, lacks)
	if err != nil {
		return fmt.Errorf("train: where the processes save: %w", err)
	}
	for rank, dir := range dirs {
		if len(dir) > 0 {
			return &InputError{What: fmt.Sprintf("rank %d", rank), Msg: fmt.Sprintf("does not find in %s what rank 0 has just written where it saves: "+
				"all processes need one output directory, on a file system that all machines share", dir)}
		}
	}
	return nil
}

// gather gives every process the texts of all, by rank. Every process must take part, even an
// interrupted one.
func (r *run) gather(ctx context.Context, text []byte) ([][]byte, error) {
	peers := r.exec.Peers()
	if peers == nil {
		return [][]byte{text}, nil
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.exec.Timeout())
	defer cancel()
	return peers.Gather(bounded, text)
}
