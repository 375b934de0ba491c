// Package launch makes one job of several processes: which rank each is, how they find each other,
// and how they learn that one of them has failed.
//
// A launcher (torchrun, mpirun, srun, or `autopar launch`) gives every process its [Place] by
// environment variables. [Join] connects the processes over TCP at the address of rank 0 and
// returns their [Peers]. These carry small messages from all to all ([Peers.Gather]), make a
// connection between any two processes ([Peers.Connect]), and tell of a failure anywhere
// ([Peers.Failed]). An [Agent] is the launcher of autopar: it starts the processes of one machine,
// watches them, and starts the job again after a failure. What a process leaves in [Place.Memory]
// is there for the process that an agent starts in its place. Every wait ends, and its error names
// the ranks, the address and the seconds.
//
// Whoever can reach the ports can join: the network of a job is trusted, as with torchrun, MPI and
// NCCL.
//
// place.go reads the environment, join.go brings processes together, peers.go is what they then
// have, connect.go connects them pairwise. agent.go runs on every machine, and host.go, on machine
// 0, leads the agents. memory.go has the files in memory that outlive a process.
package launch

import (
	"fmt"
	"hash/fnv"
	"net"
	"strconv"
	"strings"
)

// Place is the place of a process in a job.
type Place struct {
	Rank, World int
	Addr        string // host:port at which rank 0 listens; "" if the process is alone
	// Node distinguishes machines whose identity does not: processes with different values do not
	// share memory. "" leaves it to the machine's identity.
	Node string
	// Restart counts how often the job has been started again. Processes of different starts do not
	// join.
	Restart int
	// Memory is the descriptor of a file in memory that the launcher keeps for this place over
	// restarts; 0 is none.
	Memory int
	// Listener is the descriptor of a socket that listens at Addr, which the launcher of rank 0 has
	// opened; 0 is none.
	Listener int
}

// EnvError is an environment variable with an invalid value.
type EnvError struct{ Name, Value, Msg string }

func (e *EnvError) Error() string { return fmt.Sprintf("%s is %q, %s", e.Name, e.Value, e.Msg) }

// defaultPort is torchrun's default.
const defaultPort = 29500

// dialects are the launchers' variables for rank and number of processes, and those that name the
// job and the step of it, from which the port follows if MASTER_PORT is not set.
var dialects = [...]struct{ rank, world, job, step string }{
	{"RANK", "WORLD_SIZE", "", ""},
	{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE", ""},
	{"PMI_RANK", "PMI_SIZE", "", ""},
	{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID", "SLURM_STEP_ID"}, // set by srun; a batch script has SLURM_PROCID too
}

// PlaceFrom reads the variables of torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT,
// GROUP_RANK, TORCHELASTIC_RESTART_COUNT), or those of Open MPI, MPICH's Hydra or Slurm, with
// MASTER_ADDR and MASTER_PORT if they are set. At MASTER_PORT torchrun itself may listen, which it
// says by TORCHELASTIC_USE_AGENT_STORE: the port then follows from that one. Without any of them the
// process is alone: rank 0 of 1. An invalid value is an [*EnvError].
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
		if env(listenerVariable) != "" {
			p.Listener = number(listenerVariable, firstExtra, 1<<20)
		}
		if p.Rank = number(d.rank, 0, max(1, p.World)); first == nil && p.World > 1 {
			port := defaultPort
			if env("MASTER_PORT") != "" || i == 0 {
				port = number("MASTER_PORT", 1, 1<<16)
				if env("TORCHELASTIC_USE_AGENT_STORE") == "True" && env(agentVariable) == "" { // torchrun itself listens there
					port = portOf(fmt.Sprint("torchrun.", port))
				}
			} else if d.job != "" && env(d.job) != "" {
				name := env(d.job)
				if d.step != "" {
					name += "." + env(d.step)
				}
				port = portOf(name)
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

// portOf derives a port from the name of a job, so that two jobs on a machine do not collide.
func portOf(job string) int {
	h := fnv.New32a()
	h.Write([]byte(job))
	return 20000 + int(h.Sum32()%10000)
}

// masterHost returns the host of rank 0: MASTER_ADDR, or the first node of a Slurm step, or this
// one if Open MPI or Hydra has started all processes here.
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
