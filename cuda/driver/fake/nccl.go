package fake

import (
	"errors"

	"github.com/autopar/autopar/cuda/driver"
)

// Collectives returns NCCL among the ranks of this process.
func (d *Driver) Collectives() driver.Collectives { return collectives{d} }

type collectives struct{ driver *Driver }

func (collectives) Version() (int, error)     { return 22809, nil }
func (collectives) NewID() (driver.ID, error) { return driver.ID{1}, nil }
func (collectives) Join(ranks int, id driver.ID, rank int) (driver.Comm, error) {
	return nil, errors.New("TODO")
}
func (collectives) GroupStart() error { return nil }
func (collectives) GroupEnd() error   { return nil }
