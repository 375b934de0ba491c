package driver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// Place is a process among those of a job, as torchrun and its like tell by environment
// variables.
type Place struct {
	Rank, World int
	Addr        string // host:port of rank 0
}

// EnvError is a variable of the environment that makes no sense.
type EnvError struct{ Name, Value, Msg string }

func (e *EnvError) Error() string { return fmt.Sprintf("%s is %q, %s", e.Name, e.Value, e.Msg) }

// PlaceFrom reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Without RANK and
// WORLD_SIZE the process is alone: rank 0 of 1.
func PlaceFrom(env func(string) string) (Place, error) {
	if env("RANK") == "" && env("WORLD_SIZE") == "" {
		return Place{World: 1}, nil
	}
	number := func(name string, least, below int) (int, error) {
		n, err := strconv.Atoi(env(name))
		if err != nil || n < least || n >= below {
			return 0, &EnvError{name, env(name), fmt.Sprintf("want a number of %d to %d", least, below-1)}
		}
		return n, nil
	}
	world, err := number("WORLD_SIZE", 1, 1<<20)
	if err != nil {
		return Place{}, err
	}
	rank, err := number("RANK", 0, world)
	if err != nil || world == 1 {
		return Place{World: world}, err
	}
	port, err := number("MASTER_PORT", 1, 1<<16)
	if err != nil {
		return Place{}, err
	}
	if env("MASTER_ADDR") == "" {
		return Place{}, &EnvError{"MASTER_ADDR", "", "want the host of rank 0"}
	}
	return Place{rank, world, net.JoinHostPort(env("MASTER_ADDR"), strconv.Itoa(port))}, nil
}

// Share gives all processes the name of a communicator, which rank 0 makes: the others
// come to its address over TCP and say their rank. It returns when all have the name, or
// when the context ends, and then says who did not come.
func (p Place) Share(ctx context.Context, make func() (ID, error)) (ID, error) {
	if p.Rank > 0 {
		id, err := p.fetch(ctx)
		if err != nil {
			return id, fmt.Errorf("rank %d of %d has no answer of rank 0 at %s: %w", p.Rank, p.World, p.Addr, err)
		}
		return id, nil
	}
	id, err := make()
	if err != nil || p.World == 1 {
		return id, err
	}
	return id, p.serve(ctx, id)
}

// fetch asks rank 0, again and again while it is not there.
func (p Place) fetch(ctx context.Context) (id ID, err error) {
	const pause = 50 * time.Millisecond
	for {
		if err = p.ask(ctx, &id); err == nil {
			return id, nil
		}
		select {
		case <-ctx.Done():
			return id, errors.Join(ctx.Err(), err)
		case <-time.After(pause):
		}
	}
}

func (p Place) ask(ctx context.Context, id *ID) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", p.Addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if err := binary.Write(conn, binary.BigEndian, [2]uint32{uint32(p.Rank), uint32(p.World)}); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, id[:])
	return err
}

// serve answers every other rank once.
func (p Place) serve(ctx context.Context, id ID) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", p.Addr)
	if err != nil {
		return fmt.Errorf("rank 0 cannot listen at %s (MASTER_ADDR, MASTER_PORT): %w", p.Addr, err)
	}
	defer listener.Close()
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	missing := map[int]bool{}
	for rank := 1; rank < p.World; rank++ {
		missing[rank] = true
	}
	for len(missing) > 0 {
		conn, err := listener.Accept()
		if err != nil {
			return fmt.Errorf("of %d ranks %d have not come to rank 0 at %s, %d the first: %w", p.World, len(missing), p.Addr, least(missing), errors.Join(ctx.Err(), err))
		}
		if rank, err := p.answer(conn, id); err == nil {
			delete(missing, rank)
		} // who asks something else is no rank
	}
	return nil
}

// answer tells a rank the name.
func (p Place) answer(conn net.Conn, id ID) (rank int, err error) {
	defer conn.Close()
	const patience = 5 * time.Second
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return 0, err
	}
	var who [2]uint32
	if err := binary.Read(conn, binary.BigEndian, &who); err != nil {
		return 0, err
	}
	if int(who[1]) != p.World || who[0] == 0 || int(who[0]) >= p.World {
		return 0, fmt.Errorf("rank %d of %d came to a job of %d", who[0], who[1], p.World)
	}
	_, err = conn.Write(id[:])
	return int(who[0]), err
}

func least(of map[int]bool) int {
	first := -1
	for n := range of {
		if first < 0 || n < first {
			first = n
		}
	}
	return first
}
