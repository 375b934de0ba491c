package nodecheck_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/cuda"
	"github.com/autopar/autopar/cuda/cudatest"
	"github.com/autopar/autopar/cuda/driver/fake"
	"github.com/autopar/autopar/launch"
	"github.com/autopar/autopar/launch/launchtest"
	"github.com/autopar/autopar/nodecheck"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu"
)

// work is a [Work] that claims to take certain times. An exchange takes as long as the slower of its two ranks says.
type work struct {
	product, exchange       time.Duration
	productErr, exchangeErr error
	late                    time.Duration
}

func (w *work) Product() (time.Duration, error) {
	time.Sleep(w.late)
	return w.product, w.productErr
}

func (w *work) Exchange(conn net.Conn) (time.Duration, error) {
	if w.exchangeErr != nil {
		return 0, w.exchangeErr
	}
	var theirs int64
	err := errors.Join(binary.Write(conn, binary.LittleEndian, int64(w.exchange)), binary.Read(conn, binary.LittleEndian, &theirs))
	return max(w.exchange, time.Duration(theirs)), err
}

// check runs a check of a number of ranks.
func check(t *testing.T, n int, opts nodecheck.Options, of func(rank int) nodecheck.Work) (report *nodecheck.Report, errs []error) {
	t.Helper()
	return checkUntil(t.Context(), t, n, opts, of)
}

// checkUntil is check until a context is cancelled.
func checkUntil(ctx context.Context, t *testing.T, n int, opts nodecheck.Options, of func(rank int) nodecheck.Work) (report *nodecheck.Report, errs []error) {
	t.Helper()
	addr, err := launchtest.FreeAddr()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	errs = make([]error, n)
	var all sync.WaitGroup
	for rank := range n {
		all.Go(func() {
			errs[rank] = func() error {
				peers, err := launch.Join(ctx, launch.Place{Rank: rank, World: n, Addr: addr})
				if err != nil {
					return err
				}
				defer peers.Close()
				mine, err := nodecheck.Run(ctx, peers, of(rank), opts)
				if rank == 0 {
					report = mine
				}
				return err
			}()
		})
	}
	all.Wait()
	return report, errs
}

// ranksOf returns the ranks at fault. All processes of the check must have found the same.
func ranksOf(t *testing.T, errs []error) (ranks []int) {
	t.Helper()
	for rank, err := range errs {
		var bad *nodecheck.Error
		require.ErrorAs(t, err, &bad, "rank %d", rank)
		require.EqualError(t, err, errs[0].Error(), "all say the same")
		if rank == 0 {
			for _, f := range bad.Findings {
				ranks = append(ranks, f.Rank)
			}
		}
	}
	return ranks
}

// healthy returns the work of healthy ranks, with a change for one of them.
func healthy(bad int, change func(w *work)) func(rank int) nodecheck.Work {
	return func(rank int) nodecheck.Work {
		w := &work{product: 10 * time.Millisecond, exchange: 9 * time.Millisecond}
		if rank == bad {
			change(w)
		}
		return w
	}
}

var errBroken = errors.New("it is broken")

// TestFindsTheRank injects a failure, or three times the time, on one rank of three to seven. That rank and no other is found,
// whatever its partners.
func TestFindsTheRank(t *testing.T) {
	for name, c := range map[string]struct {
		change func(w *work)
		want   string
	}{
		"slow product":    {func(w *work) { w.product *= 3 }, `: a product takes 30ms at best, the median of all ranks is 10ms$`},
		"slow exchange":   {func(w *work) { w.exchange *= 3 }, `: an exchange takes 27ms at best, the median of all ranks is 9ms$`},
		"broken product":  {func(w *work) { w.productErr = errBroken }, `: a product fails: it is broken$`},
		"broken exchange": {func(w *work) { w.exchangeErr = errBroken }, `: every exchange fails, the last with rank \d: it is broken$`},
	} {
		for n := 3; n <= 7; n++ {
			for bad := range n {
				t.Run(fmt.Sprintf("%s of %d in %d", name, bad, n), func(t *testing.T) {
					t.Parallel()
					_, errs := check(t, n, nodecheck.Options{Repeats: 2, Timeout: 20 * time.Second}, healthy(bad, c.change))
					require.Equal(t, []int{bad}, ranksOf(t, errs), "%v", errs[0])
					require.Regexp(t, fmt.Sprintf(`^node check: 1 of %d ranks are at fault; rank %d at 127\.0\.0\.1%s`, n, bad, c.want), errs[0])
				})
			}
		}
	}
}

// stuck is a rank whose exchanges never end, as in a network that loses long messages.
type stuck struct{ *work }

func (stuck) Exchange(conn net.Conn) (time.Duration, error) {
	_, err := io.ReadAll(conn)
	return 0, err
}

// TestFindsTheStuckRank: a rank is not at fault because it has waited for its partner's other exchange, in vain or not.
func TestFindsTheStuckRank(t *testing.T) {
	for n, bad := range map[int]int{3: 0, 5: 2} { // who meets it meets another next, in the first round and in the second
		t.Run(fmt.Sprintf("%d in %d", bad, n), func(t *testing.T) {
			t.Parallel()
			_, errs := check(t, n, nodecheck.Options{Repeats: 1, Timeout: time.Second}, func(rank int) nodecheck.Work {
				w := healthy(-1, nil)(rank).(*work)
				if rank == bad {
					return stuck{w}
				}
				return w
			})
			require.Equal(t, []int{bad}, ranksOf(t, errs), "%v", errs[0])
		})
	}
}

// TestFindsTwo: if an exchange of two ranks fails, either may be at fault. A slow product is the fault of its rank alone.
func TestFindsTwo(t *testing.T) {
	_, errs := check(t, 2, nodecheck.Options{Repeats: 3}, healthy(1, func(w *work) { w.exchangeErr = errBroken }))
	require.Equal(t, []int{0, 1}, ranksOf(t, errs))
	_, errs = check(t, 2, nodecheck.Options{Repeats: 3}, healthy(1, func(w *work) { w.product *= 4 }))
	require.Equal(t, []int{1}, ranksOf(t, errs))
}

// oneSided completes the exchange for its partner, and then reports a failure.
type oneSided struct{ *work }

func (w oneSided) Exchange(conn net.Conn) (time.Duration, error) {
	took, err := w.work.Exchange(conn)
	return took, errors.Join(err, errBroken)
}

// TestOneSideFails: an exchange that fails for one rank has failed for both. Else its partner's success would count for the rank.
func TestOneSideFails(t *testing.T) {
	_, errs := check(t, 2, nodecheck.Options{Repeats: 1}, func(rank int) nodecheck.Work {
		w := healthy(-1, nil)(rank)
		if rank == 1 {
			return oneSided{w.(*work)}
		}
		return w
	})
	require.Equal(t, []int{0, 1}, ranksOf(t, errs))
}

// TestOnGPU does the work of a rank on a (fake) GPU.
func TestOnGPU(t *testing.T) {
	system, err := cudatest.NewSystem(fake.New(fake.Options{Devices: 1}))
	require.NoError(t, err)
	device, err := nodecheck.NewDevice(cuda.New(system, cuda.Options{Eager: true}), 65, time.Minute)
	require.NoError(t, err)
	for range 2 {
		_, err = device.Product()
		require.NoError(t, err)
	}
	require.NoError(t, device.Close())
}

// TestInterrupted: of a job that is interrupted before or during the check, no rank is said to have failed.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var joined sync.WaitGroup
	joined.Add(3)
	_, errs := checkUntil(ctx, t, 3, nodecheck.Options{}, func(rank int) nodecheck.Work {
		joined.Done()
		joined.Wait()
		cancel()
		return healthy(-1, nil)(rank)
	})
	for rank, err := range errs {
		require.Equal(t, context.Canceled, err, "rank %d", rank)
	}
}

// TestHealthy checks healthy ranks that really compute and send, several times, on a machine that may be busy.
func TestHealthy(t *testing.T) {
	for range 10 {
		report, errs := check(t, 4, nodecheck.Options{}, func(int) nodecheck.Work { return newDevice(t) })
		require.NoError(t, errors.Join(errs...))
		require.Regexp(t, `^node check: 4 ranks are well: products take [\d.]+.?s to [\d.]+.?s, exchanges [\d.]+.?s to [\d.]+.?s$`, report.String())
	}
}

func newDevice(t *testing.T) *nodecheck.Device {
	backend, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		panic(err)
	}
	device, err := nodecheck.NewDevice(backend, 128, time.Minute)
	if err != nil {
		panic(err)
	}
	t.Cleanup(func() { device.Close() })
	return device
}

// TestWrongNumbers: a device with wrong results, or a network that changes data, has failed.
func TestWrongNumbers(t *testing.T) {
	backend, err := cpu.New(cpu.Options{Threads: 1})
	require.NoError(t, err)
	device, err := nodecheck.NewDevice(wrong{backend}, 65, time.Minute)
	require.NoError(t, err)
	defer device.Close()
	_, err = device.Product()
	require.EqualError(t, err, "element 64, 64 of a product of two matrices of 65 x 65 is 131, want 130")

	here, there := net.Pipe()
	defer here.Close()
	go func() {
		b := make([]byte, 1<<20)
		io.ReadFull(there, b)
		b[5]++
		there.Write(b)
	}()
	_, err = newDevice(t).Exchange(here)
	require.EqualError(t, err, "1048576 bytes do not arrive as they were sent")
}

// wrong is a backend whose device makes the last element of every download wrong.
type wrong struct{ runtime.Backend }

func (w wrong) Open(world runtime.World) ([]runtime.Device, error) {
	devices, err := w.Backend.Open(world)
	return []runtime.Device{wrongDevice{devices[0]}}, err
}

type wrongDevice struct{ runtime.Device }

func (d wrongDevice) Download(dst []byte, space runtime.Space, offset int64) error {
	err := d.Device.Download(dst, space, offset)
	last := dst[len(dst)-4:]
	binary.NativeEndian.PutUint32(last, math.Float32bits(1+math.Float32frombits(binary.NativeEndian.Uint32(last))))
	return err
}

// TestSilentRank: a rank that sends nothing is named, in bounded time.
func TestSilentRank(t *testing.T) {
	began := time.Now()
	_, errs := check(t, 3, nodecheck.Options{Repeats: 1, Timeout: 100 * time.Millisecond}, healthy(2, func(w *work) { w.late = 2 * time.Second }))
	require.Less(t, time.Since(began), 30*time.Second)
	require.ErrorContains(t, errs[0], "for rank 2 at 127.0.0.1")
	_, err := nodecheck.Run(t.Context(), nil, nil, nodecheck.Options{Repeats: -1})
	require.EqualError(t, err, "nodecheck: -1 repeats within 0s, want at least 0")
}
