package launch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	goruntime "runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Agent sees to the processes of one machine of a job. It agrees with the agents of the other
// machines on each start of the job, starts the processes, with the variables of torchrun, and
// sees that they end together.
type Agent struct {
	// Exe is the program, Args its arguments, the name first.
	Exe  string
	Args func(Start) ([]string, error)
	// Procs processes are started on every machine.
	Procs int
	// The job starts when Most machines are there, or Least for a while, and starts anew when one
	// comes or goes. This one is number Node, below Most.
	Least, Most, Node int
	// Addr is host:port of the agent of machine 0, which all others come to and the job does not
	// outlive. "" is for a job of one machine.
	Addr string
	// Brief, on machine 0, makes the [Start.Brief] of a start that is otherwise complete.
	Brief func(Start) ([]byte, error)
	// MaxRestarts is how often the job is started anew when a process or a machine has failed. What
	// becomes of the job follows from how a process has ended:
	//
	//	a signal, or a crash of Go's runtime    it is started anew
	//	a failure (status 1)                    it is started anew: it may follow from another's end
	//	a machine is gone                       it is started anew on those that are left, if these are enough
	//	wrong input (2), no plan (3)            it ends
	//	a failure that would come again         it ends: numbers that are not finite, or a BUG of the program
	//
	// The last two are those of which the process says so: see [ExitStatus].
	MaxRestarts int
	// Patience is how long machines wait for each other, and how long the processes that are left have to end when
	// another has ended well.
	Patience time.Duration
	// Stdout takes the output of rank 0, Stderr all other, with the rank before each line.
	Stdout, Stderr io.Writer
	// Note, when set, is told what the agent does.
	Note func(format string, args ...any)
}

// Start is one start of a job, as an agent hears of it.
type Start struct {
	Number      int    // 0 is the first
	Nodes, Node int    // machines that take part, and which of them this is
	Addr        string // host:port where rank 0 will listen
	Brief       []byte // what all should know of this start
	Memory      bool   // each process gets a file of memory that outlives it
}

// ExitError is the end of a process of a job that was not a success.
type ExitError struct {
	Rank   int
	Status int            // exit status, -1 after a signal
	Signal syscall.Signal // that ended it, or 0
	Late   time.Duration  // the signal is its agent's: it had not ended so long after another
	Crash  bool           // Go's runtime has ended it, with status 2
	Final  bool           // it has said that another start would end in the same way
}

func (e *ExitError) Error() string {
	if e.Late > 0 {
		return fmt.Sprintf("rank %d had not ended %v after the job was to end", e.Rank, e.Late)
	}
	if e.Signal != 0 {
		return fmt.Sprintf("rank %d was ended by signal %d (%v)", e.Rank, int(e.Signal), e.Signal)
	}
	if e.Crash {
		return fmt.Sprintf("rank %d has crashed (exit status %d)", e.Rank, e.Status)
	}
	if e.Final && e.Status < crashed {
		return fmt.Sprintf("rank %d ended with exit status %d, as it would again", e.Rank, e.Status)
	}
	return fmt.Sprintf("rank %d ended with exit status %d", e.Rank, e.Status)
}

const (
	// agentVariable says to a process that an agent has started it.
	agentVariable = "AUTOPAR_AGENT"
	// said is what such a process adds to the status by which it says that it would end so again.
	said     = 64
	mostSaid = 3 // the last such status
	// crashed is with what Go's runtime ends a program that cannot go on.
	crashed = 2
)

// ExitStatus is with what a program ends that would end so again if it is final: so that the [Agent] that has started it, if
// one has, does not start it again, and tells what it says of its input from a crash.
func ExitStatus(status int, final bool) int {
	if final && ByAgent() {
		return said + status
	}
	return status
}

// ByAgent reports whether an [Agent] has started this process.
func ByAgent() bool { return os.Getenv(agentVariable) != "" }

// grace is how long the processes that are left have, after the first failure, to say what they
// know and end.
const grace = 10 * time.Second

// Run runs the job to its end. When ctx is cancelled it interrupts the processes everywhere and
// waits for them; the job then goes on without this machine if enough are left, and is
// [context.Canceled] everywhere if not. The error of a job that has failed is an [*ExitError] or a [*MachineError].
func (a *Agent) Run(ctx context.Context) error {
	if a.Node > 0 {
		conn, err := a.come(ctx, a.Addr)
		if err != nil {
			return err
		}
		return a.serve(ctx, conn)
	}
	h, err := newHost(a)
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() {
		conn, err := a.come(context.WithoutCancel(ctx), h.listener.Addr().String())
		if err == nil {
			err = a.serve(ctx, conn)
		}
		served <- err
	}()
	err = h.run()
	<-served // what it says the host knows
	return err
}

func (a *Agent) note(format string, args ...any) {
	if a.Note != nil {
		a.Note(format, args...)
	}
}

// come connects with the agent of machine 0, again and again while it is not there.
func (a *Agent) come(ctx context.Context, addr string) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, a.Patience)
	defer cancel()
	start := time.Now()
	conn, refused, err := reach(ctx, addr, a.hello())
	switch {
	case refused:
		err = fmt.Errorf("launch: machine %d is turned away by machine 0 at %s: %w", a.Node, addr, err)
	case err != nil:
		err = fmt.Errorf("launch: machine %d has no answer of machine 0 at %s after %.1f s: %w", a.Node, addr, time.Since(start).Seconds(), err)
	}
	return conn, err
}

// serve does what the host says until it says how the job has ended.
func (a *Agent) serve(ctx context.Context, host *link) error {
	defer host.Close()
	type message struct {
		kind byte
		text []byte
		err  error
	}
	said := make(chan message)
	over := make(chan struct{})
	defer close(over)
	go func() {
		for {
			kind, text, err := host.read()
			select {
			case said <- message{kind, text, err}:
			case <-over:
			}
			if err != nil {
				return
			}
		}
	}()
	var memory memories
	defer func() { memory.close() }()
	var stop chan byte // of the processes that run
	exited := make(chan error, 1)
	leave := ctx.Done()
	for {
		select {
		case <-leave:
			leave = nil
			host.write(kindLeave, nil)
		case err := <-exited:
			stop = nil
			host.write(kindEnded, outcomeOf(err))
		case m := <-said:
			switch {
			case m.err != nil:
				if stop != nil {
					stop <- stopNow
					<-exited
				}
				return fmt.Errorf("launch: the agent of machine 0 at %s is gone: %w", a.Addr, m.err)
			case m.kind == kindBye:
				return readOutcome(m.text)
			case m.kind == kindStop && stop != nil && len(m.text) == 1:
				stop <- m.text[0]
			case m.kind == kindStart && stop == nil:
				stop = make(chan byte, 3) // each reason comes once at most
				go func(stop <-chan byte) { exited <- a.start(m.text, &memory, stop) }(stop)
			}
		}
	}
}

// The ways in which the processes of a start are stopped before their end.
const (
	stopGently byte = 'i' // they are interrupted, and save
	stopFailed byte = 'f' // another has failed: they have a while to say what they know
	stopNow    byte = 'k'
)

// hello is what an agent says of itself.
func (a *Agent) hello() []byte { return fmt.Appendf(nil, "autopar agent 1 %d %d", a.Node, a.Procs) }

// outcome is how the processes of a machine, or the job, have ended, as agents tell each other.
type outcome struct {
	Exit        *ExitError `json:",omitempty"`
	Interrupted bool       `json:",omitempty"`
	Text        string     `json:",omitempty"` // of any other failure
}

func outcomeOf(err error) []byte {
	var o outcome
	switch {
	case err == nil || errors.As(err, &o.Exit):
	case errors.Is(err, context.Canceled):
		o.Interrupted = true
	default:
		o.Text = err.Error()
	}
	b, err := json.Marshal(o)
	if err != nil {
		panic(fmt.Sprint("BUG: launch: an outcome has no text: ", err))
	}
	return b
}

func readOutcome(b []byte) error {
	var o outcome
	switch err := json.Unmarshal(b, &o); {
	case err != nil:
		return fmt.Errorf("launch: another agent does not speak as this version of autopar: %w", err)
	case o.Exit != nil:
		return o.Exit
	case o.Interrupted:
		return context.Canceled
	case o.Text != "":
		return errors.New(o.Text)
	}
	return nil
}

// ended is how a process has ended.
type ended struct {
	rank int
	err  error
}

// start starts the processes and returns when all have ended. What comes from stop ends them
// earlier.
func (a *Agent) start(text []byte, memory *memories, stop <-chan byte) error {
	var of Start
	if err := json.Unmarshal(text, &of); err != nil {
		return fmt.Errorf("launch: machine 0 does not speak as this version of autopar: %w", err)
	}
	args, err := a.Args(of)
	if err != nil {
		return err
	}
	if of.Memory {
		if err := memory.grow(a.Procs); err != nil {
			return err
		}
	}
	// The system ends the processes when the thread that has started them ends.
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	var mu sync.Mutex
	var running []*exec.Cmd
	var pids []int
	exits := make(chan ended, a.Procs)
	killed := false
	kill := func() {
		killed = true
		for _, cmd := range running {
			_ = cmd.Process.Kill() // one that has ended is no matter
		}
	}
	var first error
	rank := of.Node * a.Procs
	for i := range a.Procs {
		cmd, out, err := a.command(of, args, i, &mu)
		if err == nil {
			files, env := memory.of(i)
			cmd.ExtraFiles, cmd.Env = files, append(cmd.Env, env...)
			err = cmd.Start()
		}
		if err != nil {
			first = err
			kill()
			break
		}
		running = append(running, cmd)
		pids = append(pids, cmd.Process.Pid)
		go func() {
			err := cmd.Wait()
			out.flush()
			exits <- ended{rank + i, err}
		}()
	}
	if first == nil {
		a.note("ranks %d to %d are processes %v", rank, rank+a.Procs-1, pids)
	}
	var late <-chan time.Time
	var limit time.Duration
	within := func(d time.Duration) {
		if limit == 0 || d < limit {
			limit, late = d, time.After(d)
		}
	}
	for left := len(running); left > 0; {
		select {
		case e := <-exits:
			left--
			err := exitOf(e)
			if exit, ok := err.(*ExitError); ok && killed && exit.Signal == syscall.SIGKILL {
				exit.Late = limit
			}
			if err != nil && (first == nil || worse(err, first)) {
				first = err
			}
			if first != nil {
				within(grace)
			} else {
				within(a.Patience)
			}
		case how := <-stop:
			switch {
			case how == stopNow:
				kill()
			case how == stopFailed:
				within(grace)
			case how == stopGently && interrupts:
				for _, cmd := range running {
					_ = cmd.Process.Signal(os.Interrupt)
				}
			}
		case <-late:
			kill()
		}
	}
	return first
}

// exitOf makes an error of how a process has ended, nil of a success.
func exitOf(e ended) error {
	var exit *exec.ExitError
	if !errors.As(e.err, &exit) {
		return e.err
	}
	failed := &ExitError{Rank: e.rank, Status: exit.ExitCode()}
	failed.Crash = failed.Status == crashed
	if n := failed.Status - said; n >= 1 && n <= mostSaid {
		failed.Status, failed.Final = n, true
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		failed.Signal = status.Signal()
	}
	return failed
}

// worse reports whether an error tells more of the cause than that before it: what no process
// can mend, then a signal, a crash or the loss of a machine, then a failure, which may follow from that of
// another.
func worse(now, before error) bool {
	weight := func(err error) int {
		var exit *ExitError
		var lost *MachineError
		switch {
		case final(err):
			return 2
		case errors.As(err, &lost), errors.As(err, &exit) && (exit.Signal != 0 && exit.Late == 0 || exit.Crash):
			return 1
		}
		return 0
	}
	return weight(now) > weight(before)
}

// final reports whether another start would end in the same way.
func final(err error) bool {
	var exit *ExitError
	if errors.As(err, &exit) {
		return exit.Final
	}
	var lost *MachineError
	return !errors.As(err, &lost)
}

// command is that of a process, and where its output goes.
func (a *Agent) command(of Start, args []string, local int, mu *sync.Mutex) (*exec.Cmd, *output, error) {
	host, port, err := net.SplitHostPort(of.Addr)
	if err != nil {
		return nil, nil, err
	}
	rank := of.Node*a.Procs + local
	cmd := &exec.Cmd{Path: a.Exe, Args: args, SysProcAttr: childAttr(), Env: os.Environ(), WaitDelay: grace}
	for _, v := range []struct {
		name  string
		value any
	}{
		{"RANK", rank}, {"WORLD_SIZE", a.Procs * of.Nodes}, {"LOCAL_RANK", local}, {"LOCAL_WORLD_SIZE", a.Procs}, {"GROUP_RANK", of.Node},
		{"MASTER_ADDR", host}, {"MASTER_PORT", port}, {"TORCHELASTIC_RESTART_COUNT", of.Number}, {agentVariable, 1},
	} {
		cmd.Env = append(cmd.Env, fmt.Sprint(v.name, "=", v.value))
	}
	out := &output{err: lineWriter{to: a.Stderr, before: "[rank " + strconv.Itoa(rank) + "] ", mu: mu}}
	cmd.Stderr = &out.err
	if cmd.Stdout = cmd.Stderr; rank == 0 {
		out.out = lineWriter{to: a.Stdout, mu: mu}
		cmd.Stdout = &out.out
	}
	return cmd, out, nil
}

// output is that of a process.
type output struct{ out, err lineWriter }

// flush writes what the process has left of a line.
func (o *output) flush() {
	for _, w := range []*lineWriter{&o.out, &o.err} {
		if len(w.rest) > 0 {
			_, _ = w.Write([]byte("\n"))
		}
	}
}

// lineWriter writes whole lines, with something before each. What cannot be written is left out: a writer that fails would
// close the pipe of a process, which would die of the next thing that it says.
type lineWriter struct {
	to     io.Writer
	before string
	mu     *sync.Mutex // of all that write to one place
	rest   []byte
}

func (w *lineWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rest = append(w.rest, b...)
	for {
		line, rest, ok := bytes.Cut(w.rest, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		_, _ = fmt.Fprintf(w.to, "%s%s\n", w.before, line)
		w.rest = rest
	}
}
