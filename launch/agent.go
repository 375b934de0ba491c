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
	"os/signal"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Agent starts and watches the processes of one machine of a job. It agrees with the agents of the
// other machines on each start of the job, starts the processes with torchrun's variables, and
// makes them end together.
type Agent struct {
	// Exe is the program, Args its arguments, including its name.
	Exe  string
	Args func(Start) ([]string, error)
	// Procs is the number of processes on every machine.
	Procs int
	// The job starts when Most machines have come, or when at least Least have and no more come for
	// a while. It starts again when a machine comes or goes, with as many machines as Brief has a
	// plan for. This machine is number Node, below Most.
	Least, Most, Node int
	// Addr is host:port of the agent of machine 0, to which all others connect. The job ends with
	// that agent. "" is for a job of one machine.
	Addr string
	// Brief, on machine 0, returns the [Start.Brief] of a start that is otherwise complete. If it fails with more than Least machines
	// it is asked again with one fewer.
	Brief func(Start) ([]byte, error)
	// Again, if set, is asked on machine 0 when all processes have ended well. If it returns true they
	// are started once more, which is no restart after a failure. Otherwise its error is how the job
	// ends, on every machine: [context.Canceled] if somebody has interrupted a process.
	Again func() (bool, error)
	// MaxRestarts bounds how often the job is started again after a process or a machine has
	// failed. Whether it is depends on how a process has ended:
	//
	//	a signal, or a crash of Go's runtime    it is started again
	//	a failure (status 1)                    it is started again: it may follow from another process's end
	//	a machine is gone                       it is started again on the others, if these are enough
	//	wrong input (2), no plan (3)            it ends
	//	a failure that would come again         it ends: numbers that are not finite, or a BUG of the program
	//	an interrupt, with nothing saved        it ends, and is interrupted as by ctx
	//
	// In the last three cases the process says so: see [ExitStatus] and [Interrupted].
	MaxRestarts int
	// Patience bounds how long machines wait for each other, and how long other processes may still
	// run after one has ended well.
	Patience time.Duration
	// Stdout takes the output of rank 0, Stderr all other output, each line with its rank in front.
	Stdout, Stderr io.Writer
	// Note, if set, is told what the agent does.
	Note func(format string, args ...any)

	listener atomic.Pointer[os.File] // on machine 0: for the next rank 0
}

// Start is one start of a job, as the host describes it to an agent.
type Start struct {
	Number      int    // 0 is the first
	Restarts    int    // how many starts, up to this one, followed a failure
	Nodes, Node int    // how many machines take part, and the number of this one among them
	Addr        string // host:port where rank 0 will listen
	Brief       []byte // information for all processes of this start
	Memory      bool   // each process gets a file in memory that outlives it
}

// ExitError is the end of a process that was not a success.
type ExitError struct {
	Rank   int
	Status int            // exit status, -1 after a signal
	Signal syscall.Signal // that ended it, or 0
	Late   time.Duration  // if not 0, its agent killed it: it had not ended this long after the job was to end
	Crash  bool           // Go's runtime has ended it, with status 2
	Final  bool           // it has said that another start would end in the same way

	// Hung are other ranks that their agents killed, HungFor after the job was to end. If this one has
	// given up waiting, it was perhaps for them.
	Hung    []int         `json:",omitempty"`
	HungFor time.Duration `json:",omitempty"`
}

func (e *ExitError) Error() string {
	if len(e.Hung) > 0 {
		ranks := "rank"
		if len(e.Hung) > 1 {
			ranks = "ranks"
		}
		return fmt.Sprintf("%s (%s %s had not ended %v after the job was to end)", e.ended(), ranks, strings.ReplaceAll(strings.Trim(fmt.Sprint(e.Hung), "[]"), " ", ", "), e.HungFor)
	}
	return e.ended()
}

// ended is how the process itself has ended.
func (e *ExitError) ended() string {
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
	// agentVariable tells a process that an agent has started it.
	agentVariable = "AUTOPAR_AGENT"
	// Such a process adds said to its status to say that another start would end in the same way.
	said     = 64
	mostSaid = 3 // the largest status that it adds said to
	// crashed is the status with which Go's runtime ends a program.
	crashed = 2
)

// Interrupted is the status with which a process ends that an [Agent] has started, if it was interrupted before there was anything
// to save. One that has saved ends with status 0.
const Interrupted = said

// ExitStatus returns the status with which a program should end. If final is set another start
// would end in the same way; the status then tells the [Agent] that started it, if one has, not to
// start it again, and that it is not a crash.
func ExitStatus(status int, final bool) int {
	if final && ByAgent() {
		return said + status
	}
	return status
}

// ByAgent reports whether an [Agent] has started this process.
func ByAgent() bool { return os.Getenv(agentVariable) != "" }

// grace is how long other processes have, after the first failure, to report what they know and
// end.
const grace = 10 * time.Second

// Run runs the job to its end. If ctx is cancelled it interrupts the processes everywhere and waits
// for them. The job then goes on without this machine if enough machines are left; otherwise the
// result is [context.Canceled] everywhere. The error of a job that has failed is an [*ExitError] or
// a [*MachineError], that of a machine which cannot take part a [*RefusedError].
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
	<-served // the host knows what it returns
	return err
}

func (a *Agent) note(format string, args ...any) {
	if a.Note != nil {
		a.Note(format, args...)
	}
}

// RefusedError says that machine 0 has turned a machine away, which was started in another way.
type RefusedError struct {
	Node int
	Addr string // of machine 0
	Err  error  // what is different
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("launch: machine %d is turned away by machine 0 at %s: %v", e.Node, e.Addr, e.Err)
}

// Unwrap returns the cause.
func (e *RefusedError) Unwrap() error { return e.Err }

// come connects with the agent of machine 0. It tries again while that is not there.
func (a *Agent) come(ctx context.Context, addr string) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, a.Patience)
	defer cancel()
	start := time.Now()
	conn, refused, err := reach(ctx, addr, a.hello(), nil)
	switch {
	case refused:
		err = &RefusedError{a.Node, addr, err}
	case err != nil:
		err = fmt.Errorf("launch: machine %d has no answer of machine 0 at %s after %.1f s: %w", a.Node, addr, time.Since(start).Seconds(), err)
	}
	return conn, err
}

// serve does what the host says, until that says how the job has ended.
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
	var stop chan byte // receives how to stop the running processes
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
			case m.kind == kindNote:
				a.note("%s", m.text)
			case m.kind == kindStop && stop != nil && len(m.text) == 1:
				stop <- m.text[0]
			case m.kind == kindStart && stop == nil:
				stop = make(chan byte, 3) // each way comes at most once
				go func(stop <-chan byte) { exited <- a.start(m.text, &memory, stop) }(stop)
			}
		}
	}
}

// The ways in which processes are stopped before their end.
const (
	stopGently byte = 'i' // interrupt them, so that they save
	stopFailed byte = 'f' // another process has failed: they have grace to report what they know
	stopNow    byte = 'k'
)

// hello identifies an agent.
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

// ended is the end of a process.
type ended struct {
	rank int
	err  error
}

// start starts the processes and returns when all have ended. A message from stop ends them
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
	// The system kills the processes when the thread that started them ends.
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	printer := startPrinter()
	defer func() {
		if lost := printer.end(); lost > 0 {
			a.note("%d lines of output are left out: those before them were not read in time", lost)
		}
	}()
	var running []*exec.Cmd
	var pids []int
	exits := make(chan ended, a.Procs)
	killed := false
	kill := func() {
		killed = true
		for _, cmd := range running {
			_ = cmd.Process.Kill() // an error only says that it has ended
		}
	}
	interrupt := func() {
		for _, cmd := range running {
			if interrupts {
				_ = cmd.Process.Signal(os.Interrupt)
			}
		}
	}
	var first, interrupted error
	wanted := false // that they are interrupted
	rank := of.Node * a.Procs
	for i := range a.Procs {
		cmd, out, err := a.command(of, args, i, printer)
		if err == nil {
			files, env := memory.of(i)
			listener := a.listener.Swap(nil)
			if listener != nil && a.Procs*of.Nodes > 1 { // i is 0; a rank that is alone listens nowhere
				files, env = append(files, listener), append(env, fmt.Sprint(listenerVariable, "=", firstExtra+len(files)))
			}
			cmd.ExtraFiles, cmd.Env = files, append(cmd.Env, env...)
			err = cmd.Start()
			listener.Close() // an error only says that there is none
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
	switch {
	case first == nil && a.Procs == 1:
		a.note("rank %d is process %v", rank, pids)
	case first == nil:
		a.note("ranks %d to %d are processes %v", rank, rank+a.Procs-1, pids)
	}
	var late <-chan time.Time
	var limit time.Duration
	within := func(d time.Duration) {
		if limit == 0 || d < limit {
			limit, late = d, time.After(d)
		}
	}
	suspended := suspensions()
	defer signal.Stop(suspended)
	for left := len(running); left > 0; {
		select {
		case <-suspended:
			suspend(running)
		case e := <-exits:
			left--
			err := exitOf(e)
			if exit, ok := err.(*ExitError); ok && killed && exit.Signal == syscall.SIGKILL {
				exit.Late = limit
			}
			if errors.Is(err, context.Canceled) { // all are to end
				interrupted, err = err, nil
				interrupt()
			}
			first = together(first, err)
			if first != nil {
				within(grace)
			} else {
				within(a.Patience)
			}
		case how := <-stop:
			switch how {
			case stopNow:
				kill()
			case stopFailed:
				within(grace)
			case stopGently:
				wanted = true
				interrupt()
			}
		case <-late:
			kill()
		}
	}
	if first == nil && !wanted {
		return interrupted
	}
	return first
}

// exitOf returns the error for the end of a process, nil for a success. It is [context.Canceled] if the process was interrupted
// before there was anything to save, be it before it could handle that.
func exitOf(e ended) error {
	var exit *exec.ExitError
	switch {
	case errors.Is(e.err, exec.ErrWaitDelay): // after a success: something that it has started keeps its output open
		return nil
	case !errors.As(e.err, &exit):
		return e.err
	}
	status, _ := exit.Sys().(syscall.WaitStatus)
	if signal := status.Signal(); exit.ExitCode() == Interrupted ||
		status.Signaled() && (signal == syscall.SIGINT || signal == syscall.SIGTERM || signal == syscall.SIGHUP) {
		return context.Canceled
	}
	failed := &ExitError{Rank: e.rank, Status: exit.ExitCode()}
	failed.Crash = failed.Status == crashed
	if n := failed.Status - said; n >= 1 && n <= mostSaid {
		failed.Status, failed.Final = n, true
	}
	if status.Signaled() {
		failed.Signal = status.Signal()
	}
	return failed
}

// together returns the error of a job that has another failure besides the first, either of which may be
// nil: the one that tells more about the cause, with the ranks that hung.
func together(first, err error) error {
	switch {
	case err == nil:
		return first
	case first == nil:
		return err
	}
	if worse(err, first) {
		first, err = err, first
	}
	var main, other *ExitError
	if errors.As(first, &main) && errors.As(err, &other) {
		if other.Late > 0 {
			main.Hung, main.HungFor = append(main.Hung, other.Rank), other.Late
		}
		if len(other.Hung) > 0 {
			main.Hung, main.HungFor = append(main.Hung, other.Hung...), other.HungFor
		}
		slices.Sort(main.Hung)
	}
	return first
}

// worse reports whether an error tells more about the cause than the one before: first what no
// restart mends, then a signal, a crash or the loss of a machine, then a failure, which may follow
// from that of another process.
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
	if exit, ok := errors.AsType[*ExitError](err); ok {
		return exit.Final
	}
	_, lost := errors.AsType[*MachineError](err)
	return !lost
}

// command returns the command of a process, and the destination of its output.
func (a *Agent) command(of Start, args []string, local int, printer *printer) (*exec.Cmd, *output, error) {
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
	out := &output{err: lineWriter{to: a.Stderr, before: "[rank " + strconv.Itoa(rank) + "] ", printer: printer}}
	cmd.Stderr = &out.err
	if cmd.Stdout = cmd.Stderr; rank == 0 {
		out.out = lineWriter{to: a.Stdout, printer: printer}
		cmd.Stdout = &out.out
	}
	return cmd, out, nil
}

// output is the destination of a process's output.
type output struct{ out, err lineWriter }

// flush completes a line that the process has not.
func (o *output) flush() {
	for _, w := range []*lineWriter{&o.out, &o.err} {
		if len(w.rest) > 0 {
			_, _ = w.Write([]byte("\n"))
		}
	}
}

// lineWriter passes whole lines on to be printed, with a prefix.
type lineWriter struct {
	to      io.Writer
	before  string
	printer *printer
	rest    []byte
}

func (w *lineWriter) Write(b []byte) (int, error) {
	w.rest = append(w.rest, b...)
	for {
		line, rest, ok := bytes.Cut(w.rest, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		w.printer.print(w.to, fmt.Sprintf("%s%s\n", w.before, line))
		w.rest = rest
	}
}

// printer prints lines for processes, which do not wait for that: nobody may read them for a while, as after ^S, and a rank that
// waits keeps the others waiting. It drops what cannot be written: an error would close the process's pipe, and the process would
// die of its next output.
type printer struct {
	lines chan line
	lost  atomic.Int64
	ended chan struct{}
}

type line struct {
	to   io.Writer
	text string
}

// mostLines is how many lines may wait to be printed. Further ones are left out.
const mostLines = 1 << 16

func startPrinter() *printer {
	p := &printer{lines: make(chan line, mostLines), ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		for l := range p.lines {
			_, _ = io.WriteString(l.to, l.text)
		}
	}()
	return p
}

func (p *printer) print(to io.Writer, text string) {
	select {
	case p.lines <- line{to, text}:
	default:
		p.lost.Add(1)
	}
}

// end waits until all is printed, and returns how many lines were left out. No process prints any more.
func (p *printer) end() int64 {
	close(p.lines)
	<-p.ended
	return p.lost.Load()
}
