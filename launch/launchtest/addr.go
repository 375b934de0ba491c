// Package launchtest has what tests of several processes need.
package launchtest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync/atomic"
)

// Each process has ports of its own, of which it takes one after another: tests of several packages run at once, and what one has
// picked another may not take before it listens there.
const (
	firstPort = 10000
	processes = 64
	ports     = 300
)

var picked atomic.Uint32

func init() { picked.Store(rand.Uint32N(ports)) }

// FreeAddr returns host:port of this machine where nobody listens. The port is below those that
// systems hand out automatically (from 32768 or 49152 on: RFC 6335, section 6), which another
// process might get before the test listens there.
//
// It is found out by asking, not by listening: a process that the test starts at that moment would
// have the listener, too, until it runs its program.
func FreeAddr() (string, error) {
	for range ports {
		addr := fmt.Sprint("127.0.0.1:", firstPort+os.Getpid()%processes*ports+int(picked.Add(1)%ports))
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return addr, nil
		}
		conn.Close()
	}
	return "", fmt.Errorf("launchtest: somebody listens at all of %d ports", ports)
}
