package train

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"time"
)

// eventsFile is the name of the file with the same metrics for TensorBoard, which reads every file
// whose name contains tfevents. It has a scalar for every number of metrics.jsonl; the tag is the
// key, the step the iteration.
//
// A file is a sequence of records, each of the length, its checksum, a message and its checksum
// (tensorflow/core/lib/io/record_writer.h). The messages are protocol buffers (tensorflow/core/util/event.proto):
//
//	Event   {double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5}
//	Summary {repeated Value {string tag = 1; float simple_value = 2} value = 1}
const eventsFile = "events.out.tfevents.autopar"

// Keys of protocol buffer fields: the number and the encoding.
const (
	fieldWallTime    = 1<<3 | 1 // 8 bytes
	fieldStep        = 2 << 3   // varint
	fieldVersion     = 3<<3 | 2 // length and bytes, as messages
	fieldSummary     = 5<<3 | 2
	fieldValue       = 1<<3 | 2
	fieldTag         = 1<<3 | 2
	fieldSimpleValue = 2<<3 | 5 // 4 bytes
)

// eventLog appends to the events file of a run.
type eventLog struct{ f *os.File }

// openEvents opens the events file. Like openMetrics it cuts off later iterations.
func openEvents(dir string, from int) (*eventLog, error) {
	f, keep, err := openLog(dir, eventsFile, func(f *bufio.Reader) (int64, error) { return eventsBefore(f, from) })
	if err != nil {
		return nil, err
	}
	e := &eventLog{f}
	if keep > 0 {
		return e, nil
	}
	const version = "brain.Event:2"
	if err := e.event(time.Now(), 0, append([]byte{fieldVersion, byte(len(version))}, version...)); err != nil {
		return nil, errors.Join(fmt.Errorf("train: %w", err), f.Close())
	}
	return e, nil
}

// eventsBefore returns how many bytes of a file are whole events before iteration from.
func eventsBefore(r *bufio.Reader, from int) (keep int64, err error) {
	for {
		event, err := readRecord(r)
		if errors.Is(err, errNoRecord) {
			return keep, nil // an incomplete record was being written
		}
		if err != nil {
			return 0, err
		}
		if step, ok := stepOf(event); !ok || step >= int64(from) && keep > 0 {
			return keep, nil
		}
		keep += int64(len(event)) + recordOverhead
	}
}

// write appends the numbers of a line of metrics.jsonl.
func (e *eventLog) write(line []byte) error {
	var numbers map[string]float64
	if err := json.Unmarshal(line, &numbers); err != nil {
		return err
	}
	var summary []byte
	for _, tag := range slices.Sorted(maps.Keys(numbers)) {
		if tag == "iter" {
			continue
		}
		value := append(binary.AppendUvarint([]byte{fieldTag}, uint64(len(tag))), tag...)
		value = binary.LittleEndian.AppendUint32(append(value, fieldSimpleValue), math.Float32bits(float32(numbers[tag])))
		summary = append(binary.AppendUvarint(append(summary, fieldValue), uint64(len(value))), value...)
	}
	what := append(binary.AppendUvarint([]byte{fieldSummary}, uint64(len(summary))), summary...)
	return e.event(time.Now(), int64(numbers["iter"]), what)
}

// event appends an event with a time, a step and one more field.
func (e *eventLog) event(at time.Time, step int64, what []byte) error {
	wall := float64(at.UnixMicro()) / 1e6 // seconds
	event := binary.LittleEndian.AppendUint64([]byte{fieldWallTime}, math.Float64bits(wall))
	event = binary.AppendUvarint(append(event, fieldStep), uint64(step))
	_, err := e.f.Write(record(append(event, what...)))
	return err
}

// stepOf returns the step of an event as [eventLog.event] writes it.
func stepOf(event []byte) (step int64, ok bool) {
	const at = 1 + 8
	if len(event) <= at || event[0] != fieldWallTime || event[at] != fieldStep {
		return 0, false
	}
	n, size := binary.Uvarint(event[at+1:])
	return int64(n), size > 0
}

const (
	lengthSize     = 8
	checksumSize   = 4
	recordOverhead = lengthSize + 2*checksumSize
	longestRecord  = 1 << 20 // bound on records that are read back; real ones are far smaller
)

// errNoRecord says that no whole record follows in a file.
var errNoRecord = errors.New("no record")

// record adds length and checksums to a message.
func record(message []byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(message)))
	b = binary.LittleEndian.AppendUint32(b, checksum(b))
	b = append(b, message...)
	return binary.LittleEndian.AppendUint32(b, checksum(message))
}

// readRecord returns the next message, or errNoRecord if there is no whole one.
func readRecord(r io.Reader) ([]byte, error) {
	var head [lengthSize + checksumSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, ended(err)
	}
	n := binary.LittleEndian.Uint64(head[:])
	if n > longestRecord || binary.LittleEndian.Uint32(head[lengthSize:]) != checksum(head[:lengthSize]) {
		return nil, errNoRecord
	}
	body := make([]byte, n+checksumSize)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, ended(err)
	}
	if binary.LittleEndian.Uint32(body[n:]) != checksum(body[:n]) {
		return nil, errNoRecord
	}
	return body[:n], nil
}

func ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errNoRecord
	}
	return fmt.Errorf("%s: %w", eventsFile, err)
}

// checksum is the masked CRC-32C of records. The mask keeps the checksum of data that contains
// checksums from being special.
func checksum(data []byte) uint32 {
	c := crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
	return (c>>15 | c<<17) + 0xa282ead8
}
