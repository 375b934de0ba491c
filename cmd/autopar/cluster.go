package main

import (
	"cmp"
	"fmt"

	"github.com/autopar/autopar/explain"
	"github.com/autopar/autopar/planner/cost"
)

// clusterCmd shows the built-in clusters.
type clusterCmd struct {
	Name      string   `arg:"" optional:"" help:"Print this one as YAML."`
	Galvatron string   `placeholder:"DIR" help:"Take layer times and links from the profile files in a checkout of Galvatron, the rest from the cluster named."`
	ProfileOf string   `with:"galvatron" default:"llama2-7b" placeholder:"NAME" help:"The model in the names of those files."`
	Model     string   `with:"galvatron" placeholder:"gpt.yaml" help:"Configuration of that model, with the sequences that it was measured with."`
	Set       []string `with:"model" sep:"none" placeholder:"SECTION.KEY=VALUE" help:"Override one value of that configuration. May be repeated."`
	format
}

// Example is shown by --help.
func (clusterCmd) Example() string {
	return `
autopar cluster
autopar cluster h100 > mine.yaml
autopar plan gpt.yaml --cluster mine.yaml
autopar cluster a100-80g --galvatron Hetu-Galvatron --model llama.yaml > measured.yaml`
}

// Run lists the clusters or prints one.
func (c *clusterCmd) Run(con *console) error {
	if c.Galvatron != "" {
		return c.measured(con)
	}
	if c.Name == "" {
		return c.list(con)
	}
	if c.json() {
		cluster, err := cost.Load(c.Name)
		if err != nil {
			return err
		}
		return con.json(cluster)
	}
	text, err := cost.Source(c.Name)
	if err != nil {
		return err
	}
	con.printf("%s", text)
	return nil
}

func (c *clusterCmd) list(con *console) error {
	var clusters []*cost.Cluster
	rows := [][]string{{"NAME", "DEVICE", "PER NODE", "MEMORY", "ITS BANDWIDTH", "F32", "16-BIT", "IN NODE", "BETWEEN NODES", "SOFTWARE"}}
	for _, name := range cost.Names() {
		k, err := cost.Load(name)
		if err != nil {
			return err
		}
		clusters = append(clusters, k)
		perNode, between := fmt.Sprint(k.DevicesPerNode), linkText(k.InterNode)
		if k.Device.Shared {
			perNode, between = "shared", "-"
		}
		half := "-"
		if rate := max(k.Device.FLOPS["bf16"], k.Device.FLOPS["f16"]); rate > 0 {
			half = fmt.Sprintf("%.4g TFLOP/s", rate/1e12)
		}
		rows = append(rows, []string{k.Name, k.Device.Name, perNode, explain.Bytes(k.Device.Memory), fmt.Sprintf("%.4g GB/s", k.Device.MemoryBandwidth/1e9),
			fmt.Sprintf("%.4g TFLOP/s", k.PeakFLOPS("f32", 1)/1e12), half, linkText(k.IntraNode), between, cmp.Or(k.Software.Name, "-")})
	}
	if c.json() {
		return con.json(clusters)
	}
	con.table(rows)
	return nil
}

func linkText(l cost.Link) string { return fmt.Sprintf("%.4g GB/s", l.Bandwidth/1e9) }
