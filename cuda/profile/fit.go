package profile

import (
	"math"

	"github.com/autopar/autopar/planner/cost"
)

// The classes of [cost.Work].
const (
	product    = "product"
	attention  = "attention"
	vector     = "vector"
	collective = "collective"
)

// balance compares the planner's prices of a class of kernels with their times. excess is by how
// much the prices are too long in total, off the mean absolute difference, both as shares of the
// times. Every step has the same weight.
func balance(c *cost.Cluster, steps []*step, class string) (excess, off float64) {
	all := 0.0
	for _, s := range steps {
		price := s.price.On(c)
		for _, k := range s.kernels {
			if k.work.Class != class {
				continue
			}
			d := (k.priced(price, s) - k.seconds) / s.seconds
			excess, off, all = excess+d, off+math.Abs(d), all+k.seconds/s.seconds
		}
	}
	if all == 0 {
		return 0, 0
	}
	return excess / all, off / all
}

// most bounds the search for an efficiency. One above 1 shows that the peak rate is not known.
const most = 4

// fitShare finds the efficiency, stored at a place in the cluster, with which the prices of a class
// add up to the times. off is how far the single prices then are from their times.
func fitShare(c *cost.Cluster, steps []*step, class string, at *float64) (share, off float64) {
	low, high := 1e-3, float64(most)
	for high/low > 1.0005 { // prices fall as the efficiency grows
		*at = math.Sqrt(low * high)
		if excess, _ := balance(c, steps, class); excess > 0 {
			low = *at
		} else {
			high = *at
		}
	}
	*at = high
	_, off = balance(c, steps, class)
	return high, off
}

// fitProducts finds the efficiency of large products, and the cost of a tile beside its terms, with
// which the prices come nearest to the times.
func fitProducts(c *cost.Cluster, steps []*step) (share, fill float64) {
	e := &c.Device.Efficiency
	nearest := math.Inf(1)
	for f := 0.0; f <= 1024; f += 32 {
		e.TileFill = f
		if s, off := fitShare(c, steps, product, &e.Matmul); off < nearest {
			share, fill, nearest = s, f, off
		}
	}
	return share, fill
}
