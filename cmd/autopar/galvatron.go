package main

import (
	"encoding/json"
	"fmt"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/galvatron"
)

// measured makes a cluster from the figures that Galvatron has measured: see [galvatron.Profile.Cluster]. It prints the cluster
// as JSON, which is also YAML.
func (c *clusterCmd) measured(con *console) error {
	if c.Name == "" || c.Model == "" {
		return usagef("cluster: --galvatron needs the cluster whose other figures hold, such as a100-80g, and --model with the configuration of the model that was measured")
	}
	base, err := cost.Load(c.Name)
	if err != nil {
		return err
	}
	if base.Device.Shared {
		return usagef("cluster: --galvatron is for clusters of accelerators, but %s is one machine that all ranks share", c.Name)
	}
	cfg, err := config.Load(c.Model, c.Set)
	if err != nil {
		return err
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
	profile, err := galvatron.Read(galvatron.FilesOf(c.Galvatron, c.ProfileOf, 1, base.DevicesPerNode), cfg.Model.BlockSize)
	if err != nil {
		return err
	}
	g, err := cfg.TrainStep()
	if err != nil {
		return err
	}
	cluster, err := profile.Cluster(base, g, cfg.Batch.Global)
	if err != nil { // profile, cluster and model do not fit together
		return usagef("cluster: %v", err)
	}
	text, err := json.MarshalIndent(struct {
		*cost.Cluster
		Software string `json:"software"` // a cluster file has its name
	}{cluster, cluster.Software.Name}, "", "  ")
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	con.printf("%s\n", text)
	return nil
}
