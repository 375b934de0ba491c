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

// Work is what ranks are timed at. Each method does its work once and returns the time. It fails if the work cannot be done
// or its result is wrong.
type Work interface {
	// Product computes a matrix product.
	Product() (time.Duration, error)
	// Exchange sends to and receives from another rank as many bytes as an all_reduce of the two does. The connection has a
	// deadline.
	Exchange(conn net.Conn) (time.Duration, error)
}

// Device implements [Work]: products on a device of its own, and exchanges over the network.
type Device struct {
	device   runtime.Device
	kernel   *runtime.Kernel
	size     int   // rows and columns of the matrices
	at       int64 // offset of the product in the arena
	compared bool  // every element of a product was compared with its expected value

	sent, got []byte
}

// exchangeBytes is half the size of the tensor that two ranks all-reduce in an exchange.
const exchangeBytes = 1 << 20

// NewDevice opens a device of a backend for products of size x size matrices of float32.
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

// prepare uploads the operands: a matrix of ones, and one with columns of 1, 2, ... 7, 1, 2, ... So the product is exact in
// float32 and every element is known.
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

// Product implements [Work]. It compares every element of the first product with its expected value, and the first element of
// later products.
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

// Exchange implements [Work]: an all_reduce of two ranks sends half of its tensor twice, first to be summed (reduce-scatter),
// then as a sum (all-gather).
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
