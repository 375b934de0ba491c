package galvatron

import (
	"fmt"
	"math"
)

// Type is how data-parallel ranks hold what they share.
type Type string

// The types: whole copies, ZeRO stage 2, and stage 3.
const (
	DDP   Type = "ddp"
	ZeRO2 Type = "zero2"
	ZeRO3 Type = "zero3"
)

// Strategy is how a layer is cut over the devices of its stage: TP by tensor and sequence
// parallelism, or SP by the all-to-alls of Ulysses, and DP. One of TP and SP is 1.
type Strategy struct {
	PP         int  `json:"pp"`
	TP         int  `json:"tp"`
	SP         int  `json:"sp"`
	DP         int  `json:"dp"`
	Type       Type `json:"type"`
	Checkpoint bool `json:"checkpoint"` // its forward pass runs again in the backward pass
}

// sharing is the devices that share a sample.
func (s Strategy) sharing() int { return max(s.TP, s.SP) }

// copies is the devices that share parameters.
func (s Strategy) copies() int { return s.DP * s.SP }

// Plan is a plan in Galvatron's terms. Embedding is the strategy of what is outside the
// layers. Buffer is the largest sharing of all: the ranks of tensor-parallel layers keep
// room for a sequence that is gathered from so many.
type Plan struct {
	Batch     int        `json:"global_bsz"`
	Chunks    int        `json:"chunks"` // micro-batches
	Division  []int      `json:"pp_division"`
	Layers    []Strategy `json:"layers"`
	Embedding Strategy   `json:"embedding"`
	Buffer    int        `json:"buffer_tp"`
}

// Model is what Galvatron knows of a training job: mixed precision, the schedule 1F1B, and
// gradients reduced in the background.
type Model struct {
	*Profile
	Layers, Hidden, Tokens int
	Devices                int
	Memory                 int // MB of a device
}

// Limit is the MB that the search fills: a fifth of more than 20 GB is kept free.
func (m *Model) Limit() int {
	if m.Memory/1024 > 20 {
		return m.Memory - int(float64(m.Memory)*0.2)
	}
	return m.Memory
}

const context = 1024 // MB of PyTorch on every stage

// local is the samples of a micro-batch on a data-parallel rank, rounded down as there.
func local(batch, chunks int, s Strategy) float64 { return float64(batch / chunks / s.DP) }

// message is the MB of the activations between layers for so many samples.
func (m *Model) message(samples float64) float64 {
	return samples * float64(m.Tokens) * float64(m.Hidden) * 2 / 1024 / 1024
}

// reduce is the time per MB of an all-reduce over the ranks that share parameters.
func (m *Model) reduce(s Strategy) float64 {
	return m.Reduce[Ring{s.copies(), s.TP == 1}]
}

// covers reports whether the profile has the figures of a strategy.
func (m *Model) covers(s Strategy) bool {
	_, reduces := m.Reduce[Ring{s.copies(), s.TP == 1}]
	_, states := m.Alone.States[s.TP]
	_, activation := m.Activation[s.sharing()]
	_, transfers := m.PointToPoint[s.PP]
	_, gathers := m.Gather[s.TP]
	_, exchanges := m.Exchange[s.SP]
	return reduces && states && activation && (transfers || s.PP == 1) && (gathers || s.TP == 1) && (exchanges || s.SP == 1)
}

// layer returns the seconds of a layer for a micro-batch, forward and backward, with the
// reduction of its gradients and without.
func (m *Model) layer(s Strategy, batch, chunks int) (sync, plain float64) {
	samples := local(batch, chunks, s)
	forward := m.Layer.at(samples / float64(s.sharing()))
	backward := 2 * forward
	if s.Checkpoint {
		backward += forward
	}
	gradients := (float64(s.copies()) - 1) * (m.ParameterSize / float64(s.TP) / float64(s.copies()))
	perMB := m.reduce(s)
	var exchange float64
	switch {
	case s.TP > 1:
		exchange = 6 * m.Gather[s.TP].at(m.message(samples))
	case s.SP > 1:
		exchange = 4 * m.Exchange[s.SP].at(m.message(samples))
	}
	if s.Checkpoint {
		exchange *= 1.5
	}
	time := func(gradients float64) float64 {
		t := forward + backward + exchange
		if s.DP > 1 {
			t = forward + m.beside(backward, gradients, perMB) + exchange
		}
		return t
	}
	more := 0.0
	if s.Type == ZeRO3 {
		more = gradients / 2 * perMB
	}
	if s.PP > 1 { // between stages: all layers of the model share it
		more += float64(s.PP) * 2 * m.message(samples) * m.PointToPoint[s.PP] / float64(m.Layers)
	}
	return (time(gradients) + more) / 1000, (time(0) + more) / 1000
}

// beside is the time of computation beside a reduction: both are slowed down while both
// run.
func (m *Model) beside(computation, megabytes, perMB float64) float64 {
	slow, reduction := computation*m.Overlap, megabytes*perMB*m.Overlap
	switch {
	case reduction > slow:
		return slow + (megabytes-slow/(perMB*m.Overlap))*perMB
	case reduction < slow:
		return reduction + computation - reduction/m.Overlap
	}
	return slow
}

// ends returns the seconds of what is outside the layers for a micro-batch, by stage.
func (m *Model) ends(s Strategy, batch, chunks int) []float64 {
	samples := local(batch, chunks, s)
	all := make([]float64, s.PP)
	perMB := m.reduce(s) * float64(s.copies()-1) / float64(s.copies())
	exchange := 0.0
	if s.TP > 1 {
		exchange = m.Gather[s.TP].at(m.message(samples))
	}
	forward := m.Other.at(samples / float64(s.sharing()))
	stage := func(states, forward, exchange float64) float64 {
		gather := 0.0
		if s.Type == ZeRO3 {
			gather = states / 4 / 2 * perMB / 2
		}
		return (m.hidden(gather, forward) + m.hidden(gather, 2*forward) + exchange) / 1000
	}
	if s.PP == 1 {
		all[0] = stage(m.Alone.States[s.TP], forward, 2*exchange)
		return all
	}
	all[0] = stage(m.First.States[s.TP], forward/2, exchange)
	all[s.PP-1] = stage(m.Last.States[s.TP], forward/2, exchange)
	return all
}

// hidden is the time of computation that a communication slows down while it runs.
func (m *Model) hidden(communication, computation float64) float64 {
	return communication + max(0, computation*m.Overlap-communication)/m.Overlap
}

// pipeline returns the seconds of a step from those of a micro-batch by stage, without
// reduction but with what is outside the layers, and those of the layers with it.
func pipeline(plain, sync []float64, chunks int) float64 {
	stages, sum := len(plain), 0.0
	exposed := 0.0
	for i, t := range plain {
		sum += t
		exposed = max(exposed, sync[i]-sum)
	}
	first, rest := plain[0], sum-plain[0]
	fill := float64(min(stages-1, chunks-1)) * first
	return exposed + max(sum+plain[stages-1]*float64(chunks-1),
		max(fill/3, rest/3)+max(fill*2/3, rest*2/3)+first*float64(max(0, chunks+1-stages)))
}

// states is the share of parameters, gradients and optimizer state that a device holds.
func states(s Strategy, chunks int) float64 {
	share := 1/float64(s.copies()) + 0.003
	eighths := map[Type]float64{DDP: 0, ZeRO2: 7, ZeRO3: 8}[s.Type]
	if chunks > 1 && s.Type != DDP {
		eighths-- // gradients are summed up whole
	}
	return eighths/8*share + (8-eighths)/8
}

// layerMemory returns the MB of a layer on a stage, rounded up as the search does.
func (m *Model) layerMemory(s Strategy, batch, chunks, stage int) int {
	kept := m.Activation[s.sharing()]
	if s.Checkpoint {
		kept = m.Checkpoint / float64(s.sharing())
	}
	return int(math.Ceil(4*m.ParameterSize/float64(s.TP)*states(s, chunks) + kept*local(batch, chunks, s)*float64(inFlight(s.PP, stage))))
}

// inFlight is the micro-batches that a stage keeps under 1F1B.
func inFlight(stages, stage int) int { return stages - stage }

// endsMemory returns the MB outside the layers, by stage.
func (m *Model) endsMemory(s Strategy, batch, chunks int) []int {
	all := make([]int, s.PP)
	for stage := range all {
		var at Outside
		switch {
		case s.PP == 1:
			at = m.Alone
		case stage == 0:
			at = m.First
		case stage == s.PP-1:
			at = m.Last
		}
		all[stage] = int(math.Ceil(at.States[s.TP]*states(s, chunks) + at.Activation[s.sharing()]*local(batch, chunks, s)*float64(inFlight(s.PP, stage)) + context))
	}
	return all
}

// buffer returns the MB into which tensor-parallel ranks gather sequences.
func (m *Model) buffer(batch, chunks, stages, sharing int) int {
	samples := float64(batch) / float64(chunks) / float64(m.Devices/stages/sharing)
	return int(m.message(samples))
}

// Cost is what the model says of a plan.
type Cost struct {
	Seconds float64
	MB      []int // by stage
	Fits    bool
}

// Cost prices a plan. It fails when the plan is none for the model.
func (m *Model) Cost(p *Plan) (Cost, error) {
	layers := 0
	for _, n := range p.Division {
		layers += n
	}
	if layers != m.Layers || len(p.Layers) != m.Layers {
		return Cost{}, fmt.Errorf("galvatron: the plan has stages of %d and strategies of %d layers, the model %d", p.Division, len(p.Layers), m.Layers)
	}
	stages := len(p.Division)
	tensor := p.Embedding.TP > 1
	for _, s := range append([]Strategy{p.Embedding}, p.Layers...) {
		if s.PP != stages || s.PP*s.TP*s.SP*s.DP != m.Devices || s.TP > 1 && s.SP > 1 || !m.covers(s) || p.Chunks < stages || p.Batch/p.Chunks < s.DP {
			return Cost{}, fmt.Errorf("galvatron: %+v is no strategy for %d devices, %d stages, a batch of %d in %d, or the profile has no figures for it", s, m.Devices, stages, p.Batch, p.Chunks)
		}
		tensor = tensor || s.TP > 1
	}
	c := Cost{MB: m.endsMemory(p.Embedding, p.Batch, p.Chunks), Fits: true}
	plain, sync := m.ends(p.Embedding, p.Batch, p.Chunks), make([]float64, stages)
	first := 0
	for stage, n := range p.Division {
		if tensor {
			c.MB[stage] += m.buffer(p.Batch, p.Chunks, stages, p.Buffer)
		}
		for _, s := range p.Layers[first : first+n] {
			a, b := m.layer(s, p.Batch, p.Chunks)
			sync[stage] += a
			plain[stage] += b
			c.MB[stage] += m.layerMemory(s, p.Batch, p.Chunks, stage)
		}
		first += n
		c.Fits = c.Fits && c.MB[stage] <= m.Limit()
	}
	c.Seconds = pipeline(plain, sync, p.Chunks)
	return c, nil
}
