package data

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestChar(t *testing.T) {
	tok := newChar(strings.Split("\n abé", ""))
	require.Equal(t, 5, tok.VocabSize())
	ids, err := tok.Encode("éa b\n")
	require.NoError(t, err)
	require.Equal(t, []int{4, 2, 1, 3, 0}, ids)
	require.Equal(t, "éa b\n", tok.Decode(ids))
	require.Equal(t, "a\ufffd\ufffdb", tok.Decode([]int{2, 5, -1, 3}))
	_, err = tok.Encode("éz")
	require.ErrorContains(t, err, `character 'z' at byte 2 is not among the 5 symbols`)
}

// gpt2ForTest builds the tokenizer once for all tests.
var gpt2ForTest = sync.OnceValues(NewGPT2)

func mustGPT2(t testing.TB) *GPT2 {
	tok, err := gpt2ForTest()
	require.NoError(t, err)
	return tok
}

// The ids are those of OpenAI's tiktoken (Python), encode_ordinary in a text, encode with the special token in a prompt.
func TestGPT2AgreesWithTiktoken(t *testing.T) {
	tok := mustGPT2(t)
	for text, want := range map[string][]int{
		"":                                    {},
		"hello world":                         {31373, 995},
		"First Citizen:\n\nBefore we proceed": {5962, 22307, 25, 198, 198, 8421, 356, 5120},
		"it's  we'll\t\t'tis\n\n\n x\u00a0 y \u2003z": {270, 338, 220, 356, 1183, 197, 197, 470, 271, 628, 198, 2124, 1849, 331, 220, 447, 225, 89},
		"Ünïcode 𝄞 日本語、1234 <|endoftext|>":            {127, 250, 77, 26884, 8189, 220, 47728, 226, 252, 10545, 245, 98, 17312, 105, 45739, 252, 23513, 1065, 2682, 1279, 91, 437, 1659, 5239, 91, 29},
		" \n":    {220, 198},
		"a \r b": {64, 220, 201, 275},
	} {
		ids := streamGPT2(t, text, gpt2ChunkSize)
		require.Equal(t, want, ids, "%q", text)
		require.Equal(t, text, tok.Decode(ids))
		if !strings.Contains(text, "<|endoftext|>") {
			ids, err := tok.Encode(text)
			require.NoError(t, err)
			require.Equal(t, want, ids, "%q", text)
		}
	}
	ids, err := tok.Encode("<|endoftext|>hello world<|endoftext|><|endoftext|>hello")
	require.NoError(t, err)
	require.Equal(t, []int{50256, 31373, 995, 50256, 50256, 31373}, ids)
	require.Equal(t, 50257, tok.VocabSize())
	require.Equal(t, "hello\ufffd\ufffd world<|endoftext|>", tok.Decode([]int{31373, 50257, -1, 995, 50256}))
	_, err = tok.Encode("a\xff")
	require.ErrorContains(t, err, "not valid UTF-8")
}

func TestLoadTokenizer(t *testing.T) {
	dir := t.TempDir()
	tok, err := LoadTokenizer(dir)
	require.NoError(t, err)
	require.Equal(t, 50257, tok.VocabSize())

	path := filepath.Join(dir, MetaFile)
	require.NoError(t, os.WriteFile(path, appendMeta(nil, strings.Split("ab", "")), 0o644))
	tok, err = LoadTokenizer(dir)
	require.NoError(t, err)
	require.Equal(t, "ba", tok.Decode([]int{1, 0}))

	require.NoError(t, os.WriteFile(path, []byte("junk"), 0o644))
	_, err = LoadTokenizer(dir)
	var input *InputError
	require.ErrorAs(t, err, &input)
	require.Equal(t, path, input.File)
}

// streamGPT2 encodes text in chunks cut at the first chance after size bytes.
func streamGPT2(t testing.TB, text string, size int) []int {
	ids := []int{}
	s := &gpt2Stream{bpe: mustGPT2(t), name: "text", size: size, limit: gpt2ChunkLimit, emit: func(id int) error {
		ids = append(ids, id)
		return nil
	}}
	for _, c := range text {
		require.NoError(t, s.add(c))
	}
	require.NoError(t, s.flush())
	return ids
}

// Chunks must not show in the ids, wherever they are cut.
func TestGPT2StreamEqualsWhole(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	alphabet := []string{
		" ", "  ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u2003", "\u0085", "'", "'s", "'ll", "’", "a", "The", "Citizen",
		"é", "日本", "e\u0301", "1", "٣", "½", "!", "--", ":", "𝄞", "<|endoftext|>", "_", "ǅ", "ª",
	}
	for range 400 {
		var b strings.Builder
		for range random.IntN(30) {
			b.WriteString(alphabet[random.IntN(len(alphabet))])
		}
		want := mustGPT2(t).bpe.EncodeOrdinary(b.String())
		for _, size := range []int{1, 2, 7} {
			require.Equal(t, want, streamGPT2(t, b.String(), size), "%q in chunks of %d", b.String(), size)
		}
	}
}

func FuzzGPT2StreamEqualsWhole(f *testing.F) {
	f.Add("x\n\ny", 1)
	f.Add("it's 1st \t the", 3)
	f.Fuzz(func(t *testing.T, text string, size int) {
		text = strings.ToValidUTF8(text[:min(len(text), 2000)], "?")
		want := mustGPT2(t).bpe.EncodeOrdinary(text)
		require.Equal(t, want, streamGPT2(t, text, size))
	})
}

func TestGPT2StreamRefusesEndlessWord(t *testing.T) {
	s := &gpt2Stream{bpe: mustGPT2(t), name: "dump.txt", size: 8, limit: 16, emit: func(int) error { return nil }}
	var err error
	for i := 0; err == nil && i < 100; i++ {
		err = s.add('x')
	}
	var input *InputError
	require.ErrorAs(t, err, &input)
	require.EqualError(t, err, `data: dump.txt: 16 bytes without a boundary between words, starting "xxxxxxxxxxxxxxxx": is it text?`)
}
