package launch

// Drop ends the connections of a process as its death would.
func Drop(p *Peers) {
	p.conns[0].closing.Store(true)
	p.conns[0].Close()
	p.once.Do(func() { close(p.failed); close(p.told) })
}
