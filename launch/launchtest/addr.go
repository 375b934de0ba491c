// Package launchtest has what tests of several processes need.
package launchtest

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// FreeAddr returns host:port of this machine where nobody listens. The port is below those that
// systems hand out automatically (from 32768 or 49152 on: RFC 6335, section 6), which another
// process might get before the test listens there.
func FreeAddr() (addr string, err error) {
	for range 100 {
		var listener net.Listener
		if listener, err = net.Listen("tcp", fmt.Sprint("127.0.0.1:", 10000+rand.IntN(20000))); err == nil {
			return listener.Addr().String(), listener.Close()
		}
	}
	return "", err
}
