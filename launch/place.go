// Package launch makes one job of several processes: which rank each is, how they
// find each other, and how they learn that one of them has failed.
//
// A launcher (torchrun, mpirun, srun, or `autopar launch`) gives every process its
// [Place] by environment variables. [Join] brings them together over TCP at the
// address of rank 0 and returns their [Peers]: small messages from all to all
// ([Peers.Gather]), a connection between any two ([Peers.Connect]), and the news of a
// failure anywhere ([Peers.Failed]). What a process leaves in [Place.Memory] the one that
// [Agent] starts in its place finds there. Every wait ends, and its error names the ranks, the
// address and the seconds.
//
// Whoever can reach the ports can join: the network of a job is trusted, as with
// torchrun, MPI and NCCL.
package launch

import (
	"fmt"
	"hash/fnv"
	"net"
	"strconv"
	"strings"
)

// Place is a process among those of a job.
type Place struct {
	Rank, World int
	Addr        string // host:port at which rank 0 listens; "" for a process that is alone
	// Node tells machines apart that cannot be told apart by themselves: processes
	// with different ones do not share memory. "" leaves it to the machine's identity.
	Node string
	// Restart counts how often the job has been started anew. Processes of
	// different starts do not join each other.
	Restart int
	// Memory is the descriptor of a file of memory that the launcher keeps for whoever has this place, over
	// restarts; 0 is none.
	Memory int
}

// EnvError is a variable of the environment that makes no sense.
type EnvError struct{ Name, Value, Msg string }

func (e *EnvError) Error() string { return fmt.Sprintf("%s is %q, %s", e.Name, e.Value, e.Msg) }

// defaultPort is torchrun's.
const defaultPort = 29500

// dialects are the launchers' words for rank and number of processes, and the variable that
// names the job, from which the port follows where MASTER_PORT does not say it.
var dialects = [...]struct{ rank, world, job string }{
	{"RANK", "WORLD_SIZE", ""},
	{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE"},
	{"PMI_RANK", "PMI_SIZE", ""},
	{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID"}, // those of srun: a batch script has the first, too
}

// PlaceFrom reads the variables of torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT,
// GROUP_RANK, TORCHELASTIC_RESTART_COUNT), or of Open MPI, MPICH's Hydra or Slurm with
// MASTER_ADDR and MASTER_PORT where they are set. Without any, the process is alone: rank 0
// of 1. A variable that makes no sense is an [*EnvError].
func PlaceFrom(env func(string) string) (Place, error) {
	var first *EnvError
	number := func(name string, least, below int) int {
		n, err := strconv.Atoi(env(name))
		if (err != nil || n < least || n >= below) && first == nil {
			first = &EnvError{name, env(name), fmt.Sprintf("want a number of %d to %d", least, below-1)}
		}
		return n
	}
	for i, d := range dialects {
		if env(d.world) == "" && (i > 0 || env(d.rank) == "") {
			continue
		}
		p := Place{World: number(d.world, 1, 1<<20)}
		if env(memoryVariable) != "" {
			p.Memory = number(memoryVariable, firstExtra, 1<<20)
		}
		if p.Rank = number(d.rank, 0, max(1, p.World)); first == nil && p.World > 1 {
			port := defaultPort
			if env("MASTER_PORT") != "" || i == 0 {
				port = number("MASTER_PORT", 1, 1<<16)
			} else if d.job != "" && env(d.job) != "" {
				port = portOf(env(d.job))
			}
			host := masterHost(env)
			if host == "" && first == nil {
				first = &EnvError{"MASTER_ADDR", "", "want the host of rank 0"}
			}
			p.Addr, p.Node = net.JoinHostPort(host, strconv.Itoa(port)), env("GROUP_RANK")
			if env("TORCHELASTIC_RESTART_COUNT") != "" {
				p.Restart = number("TORCHELASTIC_RESTART_COUNT", 0, 1<<20)
			}
		}
		if first != nil {
			return Place{}, first
		}
		return p, nil
	}
	return Place{World: 1}, nil
}

// portOf draws a port from the name of a job, so that two jobs on a machine do not meet.
func portOf(job string) int {
	h := fnv.New32a()
	h.Write([]byte(job))
	return 20000 + int(h.Sum32()%10000)
}

// masterHost is the host of rank 0: what MASTER_ADDR says, the first of a Slurm step's nodes,
// or this one when Open MPI or Hydra has started all processes here.
func masterHost(env func(string) string) string {
	switch local := env("OMPI_COMM_WORLD_LOCAL_SIZE") + env("MPI_LOCALNRANKS"); {
	case env("MASTER_ADDR") != "":
		return env("MASTER_ADDR")
	case local != "" && local == env("OMPI_COMM_WORLD_SIZE")+env("PMI_SIZE"):
		return "127.0.0.1"
	}
	nodes := env("SLURM_STEP_NODELIST") // a,b or a[01-03,7],b
	at := strings.IndexAny(nodes, "[,")
	if at < 0 || nodes[at] == ',' {
		host, _, _ := strings.Cut(nodes, ",")
		return host
	}
	number := nodes[at+1:]
	return nodes[:at] + number[:max(0, strings.IndexAny(number, "-,]"))]
}
