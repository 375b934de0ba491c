package pickle

import (
	"bytes"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestValues: each form in which Python writes a value.
func TestValues(t *testing.T) {
	for text, want := range map[string]any{
		"N":                                nil,
		"\x88":                             true,
		"\x89":                             false,
		"K\xff":                            int64(255),
		"M\x01\x02":                        int64(0x201),
		"J\x01\x02\x03\x04":                int64(0x4030201),
		"J\xff\xff\xff\xff":                int64(-1),
		"\x8a\x00":                         int64(0),
		"\x8a\x02\x00\x80":                 int64(-1 << 15),
		"\x8a\x06\x00\x00\x00\x00\x00\x01": int64(1 << 40),
		"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f":     int64(1<<63 - 1),
		"\x8b\x01\x00\x00\x00\xfe":                     int64(-2),
		"\x8a\x09\x01\x00\x00\x00\x00\x00\x00\x00\x01": &Object{Func: "int"},
		"G\xbf\xf8\x00\x00\x00\x00\x00\x00":            -1.5,
		"X\x03\x00\x00\x00\xc3\xa9n":                   "én",
		"\x8c\x01n":                                    "n",
		"\x8d\x01\x00\x00\x00\x00\x00\x00\x00n":        "n",
		"C\x01\xff":                                    &Object{Func: "bytes"},
		"B\x01\x00\x00\x00\xff":                        &Object{Func: "bytes"},
		"\x8e\x01\x00\x00\x00\x00\x00\x00\x00\xff":     &Object{Func: "bytes"},
		"\x96\x01\x00\x00\x00\x00\x00\x00\x00\xff":     &Object{Func: "bytes"},
		")":                              Tuple{},
		"K\x01\x85":                      Tuple{int64(1)},
		"K\x01K\x02\x86":                 Tuple{int64(1), int64(2)},
		"K\x01K\x02K\x03\x87":            Tuple{int64(1), int64(2), int64(3)},
		"(K\x01(tt":                      Tuple{int64(1), Tuple{}},
		"(K\x01\x91":                     Tuple{int64(1)},
		"]K\x01a(NNe":                    &List{[]any{int64(1), nil, nil}},
		"\x8f(K\x01\x90":                 &List{[]any{int64(1)}},
		"}K\x01Ns(\x8c\x01aK\x02)K\x03u": Dict{int64(1): nil, "a": int64(2)},
		"ccollections\nOrderedDict\n)R(\x8c\x01aNu}b":                      Dict{"a": nil},
		"ctorch\nfloat32\n":                                                Global("torch.float32"),
		"\x8c\x05torch\x8c\x07float32\x93":                                 Global("torch.float32"),
		"cos\nsystem\n\x8c\x02ls\x85R":                                     &Object{Func: "os.system", Args: Tuple{"ls"}},
		"cargparse\nNamespace\n)\x81}\x8c\x01aNsb":                         &Object{Func: "argparse.Namespace", Args: Tuple{}},
		"cm\nC\n)}\x92(K\x01K\x02u(Ne":                                     &Object{Func: "m.C", Args: Tuple{}},
		"cm\nC\n)R)R":                                                      &Object{Args: Tuple{}},
		"\x8c\x01sK\x01\x86Q":                                              Persistent{Tuple{"s", int64(1)}},
		"(\x8c\x01aq\x05\x8c\x01br\x00\x01\x00\x00h\x05j\x00\x01\x00\x00t": Tuple{"a", "b", "a", "b"},
		"(\x8c\x01a\x94\x8c\x01b\x94h\x00h\x01t":                           Tuple{"a", "b", "a", "b"},
		"\x95\x02\x00\x00\x00\x00\x00\x00\x00K\x01":                        int64(1),
	} {
		got, err := Read([]byte("\x80\x02" + text + "."))
		require.NoError(t, err, "%q", text)
		require.Equal(t, want, got, "%q", text)
	}
}

func TestRefusals(t *testing.T) {
	for text, want := range map[string]string{
		"":                                       "pickle of 0 bytes is cut short",
		"\x80\x06N.":                             "pickle opcode 0x80 at byte 0: protocol 6 is not 2 to 5",
		"\x80\x01N.":                             "protocol 1 is not 2 to 5",
		"N":                                      "pickle of 1 bytes is cut short",
		".":                                      "pickle ends with 0 values",
		"NN.":                                    "pickle ends with 2 values",
		"(.":                                     "not 1 values on the stack",
		"I1\n.":                                  "pickle opcode 0x49 at byte 0: refused",
		"\x97.":                                  "refused: data needs no such thing", // a buffer outside
		"\x82\x01.":                              "refused",                           // an extension
		"X\xff\xff\xff\xffa.":                    "is cut short",
		"\x8d\xff\xff\xff\xff\xff\xff\xff\xffa.": "is cut short",
		"\x8e\xff\xff\xff\xff\xff\xff\xff\x7fa.": "is cut short",
		"\x8b\xff\xff\xff\xff\x01.":              "is cut short",
		"\x8c\x01\xff.":                          `string "\xff" is not valid UTF-8`,
		"cos.":                                   "is cut short",
		"cos\nsystem.":                           "is cut short",
		"K\x01K\x02\x93.":                        "a name is no str",
		"h\x07.":                                 "nothing is stored at index 7",
		"q\x00.":                                 "not 1 values on the stack",
		"(q\x00.":                                "not 1 values on the stack",
		"N(\x85.":                                "not 1 values on the stack",
		"N\x86.":                                 "not 2 values on the stack",
		"}u.":                                    "no mark on the stack",
		"}(Nu.":                                  "1 keys and values are no pairs",
		"]NNs.":                                  "the target is not a dict",
		"}Na.":                                   "the target is not a list",
		"Na.":                                    "not 1 values on the stack",
		"cos\nsystem\nNR.":                       "arguments are no tuple",
	} {
		_, err := Read([]byte(text))
		require.ErrorContains(t, err, want, "%q", text)
	}
}

// TestCycles: values that contain themselves are described.
func TestCycles(t *testing.T) {
	for text, want := range map[string]string{
		"}q\x00\x8c\x01ah\x00s.":    "a dict",
		"]q\x00h\x00a.":             "a list",
		"]\x85.":                    "a tuple",
		"cm\nC\n]q\x00h\x00a\x85R.": "what m.C makes",
		"cm\nC\n)R)R.":              "an object",
		"NQ.":                       "a storage",
		"N.":                        "None",
		"\x88.":                     "true",
		"\x8c\x01\n.":               `"\n"`,
		"c" + strings.Repeat("m", 200) + "\nC\n.": strings.Repeat("m", 80) + "…",
	} {
		v, err := Read([]byte(text))
		require.NoError(t, err)
		require.Equal(t, want, Describe(v))
	}
}

// TestMemory: a pickle takes at most some hundred times its size, whatever lengths it states.
func TestMemory(t *testing.T) {
	const n = 50_000
	for _, text := range []string{"}", "(", "]\x94", "N\x85", "N\x94", "X\xff\xff\xff\xff", "\x8e\xff\xff\xff\xff\xff\xff\xff\x7f"} {
		b := bytes.Repeat([]byte(text), n)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		Read(b)
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(400*n), "%q", text)
	}
	// What is in the file once is neither copied nor looked up each time it is used.
	long := "X\x00\x00\x01\x00" + strings.Repeat("m", 1<<16) + "\x94"
	for text, want := range map[string]string{
		"h\x00h\x00\x93.": "opcode 0x93 at byte 65546: a name of 131072 bytes",
		"}h\x00Ns.":       "opcode 0x73 at byte 65546: a key of 65536 bytes",
	} {
		_, err := Read([]byte(long + text))
		require.ErrorContains(t, err, want)
	}
}
