package launch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/launch"
	"github.com/autopar/autopar/launch/launchtest"
)

func TestPlaceFrom(t *testing.T) {
	type env = map[string]string
	for _, tt := range []struct {
		env  env
		want launch.Place
		err  string
	}{
		{nil, launch.Place{World: 1}, ""},
		{env{"RANK": "0", "WORLD_SIZE": "1"}, launch.Place{World: 1}, ""},
		{env{"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "::1", "MASTER_PORT": "29501", "GROUP_RANK": "1", "TORCHELASTIC_RESTART_COUNT": "2"},
			launch.Place{Rank: 3, World: 4, Addr: "[::1]:29501", Node: "1", Restart: 2}, ""},
		{env{"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "29500", "TORCHELASTIC_USE_AGENT_STORE": "True"},
			launch.Place{World: 4, Addr: "a:22056"}, ""}, // torchrun itself listens at 29500
		{env{"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "29500", "TORCHELASTIC_USE_AGENT_STORE": "False"},
			launch.Place{World: 4, Addr: "a:29500"}, ""},
		{env{"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "x", "TORCHELASTIC_USE_AGENT_STORE": "True"}, launch.Place{}, `MASTER_PORT is "x"`},
		{env{"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "29500", "TORCHELASTIC_USE_AGENT_STORE": "True", "AUTOPAR_AGENT": "1"},
			launch.Place{World: 4, Addr: "a:29500"}, ""}, // the agent was started by torchrun
		{env{"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "prterun-a-12@1"},
			launch.Place{Rank: 1, World: 2, Addr: "127.0.0.1:25450"}, ""},
		{env{"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, launch.Place{}, `MASTER_ADDR is ""`},
		{env{"PMI_RANK": "0", "PMI_SIZE": "3", "MASTER_ADDR": "a"}, launch.Place{World: 3, Addr: "a:29500"}, ""},
		{env{"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "gpu[07-09,12],x", "MASTER_PORT": "7"}, launch.Place{Rank: 2, World: 4, Addr: "gpu07:7"}, ""},
		{env{"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "a1,b[1-2]", "MASTER_PORT": "7"}, launch.Place{Rank: 2, World: 4, Addr: "a1:7"}, ""},
		{env{"SLURM_PROCID": "0"}, launch.Place{World: 1}, ""}, // a batch script
		{env{"RANK": "0", "WORLD_SIZE": "1", "AUTOPAR_MEMORY_FD": "3"}, launch.Place{World: 1, Memory: 3}, ""},
		{env{"RANK": "0", "WORLD_SIZE": "1", "AUTOPAR_LISTENER_FD": "4"}, launch.Place{World: 1, Listener: 4}, ""},
		{env{"RANK": "0", "WORLD_SIZE": "1", "AUTOPAR_MEMORY_FD": "2"}, launch.Place{}, `AUTOPAR_MEMORY_FD is "2", want a number of 3 to`},
		{env{"RANK": "4", "WORLD_SIZE": "4"}, launch.Place{}, `RANK is "4", want a number of 0 to 3`},
		{env{"RANK": "1"}, launch.Place{}, `WORLD_SIZE is "", want a number`},
		{env{"RANK": "1", "WORLD_SIZE": "2"}, launch.Place{}, `MASTER_PORT is ""`},
		{env{"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "x"}, launch.Place{}, `MASTER_PORT is "x"`},
		{env{"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, launch.Place{}, `MASTER_ADDR is ""`},
	} {
		got, err := launch.PlaceFrom(func(name string) string { return tt.env[name] })
		if tt.err != "" {
			var bad *launch.EnvError
			require.ErrorAs(t, err, &bad, "%v", tt.env)
			require.ErrorContains(t, err, tt.err)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, tt.want, got)
	}
}

// TestStepsOfAJob: what srun starts side by side in one job of Slurm does not meet at one port.
func TestStepsOfAJob(t *testing.T) {
	addrs := map[string]bool{}
	for step := range 3 {
		for rank := range 2 {
			env := map[string]string{
				"SLURM_PROCID": fmt.Sprint(rank), "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "a[1-2]", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": fmt.Sprint(step),
			}
			place, err := launch.PlaceFrom(func(name string) string { return env[name] })
			require.NoError(t, err)
			addrs[place.Addr] = true
		}
	}
	require.Len(t, addrs, 3)
}

// freeAddr returns an address at which nobody listens.
func freeAddr(t *testing.T) string {
	addr, err := launchtest.FreeAddr()
	require.NoError(t, err)
	return addr
}

// each calls do for every process of a job concurrently, and returns their errors by rank.
func each(ctx context.Context, addr string, world int, do func(p *launch.Peers) error) []error {
	return eachWhen(ctx, addr, world, func(int) {}, do)
}

// eachWhen is each for processes that start when ready returns.
func eachWhen(ctx context.Context, addr string, world int, ready func(rank int), do func(p *launch.Peers) error) []error {
	errs := make([]error, world)
	done := make(chan struct{})
	for rank := range world {
		go func() {
			defer func() { done <- struct{}{} }()
			time.Sleep(time.Duration((rank*3+2)%world) * 20 * time.Millisecond)
			ready(rank)
			p, err := launch.Join(ctx, launch.Place{Rank: rank, World: world, Addr: addr, Node: fmt.Sprint(rank / 2)})
			if err == nil {
				err = errors.Join(do(p), p.Close())
			}
			errs[rank] = err
		}()
	}
	for range world {
		<-done
	}
	return errs
}

// TestPeers lets five processes join, in any order and with strangers between, gather and connect.
func TestPeers(t *testing.T) {
	const world = 5
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	addr := freeAddr(t)
	refused := make(chan error, 1)
	go func() { // a stranger, a rank of another job, and one of an earlier start
		for {
			conn, err := net.Dial("tcp", addr)
			if err == nil {
				fmt.Fprint(conn, "GET / HTTP/1.1\r\n\r\n")
				conn.Close()
				break
			}
		}
		_, err := launch.Join(ctx, launch.Place{Rank: 7, World: 9, Addr: addr})
		refused <- err
	}()
	last := func(rank int) { // rank 0 listens until all have come
		if rank != 4 {
			return
		}
		if err := <-refused; err == nil || !strings.Contains(err.Error(), "rank 7 of 9 has come to rank 0 of 5") {
			t.Errorf("a rank of another job: %v", err)
		}
	}
	errs := eachWhen(ctx, addr, world, last, func(p *launch.Peers) error {
		local := p.Local()
		if want := p.Rank() / 2 * 2; local[0] != want || p.LocalRank() != p.Rank()-want || len(local) != min(2, world-want) {
			return fmt.Errorf("rank %d is with %v", p.Rank(), local)
		}
		aside := make(chan error, 1)
		go func() { aside <- gatherAside(ctx, p) }()
		defer func() { <-aside }()
		for round := range 20 {
			all, err := p.Gather(ctx, fmt.Appendf(nil, "%d of %03d", p.Rank(), round)[:round%8])
			if err != nil {
				return err
			}
			for rank, got := range all {
				if want := fmt.Sprintf("%d of %03d", rank, round)[:round%8]; string(got) != want {
					return fmt.Errorf("gathered %q of rank %d, want %q", got, rank, want)
				}
			}
		}
		conns, err := p.Connect(ctx)
		if err != nil {
			return err
		}
		for rank, conn := range conns {
			if conn != nil {
				fmt.Fprintf(conn, "%d to %d", p.Rank(), rank)
			}
		}
		for rank, conn := range conns {
			if conn == nil {
				continue
			}
			got := make([]byte, 6)
			if _, err := io.ReadFull(conn, got); err != nil {
				return err
			}
			if want := fmt.Sprintf("%d to %d", rank, p.Rank()); string(got) != want {
				return fmt.Errorf("rank %d says %q, want %q", rank, got, want)
			}
			conn.Close()
		}
		err = <-aside
		aside <- nil
		return err
	})
	require.NoError(t, errors.Join(errs...))
}

// TestOwnName: if a machine's own name is a loopback address, as in Debian's /etc/hosts, others can
// still reach it by that name, and so can the ranks beside rank 0. "LOCALHOST" stands for the name,
// because "localhost" says that a job is of one machine.
func TestOwnName(t *testing.T) {
	outside := ""
	addrs, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range addrs {
		if ip := a.(*net.IPNet).IP; ip.To4() != nil && !ip.IsLoopback() {
			outside = ip.String()
		}
	}
	if outside == "" {
		t.Skip("this machine has no address but those inside it")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, port, err := net.SplitHostPort(freeAddr(t))
	require.NoError(t, err)
	errs := make([]error, 3)
	var all sync.WaitGroup
	for rank := range errs {
		all.Go(func() {
			name, node := "LOCALHOST", "here"
			if rank == 2 {
				name, node = outside, "there"
			}
			p, err := launch.Join(ctx, launch.Place{Rank: rank, World: len(errs), Addr: net.JoinHostPort(name, port), Node: node})
			if err != nil {
				errs[rank] = err
				return
			}
			conns, err := p.Connect(ctx)
			for other, conn := range conns {
				if conn == nil {
					continue
				}
				if at := conn.RemoteAddr().(*net.TCPAddr).IP.String(); rank == 2 && at != outside {
					err = errors.Join(err, fmt.Errorf("rank %d is reached at %s", other, at))
				}
				conn.Close()
			}
			errs[rank] = errors.Join(err, p.Close())
		})
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...))
}

// gatherAside gathers independently of the steps of a job.
func gatherAside(ctx context.Context, p *launch.Peers) error {
	for round := range 20 {
		all, err := p.GatherAside(ctx, fmt.Appendf(nil, "aside %d of %d", p.Rank(), round))
		if err != nil {
			return err
		}
		for rank, got := range all {
			if want := fmt.Sprintf("aside %d of %d", rank, round); string(got) != want {
				return fmt.Errorf("gathered %q of rank %d, want %q", got, rank, want)
			}
		}
		time.Sleep(time.Duration(p.Rank()) * time.Millisecond)
	}
	return nil
}

// TestFailure tells all processes who has failed and why, or who has gone without giving a reason.
func TestFailure(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for who := range 2 {
		began := time.Now()
		errs := each(ctx, freeAddr(t), 3, func(p *launch.Peers) error {
			if p.Rank() == who {
				time.Sleep(50 * time.Millisecond) // what the others gather has arrived
				p.Fail(errors.New("no paper"))
			}
			_, err := p.Gather(ctx, nil)
			return err
		})
		for rank, err := range errs {
			var peer *launch.PeerError
			require.Equal(t, rank != who, errors.As(err, &peer), "%v", err)
			require.ErrorContains(t, err, "no paper")
			if rank != who {
				require.Equal(t, who, peer.Rank)
			}
		}
		require.Less(t, time.Since(began), 30*time.Second) // ctx has a minute
	}
	errs := each(ctx, freeAddr(t), 3, func(p *launch.Peers) error {
		if p.Rank() == 2 {
			launch.Drop(p)
			return nil
		}
		_, err := p.Gather(ctx, nil)
		return err
	})
	var lost *launch.LostError
	require.ErrorAs(t, errs[0], &lost)
	require.Equal(t, 2, lost.Rank)
	require.ErrorContains(t, errs[1], "rank 2 at 127.0.0.1:")
}

// TestInterruption: of a rank that is interrupted the others learn that, and not of a failure.
func TestInterruption(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for who := range 2 {
		for rank, err := range each(ctx, freeAddr(t), 3, func(p *launch.Peers) error {
			if p.Rank() == who {
				return p.Fail(fmt.Errorf("waiting: %w", context.Canceled))
			}
			_, err := p.Gather(ctx, nil)
			return err
		}) {
			require.ErrorIs(t, err, context.Canceled, "rank %d", rank)
		}
	}
}

// TestInterruptedWhileJoining: rank 0 learns that a rank was interrupted which waited for its answer, and does not take it for lost.
func TestInterruptedWhileJoining(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	waits, interrupt := context.WithCancel(ctx)
	addr := freeAddr(t)
	between, err := net.Listen("tcp", "127.0.0.1:0") // passes on what rank 1 says, and interrupts it when it has begun
	require.NoError(t, err)
	defer between.Close()
	go func() {
		from, err := between.Accept()
		if err != nil {
			return
		}
		defer from.Close()
		begun := make([]byte, 1)
		from.Read(begun)
		interrupt()
		for ctx.Err() == nil {
			if to, err := net.Dial("tcp", addr); err == nil {
				io.Copy(to, io.MultiReader(bytes.NewReader(begun), from))
				to.Close()
				return
			}
		}
	}()
	errs := make(chan error)
	for rank, ctx := range []context.Context{ctx, waits, ctx} {
		place := launch.Place{Rank: rank, World: 3, Addr: addr}
		if rank == 1 {
			place.Addr = between.Addr().String()
		}
		go func() {
			_, err := launch.Join(ctx, place)
			errs <- err
		}()
	}
	for range 3 {
		require.ErrorIs(t, <-errs, context.Canceled)
	}
}

// TestComesAgain: a process that has ended while it waited for others to join can be started again in its place; a second one
// beside a living one is turned away.
func TestComesAgain(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	addr, joined := freeAddr(t), make(chan error)
	go func() {
		_, err := launch.Join(ctx, launch.Place{World: 3, Addr: addr})
		joined <- err
	}()
	come := func(rank int) (conn net.Conn) {
		require.Eventually(t, func() (ok bool) {
			var err error
			conn, err = net.Dial("tcp", addr)
			return err == nil
		}, time.Minute, time.Millisecond)
		t.Cleanup(func() { conn.Close() })
		hello := fmt.Sprintf("autopar 1 %d 3 0", rank)
		_, err := fmt.Fprintf(conn, "h\x00\x00\x00%c%s", len(hello), hello)
		require.NoError(t, err)
		return conn
	}
	come(1).Close()
	fmt.Fprint(come(1), "i\x00\x00\x00\x04\x00\x00\x00\x01") // it was interrupted
	again := come(1)
	said, err := io.ReadAll(come(1))
	require.NoError(t, err)
	require.Contains(t, string(said), "there is a rank 1 already, at 127.0.0.1")
	last := come(2)
	for _, conn := range []net.Conn{again, last} {
		answer := make([]byte, 5)
		_, err := io.ReadFull(conn, answer)
		require.NoError(t, err)
		require.Equal(t, "h\x00\x00\x00\x00", string(answer))
	}
	last.Close()
	require.ErrorContains(t, <-joined, "rank 2 at 127.0.0.1")
}

// TestLostHearsWhy: a process that finds another gone waits for what that one has heard of a third.
// If there is no such news, it reports the one it has lost.
func TestLostHearsWhy(t *testing.T) {
	gone := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}
	for _, reason := range []bool{true, false} {
		errs := each(t.Context(), freeAddr(t), 3, func(p *launch.Peers) error {
			switch {
			case p.Rank() == 1:
				return p.Lost(0, gone, io.ErrClosedPipe)
			case p.Rank() == 2 && reason:
				time.Sleep(50 * time.Millisecond)
				// Long, so that rank 0 is still telling rank 1 when this one has heard and ends.
				return p.Fail(errors.New("no paper" + strings.Repeat(".", 4<<20)))
			}
			<-p.Failed()
			return p.Err()
		})
		want := "rank 0 at 127.0.0.1:1"
		if reason {
			want = "no paper"
		}
		require.ErrorContains(t, errs[1], want)
	}
}

// TestConnectHearsOfFailure: a process that waits for a connection learns that the other will never
// come.
func TestConnectHearsOfFailure(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	began := time.Now()
	errs := each(ctx, freeAddr(t), 3, func(p *launch.Peers) error {
		if p.Rank() < 2 {
			_, err := p.Connect(ctx)
			return err
		}
		_, err := p.Gather(ctx, []byte("1")) // as its port
		return errors.Join(err, p.Fail(errors.New("no route to rank 0")))
	})
	require.Less(t, time.Since(began), 20*time.Second)
	for rank, err := range errs {
		require.ErrorContains(t, err, "no route to rank 0", "rank %d", rank)
	}
}

// TestLate: every wait is bounded, and its error names the processes waited for, their addresses,
// and the time.
func TestLate(t *testing.T) {
	short := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	began, addr := time.Now(), freeAddr(t)
	_, err := launch.Join(short(), launch.Place{Rank: 1, World: 2, Addr: addr})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Regexp(t, "rank 1 of 2 has no answer of rank 0 at "+addr+` after \d+\.\d s: context deadline exceeded: .+$`, err)
	mute, err := net.Listen("tcp", "127.0.0.1:0") // the system takes connections for it
	require.NoError(t, err)
	defer mute.Close()
	_, err = launch.Join(short(), launch.Place{Rank: 1, World: 2, Addr: mute.Addr().String()})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Regexp(t, "has no answer of rank 0 at "+mute.Addr().String()+` after \d+\.\d s: context deadline exceeded: who is there has taken the connection and says nothing: `, err)
	_, err = launch.Join(short(), launch.Place{World: 3, Addr: addr})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Regexp(t, "of 3 ranks 2 did not come to rank 0 at "+addr+` after \d+\.\d s, the first of them 1: context deadline exceeded$`, err)
	_, err = launch.Join(short(), launch.Place{World: 2, Addr: "203.0.113.1:1"})
	require.Error(t, err)
	other, err := net.Listen("tcp", "127.0.0.1:0") // the port is taken
	require.NoError(t, err)
	defer other.Close()
	go func() {
		for {
			conn, err := other.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			fmt.Fprint(conn, "HTTP/1.1 400 Bad Request\r\n\r\n")
		}
	}()
	_, err = launch.Join(short(), launch.Place{Rank: 1, World: 2, Addr: other.Addr().String()})
	require.ErrorContains(t, err, "who is there does not speak as autopar")
	errs := each(t.Context(), addr, 3, func(p *launch.Peers) error {
		if p.Rank() == 1 {
			<-p.Failed()
			return p.Err()
		}
		if p.Rank() == 0 { // it has time left when the others have not
			time.Sleep(100 * time.Millisecond)
		}
		_, err := p.Gather(short(), nil)
		return err
	})
	for _, err := range errs {
		require.Regexp(t, `waited [\d.]+m?s for rank 1 at 127\.0\.0\.1`, err)
	}
	errs = each(t.Context(), addr, 2, func(p *launch.Peers) error {
		if p.Rank() == 0 {
			_, err := p.Connect(short())
			return err
		}
		_, err := p.Gather(t.Context(), []byte("1")) // as its port
		<-p.Failed()
		return errors.Join(err, p.Err())
	})
	for _, err := range errs {
		require.Regexp(t, `launch: connecting with the others for \d+\.\d s: rank 1 at 127\.0\.0\.1 has not come: context deadline exceeded$`, err)
	}
	require.Less(t, time.Since(began), time.Minute)
}
