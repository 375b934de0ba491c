// Package launchtest has what tests of several processes need.
package launchtest

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// FreeAddr returns host:port of this machine where nobody listens. The port is one that must be
// asked for: those that systems hand out, from 32768 or 49152 on (RFC 6335, section 6), another
// process may get before the test listens there.
func FreeAddr() (addr string, err error) {
	for range 100 {
		var listener net.Listener
		if listener, err = net.Listen("tcp", fmt.Sprint("127.0.0.1:", 10000+rand.IntN(20000))); err == nil {
			return listener.Addr().String(), listener.Close()
		}
	}
	return "", err
}
