package cuda

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/runtime"
)

// others are the connections to the other processes of a world that has one rank in each. They
// carry the IDs of NCCL communicators; all other communication goes by NCCL.
type others struct {
	conns []net.Conn // by rank, nil for this one

	mu    sync.Mutex
	names map[int]chan driver.ID // the IDs of groups that arrive, by group
}

// naming is the message by which the first member of a group tells the others the ID.
type naming struct {
	Group int32
	ID    driver.ID
}

// meet connects the processes of a world.
func meet(world runtime.World) (*others, error) {
	if world.Peers == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), world.Timeout)
	defer cancel()
	conns, err := world.Peers.Connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	o := &others{conns: conns, names: map[int]chan driver.ID{}}
	for _, conn := range conns {
		if conn != nil {
			go o.listen(conn)
		}
	}
	return o, nil
}

// name returns the channel on which the ID of a group arrives.
func (o *others) name(group int) chan driver.ID {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.names[group] == nil {
		o.names[group] = make(chan driver.ID, 1)
	}
	return o.names[group]
}

// listen receives IDs until the connection ends. [launch.Peers.Failed] reports the loss of a
// process.
func (o *others) listen(conn net.Conn) {
	for {
		var n naming
		if err := binary.Read(conn, binary.BigEndian, &n); err != nil {
			return
		}
		select {
		case o.name(int(n.Group)) <- n.ID:
		default: // a second ID of the same group
			return
		}
	}
}

func (o *others) close() error {
	if o == nil {
		return nil
	}
	var errs []error
	for _, conn := range o.conns {
		if conn != nil {
			errs = append(errs, conn.Close())
		}
	}
	return errors.Join(errs...)
}

// nameAcross agrees on the ID of a communicator whose members are in different processes. The first
// member makes it.
func (b *Backend) nameAcross(lib driver.Collectives, v *view) (driver.ID, error) {
	if v.position > 0 {
		timer := time.NewTimer(b.world.Timeout)
		defer timer.Stop()
		select {
		case id := <-b.others.name(v.number):
			return id, nil
		case <-b.stopped:
			return driver.ID{}, runtime.ErrAborted
		case <-timer.C:
			return driver.ID{}, &runtime.WaitError{Ranks: v.ranks[:1], After: b.world.Timeout}
		}
	}
	id, err := lib.NewID()
	if err != nil {
		return id, err
	}
	message, err := binary.Append(nil, binary.BigEndian, naming{int32(v.number), id})
	if err != nil {
		return id, err
	}
	for _, rank := range v.ranks[1:] {
		conn := b.others.conns[rank]
		if err := conn.SetWriteDeadline(time.Now().Add(b.world.Timeout)); err != nil {
			return id, err
		}
		if _, err := conn.Write(message); err != nil {
			return id, fmt.Errorf("cuda: naming NCCL's group %d to rank %d at %s: %w", v.number, rank, conn.RemoteAddr(), err)
		}
	}
	return id, nil
}
