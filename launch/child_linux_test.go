package launch_test

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/launch"
	"github.com/autopar/autopar/launch/launchtest"
)

// TestGivenListener: rank 0 takes the listener that it is given.
func TestGivenListener(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	file, err := listener.(*net.TCPListener).File()
	require.NoError(t, err)
	addr := listener.Addr().String()
	require.NoError(t, listener.Close())
	given, err := syscall.Dup(int(file.Fd())) // it becomes rank 0's
	require.NoError(t, err)
	require.NoError(t, file.Close())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	errs := make(chan error, 2)
	for _, place := range []launch.Place{{Rank: 1, World: 2, Addr: addr}, {World: 2, Addr: addr, Listener: given}} {
		go func() {
			p, err := launch.Join(ctx, place)
			if err == nil {
				err = p.Close()
			}
			errs <- err
		}()
	}
	require.NoError(t, errors.Join(<-errs, <-errs))
	again, err := net.Listen("tcp", addr)
	require.NoError(t, err, "it is closed")
	again.Close()
}

// TestStoppedJobIsNotLate: processes that are stopped together for longer than they may wait for each other go on.
func TestStoppedJobIsNotLate(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, errors.Join(each(ctx, freeAddr(t), 2, func(p *launch.Peers) error {
		if p.Rank() == 1 {
			if err := launchtest.Stop(4); err != nil {
				return err
			}
		}
		bounded, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		_, err := p.Gather(bounded, nil)
		return err
	})...))
}
