package main

import (
	"os"
	"strings"

	"github.com/autopar/autopar/cuda"
	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/launch"
	"github.com/autopar/autopar/planner/cost"
)

// deviceArgs say what a command runs on.
type deviceArgs struct {
	Device   string `enum:"cpu,cuda" default:"cpu" help:"cpu, or cuda: NVIDIA GPUs, a rank on each."`
	Loopback bool   `help:"With --device cuda, run all ranks on one GPU, to try a plan without having its GPUs."`
}

func (a deviceArgs) cuda() bool { return a.Device == "cuda" }

func (a deviceArgs) validate(command string) error {
	if a.Loopback && !a.cuda() {
		return usagef("%s: --loopback is for --device cuda", command)
	}
	return nil
}

// openCUDA opens this machine's GPUs and libraries for so many ranks, and says which they
// are.
func (a deviceArgs) openCUDA(con *console, ranks int) (*cuda.System, error) {
	place, err := launch.PlaceFrom(os.Getenv)
	if err != nil {
		return nil, usagef("%v", err)
	}
	if place.World > 1 {
		return nil, usagef("WORLD_SIZE is %d, but all %d ranks of the plan run in one process, on the GPUs of one machine: start it once, without torchrun or its like", place.World, ranks)
	}
	system, err := cuda.Machine(cuda.MachineOptions{})
	if err != nil {
		return nil, err
	}
	gpus, err := a.options().GPUsFor(system.Driver, ranks)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, g := range gpus {
		name, err := system.Driver.DeviceName(g)
		if err != nil {
			return nil, err
		}
		if err := cuda.Usable(system.Driver, g); err != nil {
			return nil, err
		}
		if len(names) == 0 || names[len(names)-1] != name {
			names = append(names, name)
		}
	}
	con.note("GPU: %s; %s", strings.Join(names, ", "), strings.Join(system.Versions, ", "))
	return system, nil
}

func (a deviceArgs) options() cuda.Options { return cuda.Options{Loopback: a.Loopback} }

// clusterOfGPU returns the built-in cluster of a GPU, or nil if there is none.
func clusterOfGPU(d driver.Driver) (*cost.Cluster, error) {
	name, err := d.DeviceName(0)
	if err != nil {
		return nil, err
	}
	for _, known := range [][2]string{
		{"B200", "b200"}, {"H200", "h200"}, {"H100", "h100"}, {"A100-SXM4-40GB", "a100-40g"}, {"A100-PCIE-40GB", "a100-40g"}, {"A100", "a100-80g"}, {"A10G", "a10g"},
	} {
		if strings.Contains(name, known[0]) {
			return cost.Load(known[1])
		}
	}
	return nil, nil
}
