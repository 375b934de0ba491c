package driver_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/cuda/driver"
)

func TestPlaceFrom(t *testing.T) {
	for _, tt := range []struct {
		env  map[string]string
		want driver.Place
		err  string
	}{
		{nil, driver.Place{World: 1}, ""},
		{map[string]string{"RANK": "0", "WORLD_SIZE": "1"}, driver.Place{World: 1}, ""},
		{map[string]string{"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "::1", "MASTER_PORT": "29500"}, driver.Place{Rank: 3, World: 4, Addr: "[::1]:29500"}, ""},
		{map[string]string{"RANK": "4", "WORLD_SIZE": "4"}, driver.Place{}, `RANK is "4", want a number of 0 to 3`},
		{map[string]string{"RANK": "1"}, driver.Place{}, `WORLD_SIZE is "", want a number`},
		{map[string]string{"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "x"}, driver.Place{}, `MASTER_PORT is "x"`},
		{map[string]string{"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, driver.Place{}, `MASTER_ADDR is ""`},
	} {
		got, err := driver.PlaceFrom(func(name string) string { return tt.env[name] })
		if tt.err != "" {
			var bad *driver.EnvError
			require.ErrorAs(t, err, &bad)
			require.ErrorContains(t, err, tt.err)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, tt.want, got)
	}
}

// TestShare tells all ranks one name, whoever comes first and whoever else comes.
func TestShare(t *testing.T) {
	const world = 5
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := listener.Addr().String()
	require.NoError(t, listener.Close())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	want := driver.ID{1, 2, 3, 127: 9}
	results := make(chan error, world)
	for rank := range world {
		go func() {
			time.Sleep(time.Duration((rank*3+2)%world) * 20 * time.Millisecond)
			got, err := driver.Place{Rank: rank, World: world, Addr: addr}.Share(ctx, func() (driver.ID, error) { return want, nil })
			if err == nil && got != want {
				err = fmt.Errorf("rank %d got another name", rank)
			}
			results <- err
		}()
	}
	go func() { // a stranger
		time.Sleep(50 * time.Millisecond)
		if conn, err := net.Dial("tcp", addr); err == nil {
			conn.Write([]byte("GET / HTTP/1.0\r\n\r\n"))
			conn.Close()
		}
	}()
	for range world {
		require.NoError(t, <-results)
	}

	id, err := driver.Place{World: 1}.Share(ctx, func() (driver.ID, error) { return want, nil })
	require.NoError(t, err)
	require.Equal(t, want, id)
	broken := errors.New("no NCCL")
	_, err = driver.Place{World: 1}.Share(ctx, func() (driver.ID, error) { return id, broken })
	require.ErrorIs(t, err, broken)

	short, end := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer end()
	_, err = driver.Place{World: 3, Addr: addr}.Share(short, func() (driver.ID, error) { return want, nil })
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "of 3 ranks 2 have not come to rank 0 at "+addr+", 1 the first")
	_, err = driver.Place{Rank: 2, World: 3, Addr: addr}.Share(short, nil)
	require.ErrorContains(t, err, "rank 2 of 3 has no answer of rank 0 at "+addr)
}
