package measured

import (
	"github.com/autopar/autopar/planner/cost"
)

// Constants is what a prediction rests on: clusters by name and software.
type Constants struct {
	Clusters map[string]*cost.Cluster
	Software []cost.Software
}

// NewConstants returns the built-in ones.
func NewConstants() *Constants {
	k := &Constants{Clusters: map[string]*cost.Cluster{}, Software: cost.Generations()}
	for _, name := range cost.Names() {
		c, err := cost.Load(name)
		if err != nil {
			panic("BUG: " + err.Error())
		}
		k.Clusters[name] = c
	}
	return k
}

// clone copies constants deeply enough to set figures.
func (k *Constants) clone() *Constants {
	out := &Constants{Clusters: map[string]*cost.Cluster{}, Software: append([]cost.Software(nil), k.Software...)}
	for name, c := range k.Clusters {
		copied := *c
		out.Clusters[name] = &copied
	}
	return out
}

// seconds prices a case with constants.
func (c *Case) seconds(k *Constants) float64 {
	on := c.Row.onto(k.Clusters[clusters()[c.GPU]])
	on.Software = c.softwareOf(k.Software)
	return c.estimator.Price(on).Step.Seconds()
}
