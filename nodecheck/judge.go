package nodecheck

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// This file decides from the measurements of all rounds which ranks are at fault. All ranks have the same measurements and
// reach the same verdict.

// slowFactor is how many times as long as the median of all ranks a rank takes at least if it is slow.
const slowFactor = 2

// noise is what a slow rank takes beyond the median at least: for so long an operating system may keep any process off the
// processor.
const noise = 5 * time.Millisecond

// figure is what is known of a rank: its shortest product, and its shortest exchange with any rank.
type figure struct {
	Product, Exchange       time.Duration
	ProductErr, ExchangeErr string // why there is no time
}

// figures takes the best of some rounds. A product that has failed in any round counts as failed. An exchange that has failed
// counts only if none succeeded, because the other rank may be at fault.
func figures(rounds [][]measure) []figure {
	all := make([]figure, len(rounds[0]))
	for i, round := range rounds {
		for rank, m := range round {
			f := &all[rank]
			if f.ProductErr == "" {
				f.ProductErr = m.ProductErr
			}
			if i == 0 || m.Product < f.Product {
				f.Product = m.Product
			}
			for _, x := range m.Exchanges {
				if failed := failure(rank, x, round); failed != "" {
					if f.Exchange == 0 {
						f.ExchangeErr = failed
					}
				} else if f.Exchange == 0 || x.Took < f.Exchange {
					f.Exchange, f.ExchangeErr = x.Took, ""
				}
			}
		}
	}
	return all
}

// failure says why an exchange failed, for the rank itself or for its partner. It returns "" if both succeeded.
func failure(rank int, x exchange, round []measure) string {
	failed := x.Err
	for _, y := range round[x.Partner].Exchanges {
		if y.Partner == rank && y.Err != "" && failed == "" {
			failed = y.Err
		}
	}
	if failed == "" {
		return ""
	}
	return fmt.Sprintf("with rank %d: %s", x.Partner, failed)
}

// medians are the medians of what succeeded. Of two values in the middle they take the lower one: else of two ranks none could
// be slow.
func medians(all []figure) (product, exchange time.Duration) {
	var products, exchanges []time.Duration
	for _, f := range all {
		if f.ProductErr == "" {
			products = append(products, f.Product)
		}
		if f.Exchange > 0 {
			exchanges = append(exchanges, f.Exchange)
		}
	}
	return lowerMedian(products), lowerMedian(exchanges)
}

func lowerMedian(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[(len(all)-1)/2]
}

func slow(took, median time.Duration) bool { return took > slowFactor*median && took > median+noise }

// Finding is a rank at fault.
type Finding struct {
	Rank int
	Text string // what is wrong, with the figures
}

// findings are the ranks at fault.
func findings(all []figure) (found []Finding) {
	product, exchange := medians(all)
	for rank, f := range all {
		var text []string
		if f.ProductErr != "" {
			text = append(text, "a product fails: "+f.ProductErr)
		} else if slow(f.Product, product) {
			text = append(text, fmt.Sprintf("a product takes %v at best, the median of all ranks is %v", short(f.Product), short(product)))
		}
		if f.ExchangeErr != "" {
			text = append(text, "every exchange fails, the last "+f.ExchangeErr)
		} else if slow(f.Exchange, exchange) {
			text = append(text, fmt.Sprintf("an exchange takes %v at best, the median of all ranks is %v", short(f.Exchange), short(exchange)))
		}
		if len(text) > 0 {
			found = append(found, Finding{rank, strings.Join(text, ", ")})
		}
	}
	return found
}

// Error says which ranks of a job are at fault.
type Error struct {
	Findings []Finding
	Hosts    []string // addresses of all ranks
}

func (e *Error) Error() string {
	text := fmt.Sprintf("node check: %d of %d ranks are at fault", len(e.Findings), len(e.Hosts))
	for _, f := range e.Findings {
		text += fmt.Sprintf("; rank %d at %s: %s", f.Rank, e.Hosts[f.Rank], f.Text)
	}
	return text
}

// Report is what a check has measured, if all ranks are healthy.
type Report struct{ figures []figure }

// String prints the shortest and longest times of all ranks in one line.
func (r *Report) String() string {
	least, most := r.figures[0], r.figures[0]
	for _, f := range r.figures {
		least.Product, most.Product = min(least.Product, f.Product), max(most.Product, f.Product)
		least.Exchange, most.Exchange = min(least.Exchange, f.Exchange), max(most.Exchange, f.Exchange)
	}
	return fmt.Sprintf("node check: %d ranks are well: products take %v to %v, exchanges %v to %v",
		len(r.figures), short(least.Product), short(most.Product), short(least.Exchange), short(most.Exchange))
}

func short(d time.Duration) time.Duration { return d.Round(time.Microsecond) }
