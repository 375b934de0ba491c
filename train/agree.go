package train

import (
	"context"
	"fmt"
	"strings"
)

// agree fails, in all processes, if one of them is to train otherwise than rank 0. Each takes batches, rates and initial
// weights from what it was started with: replicas of a job that was given two plans would drift apart, and nothing else would
// tell.
func (r *run) agree(ctx context.Context) error {
	if r.exec.Peers() == nil {
		return nil
	}
	mine, told := r.settings(), ""
	if r.exec.Here()[0] == 0 { // alone, as what is told goes to all
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
			return &InputError{What: fmt.Sprintf("rank %d", rank), Msg: string(text) + ": all processes need the same plan and flags"}
		}
	}
	return nil
}

// settings says how a process trains, a key and its value on each line. Where data and output lie is not of it.
func (r *run) settings() string {
	c := *r.Config
	c.Data.Dir, c.Train.OutDir = "", ""
	return fmt.Sprintf("%stokens of train.bin: %d\ntokens of val.bin: %d\nsteps: %d\nresume: %v\nscratch: %v\n",
		c.Marshal(), r.bins.Train.Tokens(), r.bins.Val.Tokens(), r.last, r.opts.Resume, r.opts.InitFrom == "" || r.opts.InitFrom == scratch)
}

// difference is the first line of settings that differs from rank 0's, "" if none does.
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

// gather gives every process the texts of all, by rank. All take part, one that is interrupted too.
func (r *run) gather(ctx context.Context, text []byte) ([][]byte, error) {
	peers := r.exec.Peers()
	if peers == nil {
		return [][]byte{text}, nil
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.exec.Timeout())
	defer cancel()
	return peers.Gather(bounded, text)
}
