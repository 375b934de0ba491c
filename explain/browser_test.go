package explain

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// browser is a headless Chromium, driven by the DevTools protocol over a pipe: JSON messages, each followed by a zero byte.
type browser struct {
	t       *testing.T
	to      *os.File
	from    *bufio.Reader
	id      int
	session string
	// errors lists exceptions and console errors of the page.
	errors []string
}

// openBrowser starts Chromium, or skips the test if there is none.
func openBrowser(t *testing.T) *browser {
	t.Helper()
	program := os.Getenv("CHROMIUM")
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "headless_shell"} {
		if path, err := exec.LookPath(name); err == nil && program == "" {
			program = path
		}
	}
	if program == "" {
		t.Skip("no chromium or google-chrome on the PATH, and CHROMIUM names none")
	}
	in, to, err := os.Pipe()
	require.NoError(t, err)
	from, out, err := os.Pipe()
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "autopar-browser")
	require.NoError(t, err)
	cmd := exec.Command(program, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--window-size=1300,1000",
		"--user-data-dir="+dir, "about:blank")
	cmd.ExtraFiles = []*os.File{in, out} // file descriptors 3 and 4
	require.NoError(t, cmd.Start())
	in.Close()
	out.Close()
	b := &browser{t: t, to: to, from: bufio.NewReaderSize(from, 1<<20)}
	timer := time.AfterFunc(2*time.Minute, func() { cmd.Process.Kill() })
	t.Cleanup(func() {
		timer.Stop()
		to.Close()
		cmd.Process.Kill()
		cmd.Wait()
		from.Close()
		// Child processes of the browser outlive it for a moment, and still write there.
		require.Eventually(t, func() bool { return os.RemoveAll(dir) == nil }, time.Minute, 50*time.Millisecond)
	})
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var session struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session)
	b.session = session.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.call(domain+".enable", nil, nil)
	}
	return b
}

// call sends a command and waits for its answer. It records errors of the page that arrive meanwhile.
func (b *browser) call(method string, params map[string]any, result any) {
	b.t.Helper()
	b.id++
	message := map[string]any{"id": b.id, "method": method, "params": params}
	if params == nil {
		message["params"] = map[string]any{}
	}
	if b.session != "" {
		message["sessionId"] = b.session
	}
	text, err := json.Marshal(message)
	require.NoError(b.t, err)
	_, err = b.to.Write(append(text, 0))
	require.NoError(b.t, err)
	for {
		got, err := b.from.ReadBytes(0)
		require.NoError(b.t, err, "the browser has gone away at %s", method)
		var answer struct {
			ID     int
			Method string
			Params json.RawMessage
			Result json.RawMessage
			Error  *struct{ Message string }
		}
		require.NoError(b.t, json.Unmarshal(got[:len(got)-1], &answer))
		switch {
		case answer.ID == b.id:
			require.Nil(b.t, answer.Error, "%s: %s", method, got)
			if result != nil {
				require.NoError(b.t, json.Unmarshal(answer.Result, result))
			}
			return
		case answer.Method == "Runtime.exceptionThrown",
			answer.Method == "Log.entryAdded" && strings.Contains(string(answer.Params), `"error"`),
			answer.Method == "Runtime.consoleAPICalled" && strings.Contains(string(answer.Params), `"type":"error"`):
			b.errors = append(b.errors, string(answer.Params))
		case answer.Method == "Network.requestWillBeSent":
			var sent struct{ Request struct{ URL string } }
			require.NoError(b.t, json.Unmarshal(answer.Params, &sent))
			if url := sent.Request.URL; !strings.HasPrefix(url, "file:") && !strings.HasPrefix(url, "data:") {
				b.errors = append(b.errors, "the page fetches "+url)
			}
		}
	}
}

// eval runs an expression in the page and returns its value as text.
func (b *browser) eval(expression string) string {
	b.t.Helper()
	var out struct {
		Result           struct{ Value any }
		ExceptionDetails json.RawMessage
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &out)
	require.Empty(b.t, string(out.ExceptionDetails), expression)
	return fmt.Sprint(out.Result.Value)
}

// frame waits until the page has been drawn again.
func (b *browser) frame() {
	b.eval(`new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))`)
}

// point moves the pointer over the middle of an element, or clicks there.
func (b *browser) point(selector string, click bool) {
	b.t.Helper()
	var at struct{ X, Y float64 }
	place := b.eval(fmt.Sprintf(`(() => { const e = document.querySelector(%q); e.scrollIntoView({block: "center"}); const r = e.getBoundingClientRect(); return JSON.stringify({X: r.x + r.width / 2, Y: r.y + r.height / 2}); })()`, selector))
	require.NoError(b.t, json.Unmarshal([]byte(place), &at), selector)
	mouse := func(kind string) {
		b.call("Input.dispatchMouseEvent", map[string]any{"type": kind, "x": at.X, "y": at.Y, "button": map[bool]string{true: "left", false: "none"}[kind != "mouseMoved"], "clickCount": 1}, nil)
	}
	mouse("mouseMoved")
	if click {
		mouse("mousePressed")
		mouse("mouseReleased")
	}
	b.frame()
}

// wheel turns the wheel over an element.
func (b *browser) wheel(selector string, by float64) {
	b.t.Helper()
	var at struct{ X, Y float64 }
	place := b.eval(fmt.Sprintf(`(() => { const r = document.querySelector(%q).getBoundingClientRect(); return JSON.stringify({X: r.x + r.width / 2, Y: r.y + r.height / 2}); })()`, selector))
	require.NoError(b.t, json.Unmarshal([]byte(place), &at))
	b.call("Input.dispatchMouseEvent", map[string]any{"type": "mouseWheel", "x": at.X, "y": at.Y, "deltaX": 0, "deltaY": by}, nil)
	b.frame()
}

// visit opens a file and waits until it is loaded.
func (b *browser) visit(path string) {
	b.call("Page.navigate", map[string]any{"url": "file://" + path}, nil)
	for range 3000 {
		if b.eval(`document.readyState + " " + location.protocol`) == "complete file:" {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	b.t.Fatal("the page does not load")
}

// screenshot saves a picture of the page, if SCREENSHOTS names a directory.
func (b *browser) screenshot(name string) {
	dir := os.Getenv("SCREENSHOTS")
	if dir == "" {
		return
	}
	var shot struct{ Data string }
	b.call("Page.captureScreenshot", map[string]any{"format": "png"}, &shot)
	png, err := base64.StdEncoding.DecodeString(shot.Data)
	require.NoError(b.t, err)
	require.NoError(b.t, os.WriteFile(filepath.Join(dir, name+".png"), png, 0o666))
}
