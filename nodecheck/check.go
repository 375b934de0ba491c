// Package nodecheck finds the ranks of a job that are broken or slow before it trains (`autopar run --node-check`).
//
// There are two rounds. In each, every rank times a matrix product on its own device and an exchange over the network with
// another rank. If an exchange is bad, either rank may be at fault. So in the second round the suspects of the first meet
// ranks that are no suspects, and every rank meets another one than before as far as possible. A rank with at least one good
// exchange is healthy; a rank with none is at fault (as in the network check of DLRover). A rank is slow if its best time is
// more than twice the median of all ranks.
package nodecheck

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/autopar/autopar/launch"
)

// Options of a check. The zero value is ready for use.
type Options struct {
	// Repeats is how often products and exchanges are timed; the shortest time counts. 0 means 20.
	Repeats int
	// Timeout bounds an exchange. A round waits for other ranks at most four times as long. 0 means a minute.
	Timeout time.Duration
}

func (o *Options) validate() error {
	if o.Repeats < 0 || o.Timeout < 0 {
		return fmt.Errorf("nodecheck: %d repeats within %v, want at least 0", o.Repeats, o.Timeout)
	}
	if o.Repeats == 0 {
		o.Repeats = 20
	}
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
	return nil
}

// measure is what a rank has measured in a round.
type measure struct {
	Product    time.Duration // the shortest
	ProductErr string        // why the product failed, or ""
	Exchanges  []exchange
}

// exchange is what a rank has measured with a partner.
type exchange struct {
	Partner int
	Took    time.Duration // the shortest
	Err     string        // why it failed, or ""
}

// Run checks all ranks. Every process of the job calls it with the work of its rank. If ranks are at fault, it fails with an
// [*Error], the same in all processes. If ctx is cancelled no rank is: the error is that of ctx.
func Run(ctx context.Context, peers *launch.Peers, work Work, opts Options) (*Report, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	n := peers.World()
	if n < 2 {
		return nil, errors.New("nodecheck: there is nobody to compare one rank with")
	}
	var all [][]measure
	meetings := firstMeetings(n)
	for range rounds {
		one, err := round(ctx, peers, work, meetings, opts)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			return nil, fmt.Errorf("node check: %w", err)
		}
		all = append(all, one)
		meetings = nextMeetings(one)
	}
	report := &Report{figures(all)}
	if found := findings(report.figures); len(found) > 0 {
		hosts := make([]string, n)
		for rank := range hosts {
			hosts[rank] = peers.Host(rank)
		}
		return nil, &Error{found, hosts}
	}
	return report, nil
}

// rounds is the number of rounds that it takes to tell a rank at fault from its partner.
const rounds = 2

// round measures, exchanges the results with all other ranks, and returns them by rank.
func round(ctx context.Context, peers *launch.Peers, work Work, meetings []pair, opts Options) ([]measure, error) {
	var mine measure
	mine.Product, mine.ProductErr = least(opts.Repeats, work.Product)
	wait := 3 * opts.Timeout // two other exchanges may have to end before one can begin
	if peers.Rank() > 0 {
		wait += opts.Timeout // rank 0 gathers from all, so it must be the first to time out: it can name the late rank
	}
	bounded, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	conns, err := peers.ConnectWhere(bounded, func(a, b int) bool {
		return slices.Contains(meetings, pair{a, b}) || slices.Contains(meetings, pair{b, a})
	})
	if err != nil {
		return nil, err
	}
	began := time.Now()
	for i, m := range meetings {
		partner, ok := m.with(peers.Rank())
		if !ok {
			continue
		}
		conn := conns[partner]
		if err := conn.SetDeadline(began.Add(time.Duration(1+before(meetings[:i], m)) * opts.Timeout)); err != nil {
			return nil, err
		}
		took, failed := least(opts.Repeats, func() (time.Duration, error) { return work.Exchange(conn) })
		mine.Exchanges = append(mine.Exchanges, exchange{partner, took, failed})
		conn.Close()
	}
	text, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	texts, err := peers.Gather(bounded, text)
	if err != nil {
		return nil, err
	}
	all := make([]measure, len(texts))
	for rank, text := range texts {
		if err := json.Unmarshal(text, &all[rank]); err != nil {
			return nil, fmt.Errorf("what rank %d has found: %w", rank, err)
		}
	}
	return all, nil
}

// least returns the shortest time of a number of calls, or why one of them failed.
func least(calls int, do func() (time.Duration, error)) (time.Duration, string) {
	best := time.Duration(0)
	for i := range calls {
		took, err := do()
		if err != nil {
			return 0, err.Error()
		}
		if i == 0 || took < best {
			best = took
		}
	}
	return best, ""
}
