package main

import (
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/autopar/autopar/cuda"
	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/launch"
	"github.com/autopar/autopar/planner/cost"
)

// openMachine opens this machine's GPUs and libraries. Tests put fake ones in their place.
var openMachine = cuda.Machine

// deviceArgs are the flags that say what a command runs on.
type deviceArgs struct {
	Device   string `enum:"cpu,cuda" default:"cpu" help:"cpu, or cuda: NVIDIA GPUs, a rank on each."`
	Loopback bool   `help:"With --device cuda, run all ranks on one GPU, to try a plan without having its GPUs."`

	gpu []int // the GPU of this process, if each rank has a process
}

func (a deviceArgs) cuda() bool { return a.Device == "cuda" }

func (a deviceArgs) validate(command string) error {
	if a.Loopback && !a.cuda() {
		return usagef("%s: --loopback is for --device cuda", command)
	}
	return nil
}

// openCUDA opens this machine's GPUs and libraries for a number of ranks, and prints which they are. With peers it opens only
// the GPU of this process's rank.
func (a *deviceArgs) openCUDA(con *console, ranks int, peers *launch.Peers) (*cuda.System, error) {
	if peers == nil {
		place, err := launch.PlaceFrom(os.Getenv)
		if err != nil {
			return nil, usagef("%v", err)
		}
		if place.World > 1 {
			return nil, usagef("this command runs all %d ranks in one process, but WORLD_SIZE or its like says that there are %d: start it once", ranks, place.World)
		}
	}
	system, err := openMachine(cuda.MachineOptions{})
	if err != nil {
		return nil, err
	}
	if peers != nil {
		if a.gpu, err = localGPU(system.Driver, peers); err != nil {
			return nil, err
		}
		ranks = 1
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

func (a deviceArgs) options() cuda.Options { return cuda.Options{Loopback: a.Loopback, GPUs: a.gpu} }

// localGPU chooses the GPU of a process: the one with the number LOCAL_RANK, or without that variable the rank's number on this
// machine; or the only GPU that a launcher lets the process see.
func localGPU(d driver.Driver, peers *launch.Peers) ([]int, error) {
	visible, err := d.DeviceCount()
	if err != nil {
		return nil, err
	}
	local, said := peers.LocalRank(), os.Getenv("LOCAL_RANK")
	if said != "" {
		if local, err = strconv.Atoi(said); err != nil || local < 0 {
			return nil, usagef("LOCAL_RANK is %q, want the number of this process on its machine, from 0", said)
		}
	}
	switch {
	case local < visible:
		return []int{local}, nil
	case visible == 1:
		return []int{0}, nil
	}
	return nil, usagef("rank %d is number %d of its machine's (LOCAL_RANK), which has %d GPUs, counted from 0: a process is a rank with a GPU of its own", peers.Rank(), local, visible)
}

// clusterOfGPU returns the built-in cluster of the first GPU, or nil if there is none. Names of GPUs are whole words: a GH200 has
// neither the memory of an H200 nor its nodes. Nor has a part of a GPU (MIG) the rates of the whole, or a card (PCIe, NVL) of
// Hopper those of a module: an H100 PCIe has 114 multiprocessors, not 132.
func clusterOfGPU(d driver.Driver) (*cost.Cluster, error) {
	name, err := d.DeviceName(0)
	if err != nil {
		return nil, err
	}
	words := strings.Fields(name)
	card := slices.Contains(words, "PCIe") || slices.Contains(words, "NVL")
	if slices.Contains(words, "MIG") || card && (slices.Contains(words, "H100") || slices.Contains(words, "H200")) {
		return nil, nil
	}
	for _, known := range [][2]string{
		{"B200", "b200"}, {"H200", "h200-autopar"}, {"H100", "h100-autopar"}, {"A100-SXM4-40GB", "a100-40g"}, {"A100-PCIE-40GB", "a100-40g"}, {"A100", "a100-80g"}, {"A10G", "a10g"},
	} {
		if strings.Contains(" "+name, " "+known[0]) {
			return cost.Load(known[1])
		}
	}
	return nil, nil
}
