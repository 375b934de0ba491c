package train

import (
	"encoding/json"

	"github.com/autopar/autopar/checkpoint"
	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/partition"
)

// Reshard saves a checkpoint under dir as the ranks of a plan would have saved it, and returns its directory. Resuming
// under another plan does not need this; it spares the ranks of a large job files of which they need little.
func Reshard(c *checkpoint.Checkpoint, cfg *config.Config, plan *partition.Plan, dir string) (string, error) {
	g, err := cfg.TrainStep()
	if err != nil {
		return "", err
	}
	prog, err := compile(g, plan, cfg.Batch.Global, nil)
	if err != nil {
		return "", err
	}
	snap, err := c.Snapshot(shards(prog))
	if err != nil {
		return "", err
	}
	snap.Config = string(cfg.Marshal())
	if snap.Plan, err = json.Marshal(plan); err != nil {
		return "", err
	}
	return checkpoint.Save(dir, snap, checkpoint.Retention{})
}

// shards lists the parts of parameters that the ranks of a program hold.
func shards(prog *codegen.Program) []checkpoint.Shard {
	var all []checkpoint.Shard
	params := prog.Graph.Params()
	for i := range prog.Schedules {
		s := &prog.Schedules[i]
		for _, v := range params {
			if v.Def.Stage == s.Stage {
				all = append(all, checkpoint.Shard{Rank: s.Rank, Name: partition.BaseName(v.Def.Name), Type: v.Type, Slab: prog.Slab(v, s.Coord)})
			}
		}
	}
	return all
}
