package train

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// stragglers finds ranks that compute longer than others. It compares the time that ranks computed,
// without waits, over many steps.
type stragglers struct {
	expected []float64 // by rank, time per step in any unit; nil is the same for all
	spent    []time.Duration
	steps    int
	paces    [][]float64 // of the last looks, by rank: times as long as at the median speed
}

const (
	// stragglerSteps is how many steps are compared together. Anything may delay a single step.
	stragglerSteps = 10
	// stragglerFactor is how much slower than the median rank a straggler is.
	stragglerFactor = 2
	// stragglerNoise is how much longer per step a rank may take in any case: ranks within it of what
	// is expected count as equally fast.
	stragglerNoise = 5 * time.Millisecond
	// settled is after how many looks ranks count as slow or quick, so that one disturbance does not.
	settled = 3
)

// straggler is a rank that is slower than others.
type straggler struct {
	rank   int
	takes  time.Duration // its time per step
	times  float64       // how many times as long as at the median speed
	wanted time.Duration // its time per step at the median speed
}

func (s straggler) String() string {
	return fmt.Sprintf("straggler: rank %d computes %.1f ms a step, %.1f times the %.1f ms that it would at the median speed",
		s.rank, 1e3*s.takes.Seconds(), s.times, 1e3*s.wanted.Seconds())
}

// add adds the times of a step.
func (s *stragglers) add(ranks int, computed func(rank int) time.Duration) {
	if s.spent == nil {
		s.spent = make([]time.Duration, ranks)
	}
	for rank := range s.spent {
		s.spent[rank] += computed(rank)
	}
	s.steps++
}

// due reports whether there are enough steps to compare.
func (s *stragglers) due() bool { return s.steps >= stragglerSteps }

// take returns the stragglers of the steps since the last call that had enough of them. Times are
// compared relative to what is expected of each rank, because the stages of a pipeline may have
// different work.
func (s *stragglers) take() (found []straggler) {
	if !s.due() {
		return nil
	}
	pace := make([]float64, len(s.spent))
	for rank := range pace {
		pace[rank] = s.spent[rank].Seconds() / float64(s.steps) / s.share(rank)
	}
	sorted := slices.Sorted(slices.Values(pace))
	median := sorted[(len(sorted)-1)/2] // the lower of two, so that one of two ranks can be slow
	for rank, p := range pace {
		takes := s.spent[rank] / time.Duration(s.steps)
		wanted := time.Duration(median * s.share(rank) * float64(time.Second))
		if p > stragglerFactor*median && takes > wanted+stragglerNoise {
			found = append(found, straggler{rank, takes, p / median, wanted})
		}
		if pace[rank] /= median; pace[rank] > 0 && (takes-wanted).Abs() <= stragglerNoise {
			pace[rank] = 1
		}
	}
	s.paces = append(s.paces[max(0, len(s.paces)-settled+1):], pace)
	clear(s.spent)
	s.steps = 0
	return found
}

// slow returns how many times as long as at the median speed each rank computes: the median of the
// last looks. It is nil until there are enough of them, and where a time is not known.
func (s *stragglers) slow() []float64 {
	if len(s.paces) < settled {
		return nil
	}
	slow := make([]float64, len(s.paces[0]))
	for rank := range slow {
		var looks [settled]float64
		for i, pace := range s.paces {
			looks[i] = pace[rank]
		}
		slices.Sort(looks[:])
		if slow[rank] = looks[settled/2]; !(looks[0] > 0 && looks[settled-1] < math.Inf(1)) {
			return nil
		}
	}
	return slow
}

func (s *stragglers) share(rank int) float64 {
	if s.expected == nil {
		return 1
	}
	return s.expected[rank]
}
