package nodecheck

import "slices"

// pair is two ranks that exchange.
type pair struct{ a, b int }

// with returns the other rank of a pair that a rank is in.
func (p pair) with(rank int) (other int, ok bool) {
	switch rank {
	case p.a:
		return p.b, true
	case p.b:
		return p.a, true
	}
	return 0, false
}

// before counts the meetings of either of two ranks that come before theirs: one of the two waits until the other is free.
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

// firstMeetings are those of neighbours. All take place at once, but the last of an odd number of ranks then meets one that
// has met another: every rank exchanges with somebody in every round.
func firstMeetings(n int) (meetings []pair) {
	for rank := 0; rank+1 < n; rank += 2 {
		meetings = append(meetings, pair{rank, rank + 1})
	}
	if n%2 == 1 && n > 1 {
		meetings = append(meetings, pair{n - 1, n - 2})
	}
	return meetings
}

// nextMeetings are of suspects with ranks that are not, and of those that are left; with others than before, where there
// are some.
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
	// take removes the best partner of a rank from a list.
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
	left := append(suspects, good...) // of one kind
	for len(left) > 1 {
		rank := left[0]
		left = left[1:]
		take(rank, &left)
	}
	if len(left) == 1 { // it meets one that has met another
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
