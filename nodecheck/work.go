package nodecheck

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"time"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// Work is what a rank is timed at: it is done once, and takes so long. An error says that it cannot be done, or that its
// result is wrong.
type Work interface {
	// Product computes a matrix product.
	Product() (time.Duration, error)
	// Exchange sends to another rank, and receives from it, what an all_reduce of the two does, over a connection with a
	// deadline.
	Exchange(conn net.Conn) (time.Duration, error)
}

// Device does the work of a rank: products on a device of its own, and exchanges over the network.
type Device struct {
	device   runtime.Device
	kernel   *runtime.Kernel
	size     int
	at       int64 // of the product in the arena
	compared bool  // all of the product, with what it should be

	sent, got []byte
}

// exchangeBytes is half of what two ranks add up in an exchange.
const exchangeBytes = 1 << 20

// NewDevice opens a device of a backend for products of square matrices of the given size.
func NewDevice(backend runtime.Backend, size int, timeout time.Duration) (*Device, error) {
	devices, err := backend.Open(runtime.World{Ranks: 1, Timeout: timeout})
	if err != nil {
		return nil, err
	}
	d := &Device{device: devices[0], size: size, sent: make([]byte, exchangeBytes), got: make([]byte, exchangeBytes)}
	for i := range d.sent {
		d.sent[i] = byte(i * 7)
	}
	if err := d.prepare(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// Close closes the device.
func (d *Device) Close() error { return d.device.Close() }

// prepare uploads a matrix of ones, and one whose columns are 1 to 7 and again.
func (d *Device) prepare() error {
	g := ir.NewGraph("node check")
	shape := []int{d.size, d.size}
	typ := ir.Type{DType: ir.F32, Shape: shape}
	x, err := g.Leaf(ir.OpInput, "x", typ, nil)
	if err != nil {
		return err
	}
	w, err := g.Leaf(ir.OpInput, "w", typ, nil)
	if err != nil {
		return err
	}
	node, err := g.Add(ir.OpMatMul, ir.MatMulAttr{Form: ir.MatMulNN, K: 1}, "product", ir.Forward, x, w)
	if err != nil {
		return err
	}
	stride := (typ.Bytes() + 255) / 256 * 256
	tensor := func(i int64) runtime.Tensor {
		return runtime.Tensor{Offset: i * stride, DType: ir.F32, Slab: ir.Whole(shape)}
	}
	d.at = 2 * stride
	d.kernel = &runtime.Kernel{Node: node, Args: []runtime.Tensor{tensor(0), tensor(1)}, Results: []runtime.Tensor{tensor(2)}, Accum: []bool{false}}
	if c, ok := d.device.(runtime.Checker); ok {
		if err := c.Check(d.kernel); err != nil {
			return err
		}
	}
	if err := d.device.Alloc(runtime.OnDevice, 3*stride); err != nil {
		return err
	}
	ones, columns := make([]byte, typ.Bytes()), make([]byte, typ.Bytes())
	for i := range d.size * d.size {
		binary.NativeEndian.PutUint32(ones[4*i:], math.Float32bits(1))
		binary.NativeEndian.PutUint32(columns[4*i:], math.Float32bits(float32(1+i%d.size%7)))
	}
	return errors.Join(d.device.Upload(runtime.OnDevice, 0, ones), d.device.Upload(runtime.OnDevice, stride, columns))
}

// Product implements [Work]. The first product is compared with what it should be whole, later ones in one element.
func (d *Device) Product() (time.Duration, error) {
	began := time.Now()
	if err := d.device.Launch(d.kernel); err != nil {
		return 0, err
	}
	n := 1
	if !d.compared {
		n, d.compared = d.size*d.size, true
	}
	result := make([]byte, 4*n)
	if err := d.device.Download(result, runtime.OnDevice, d.at); err != nil {
		return 0, err
	}
	took := time.Since(began)
	for i := range n {
		got, want := math.Float32frombits(binary.NativeEndian.Uint32(result[4*i:])), float32(d.size*(1+i%d.size%7))
		if got != want {
			return 0, fmt.Errorf("element %d, %d of a product of two matrices of %d x %d is %v, want %v", i/d.size, i%d.size, d.size, d.size, got, want)
		}
	}
	return took, nil
}

// Exchange implements [Work]: what an all_reduce of two ranks sends, first a half of their parts, then of their sums.
func (d *Device) Exchange(conn net.Conn) (time.Duration, error) {
	began := time.Now()
	for range 2 {
		failed := make(chan error, 1)
		go func() {
			_, err := conn.Write(d.sent)
			failed <- err
		}()
		_, err := io.ReadFull(conn, d.got)
		if err := errors.Join(err, <-failed); err != nil {
			return 0, err
		}
		if !bytes.Equal(d.got, d.sent) {
			return 0, fmt.Errorf("%d bytes do not arrive as they were sent", exchangeBytes)
		}
	}
	return time.Since(began), nil
}
