package train

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// scalar is a number in an event file.
type scalar struct {
	tag  string
	step int64
}

// field reads the next field of a protocol buffer: its number, and its integer or bytes.
func field(t *testing.T, message []byte) (number int, value uint64, data, rest []byte) {
	t.Helper()
	key, n := binary.Uvarint(message)
	require.Positive(t, n)
	message = message[n:]
	switch key & 7 {
	case 0:
		value, n = binary.Uvarint(message)
		require.Positive(t, n)
		return int(key >> 3), value, nil, message[n:]
	case 1:
		return int(key >> 3), binary.LittleEndian.Uint64(message), nil, message[8:]
	case 2:
		size, n := binary.Uvarint(message)
		require.Positive(t, n)
		return int(key >> 3), 0, message[n : n+int(size)], message[n+int(size):]
	case 5:
		return int(key >> 3), uint64(binary.LittleEndian.Uint32(message)), nil, message[4:]
	}
	require.FailNow(t, "unknown wire type", "key %d", key)
	return
}

// readEvents reads an event file as TensorBoard does. It fails if a scalar occurs twice.
func readEvents(t *testing.T, dir string) map[scalar]float32 {
	t.Helper()
	file, err := os.ReadFile(filepath.Join(dir, eventsFile))
	require.NoError(t, err)
	scalars := map[scalar]float32{}
	version, clock := "", 0.0
	for r := bytes.NewReader(file); r.Len() > 0; {
		event, err := readRecord(r)
		require.NoError(t, err)
		var step int64
		for len(event) > 0 {
			number, value, data, rest := field(t, event)
			event = rest
			switch number {
			case 1:
				require.GreaterOrEqual(t, math.Float64frombits(value), clock, "time goes on")
				clock = math.Float64frombits(value)
			case 2:
				step = int64(value)
			case 3:
				require.Empty(t, version)
				require.Empty(t, scalars, "the version comes first")
				version = string(data)
			case 5:
				for len(data) > 0 {
					number, _, x, rest := field(t, data)
					require.Equal(t, 1, number)
					data = rest
					at, bits := scalar{step: step}, uint64(0)
					for len(x) > 0 {
						number, value, name, rest := field(t, x)
						x = rest
						switch number {
						case 1:
							at.tag = string(name)
						case 2:
							bits = value
						}
					}
					require.NotContains(t, scalars, at)
					scalars[at] = math.Float32frombits(uint32(bits))
				}
			}
		}
	}
	require.Equal(t, "brain.Event:2", version)
	require.Greater(t, clock, 1.7e9, "seconds since 1970")
	return scalars
}

// TestEventsAreTheMetrics: TensorBoard gets every number of metrics.jsonl under its key, once, even
// if a run was killed in the middle of an event and resumed from an older checkpoint, and nothing
// of a run that another one replaces.
func TestEventsAreTheMetrics(t *testing.T) {
	cfg := tinyConfig(t, textData(t))
	out := t.TempDir()
	events := filepath.Join(out, eventsFile)
	same := func() {
		t.Helper()
		lines, err := os.ReadFile(filepath.Join(out, MetricsFile))
		require.NoError(t, err)
		want := map[scalar]float32{}
		for line := range strings.Lines(string(lines)) {
			var numbers map[string]float64
			require.NoError(t, json.Unmarshal([]byte(line), &numbers))
			for tag, x := range numbers {
				if tag != "iter" {
					want[scalar{tag, int64(numbers["iter"])}] = float32(x)
				}
			}
		}
		require.Contains(t, want, scalar{"val_loss", 5})
		require.Equal(t, want, readEvents(t, out))
	}
	train(t, cfg, planOf(1, 1, 1), RunOptions{Out: out, Steps: 7})
	same()

	// After the checkpoint: an iteration, and half of another.
	log, err := openEvents(out, 7)
	require.NoError(t, err)
	require.NoError(t, log.write([]byte(`{"iter":7,"loss":99}`)))
	_, err = log.f.Write(record([]byte("torn"))[:9])
	require.NoError(t, err)
	require.NoError(t, log.f.Close())
	train(t, cfg, planOf(1, 1, 1), RunOptions{Out: out, Steps: 9, Resume: true})
	same()

	train(t, cfg, planOf(1, 1, 1), RunOptions{Out: out, Steps: 6})
	same()

	require.NoError(t, os.WriteFile(events, []byte("not events"), 0o644))
	train(t, cfg, planOf(1, 1, 1), RunOptions{Out: out, Steps: 6})
	same()
}

// TestRecord compares a record with the bytes of TensorFlow's writer: checksums are those of RFC
// 3720, appendix B.4, rotated by 15 and shifted by its constant.
func TestRecord(t *testing.T) {
	zeros := make([]byte, 32)
	crc := uint32(0x8a9136aa) // of 32 zeros
	const delta = 0xa282ead8
	got := record(zeros)
	require.Len(t, got, 8+4+32+4)
	require.EqualValues(t, 32, binary.LittleEndian.Uint64(got))
	masked := crc>>15 | crc<<17
	require.Equal(t, masked+delta, binary.LittleEndian.Uint32(got[44:]))
	for at := range got {
		bad := bytes.Clone(got)
		bad[at] ^= 4
		_, err := readRecord(bytes.NewReader(bad))
		require.ErrorIs(t, err, errNoRecord, "byte %d", at)
		_, err = readRecord(bytes.NewReader(got[:at]))
		require.ErrorIs(t, err, errNoRecord, "%d bytes", at)
	}
}
