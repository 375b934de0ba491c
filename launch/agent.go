package launch

import (
	"bytes"
	"context"
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

// Agent starts the processes of one machine, with the variables of torchrun, and sees that they
// end together.
type Agent struct {
	// Exe is the program, Args its arguments, the name first, for the given start of the job
	// (0 is the first).
	Exe  string
	Args func(start int) []string
	// Procs processes are started on each of Nodes machines; this is number Node of them.
	Procs, Nodes, Node int
	// Addr is host:port for rank 0, which is on machine 0. "" is a free port of this machine, for
	// a job that has no other.
	Addr string
	// MaxRestarts is how often the job is started anew when a process has failed. One that says by
	// its exit status that its input is wrong (2), or that there is no plan (3), is not.
	MaxRestarts int
	// Stdout takes the output of rank 0, Stderr all other, with the rank before each line.
	Stdout, Stderr io.Writer
	// Note, when set, is told what the agent does.
	Note func(format string, args ...any)
}

// ExitError is the end of a process of a job that was not a success.
type ExitError struct {
	Rank   int
	Status int            // exit status, -1 after a signal
	Signal syscall.Signal // that ended it, or 0
}

func (e *ExitError) Error() string {
	if e.Signal != 0 {
		return fmt.Sprintf("rank %d was ended by signal %d (%v)", e.Rank, int(e.Signal), e.Signal)
	}
	return fmt.Sprintf("rank %d ended with exit status %d", e.Rank, e.Status)
}

// final reports whether another start would end in the same way.
func (e *ExitError) final() bool { return e.Status == 2 || e.Status == 3 }

// grace is how long the processes that are left have, after the first failure, to say what they
// know and end.
const grace = 10 * time.Second

// Run runs the job to its end. When ctx is cancelled it interrupts the processes and waits for
// them. The error of a job that has failed is an [*ExitError].
func (a *Agent) Run(ctx context.Context) error {
	for start := 0; ; start++ {
		err := a.run(ctx, start)
		var exit *ExitError
		if err == nil || ctx.Err() != nil || !errors.As(err, &exit) || exit.final() {
			return err
		}
		if start == a.MaxRestarts {
			if start > 0 {
				err = fmt.Errorf("%w, after %d restarts", err, start)
			}
			return err
		}
		a.note("%v: restart %d of at most %d", err, start+1, a.MaxRestarts)
	}
}

func (a *Agent) note(format string, args ...any) {
	if a.Note != nil {
		a.Note(format, args...)
	}
}

// ended is how a process has ended.
type ended struct {
	rank int
	err  error
}

// run starts the processes once and returns when all have ended.
func (a *Agent) run(ctx context.Context, start int) error {
	addr := a.Addr
	if addr == "" {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		addr = listener.Addr().String()
		listener.Close()
	}
	// The system ends the processes when the thread that has started them ends.
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	var out sync.Mutex
	var running []*exec.Cmd
	exits := make(chan ended, a.Procs)
	kill := func() {
		for _, cmd := range running {
			_ = cmd.Process.Kill() // one that has ended is no matter
		}
	}
	var first error
	var pids []int
	for i := range a.Procs {
		cmd, err := a.command(start, i, addr, &out)
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			first = err
			kill()
			break
		}
		running = append(running, cmd)
		pids = append(pids, cmd.Process.Pid)
		rank := a.Node*a.Procs + i
		go func() { exits <- ended{rank, cmd.Wait()} }()
	}
	if first == nil {
		a.note("ranks %d to %d are processes %v", a.Node*a.Procs, a.Node*a.Procs+a.Procs-1, pids)
	}
	stop := ctx.Done()
	var late <-chan time.Time
	for left := len(running); left > 0; {
		select {
		case e := <-exits:
			left--
			if err := exitOf(e); err != nil && (first == nil || worse(err, first)) {
				first = err
			}
			if first != nil && late == nil {
				late = time.After(grace)
			}
		case <-stop:
			stop = nil
			for _, cmd := range running {
				if interrupts {
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
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		failed.Signal = status.Signal()
	}
	return failed
}

// worse reports whether an exit tells more of the cause than that before it: wrong input, then
// a signal, then a failure, which may follow from that of another.
func worse(now, before error) bool {
	weight := func(err error) int {
		var exit *ExitError
		switch {
		case !errors.As(err, &exit):
			return 3
		case exit.final():
			return 2
		case exit.Signal != 0 && exit.Signal != syscall.SIGKILL: // which may be this agent's
			return 1
		}
		return 0
	}
	return weight(now) > weight(before)
}

func (a *Agent) command(start, local int, addr string, out *sync.Mutex) (*exec.Cmd, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	rank := a.Node*a.Procs + local
	cmd := &exec.Cmd{Path: a.Exe, Args: a.Args(start), SysProcAttr: childAttr(), Env: os.Environ(), WaitDelay: grace}
	for _, v := range []struct {
		name  string
		value any
	}{
		{"RANK", rank}, {"WORLD_SIZE", a.Procs * a.Nodes}, {"LOCAL_RANK", local}, {"LOCAL_WORLD_SIZE", a.Procs}, {"GROUP_RANK", a.Node},
		{"MASTER_ADDR", host}, {"MASTER_PORT", port}, {"TORCHELASTIC_RESTART_COUNT", start},
	} {
		cmd.Env = append(cmd.Env, fmt.Sprint(v.name, "=", v.value))
	}
	lines := &lineWriter{to: a.Stderr, before: "[rank " + strconv.Itoa(rank) + "] ", mu: out}
	cmd.Stderr = lines
	if cmd.Stdout = lines; rank == 0 {
		cmd.Stdout = &lineWriter{to: a.Stdout, mu: out}
	}
	return cmd, nil
}

// lineWriter writes whole lines, with something before each.
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
		if _, err := fmt.Fprintf(w.to, "%s%s\n", w.before, line); err != nil {
			return 0, err
		}
		w.rest = rest
	}
}
