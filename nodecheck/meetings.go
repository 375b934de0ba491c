package nodecheck

import "slices"

// This file decides which ranks meet (exchange data) in a round.

// pair is two ranks that meet.
type pair struct{ a, b int }

// with returns the partner of a rank; ok is false if the rank is not in the pair.
func (p pair) with(rank int) (other int, ok bool) {
	switch rank {
	case p.a:
		return p.b, true
	case p.b:
		return p.a, true
	}
	return 0, false
}

// before counts the earlier meetings of either rank of a pair. Until they are over, one of the two may have to wait for the
// other.
func before(earlier []pair, m pair) (n int) {
	for _, other := range earlier {
		if _, ok := other.with(m.a); ok {
			n++
		} else if _, ok := other.with(m.b); ok {
			n++
		}
	}
	return n
}

// firstMeetings pairs neighbours, which meet at the same time. If the number of ranks is odd, the last one meets its neighbour
// after that one's first meeting, so that every rank meets another in every round.
func firstMeetings(n int) (meetings []pair) {
	for rank := 0; rank+1 < n; rank += 2 {
		meetings = append(meetings, pair{rank, rank + 1})
	}
	if n%2 == 1 && n > 1 {
		meetings = append(meetings, pair{n - 1, n - 2})
	}
	return meetings
}

// nextMeetings pairs the suspects of a round with good ranks, and then the remaining ranks with each other. It prefers partners
// that have not met in the round.
func nextMeetings(round []measure) (meetings []pair) {
	at := findings(figures([][]measure{round}))
	var suspects, good []int
	for rank := range round {
		if slices.ContainsFunc(at, func(f Finding) bool { return f.Rank == rank }) {
			suspects = append(suspects, rank)
		} else {
			good = append(good, rank)
		}
	}
	// take pairs a rank with the first of a list that it has not met, or else with the first, and removes that one.
	take := func(rank int, from *[]int) {
		i := max(0, slices.IndexFunc(*from, func(other int) bool { return !met(round, rank, other) }))
		meetings = append(meetings, pair{rank, (*from)[i]})
		*from = slices.Delete(*from, i, i+1)
	}
	trusted := slices.Clone(good)
	for len(suspects) > 0 && len(good) > 0 {
		rank := suspects[0]
		suspects = suspects[1:]
		take(rank, &good)
	}
	left := append(suspects, good...) // only suspects, or only good ranks
	for len(left) > 1 {
		rank := left[0]
		left = left[1:]
		take(rank, &left)
	}
	if len(left) == 1 { // it meets a rank that has another meeting, a good one if there is any
		rank, others := left[0], slices.Clone(trusted)
		others = slices.DeleteFunc(others, func(other int) bool { return other == rank })
		if len(others) == 0 {
			for other := range round {
				if other != rank {
					others = append(others, other)
				}
			}
		}
		take(rank, &others)
	}
	return meetings
}

// met reports whether two ranks have exchanged in a round.
func met(round []measure, a, b int) bool {
	return slices.ContainsFunc(round[a].Exchanges, func(x exchange) bool { return x.Partner == b })
}
