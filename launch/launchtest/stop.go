package launchtest

import (
	"fmt"
	"os"
	"os/exec"
)

// Stop stops this process for so many seconds, as ^Z does, and returns when it has been continued.
func Stop(seconds int) error {
	return exec.Command("sh", "-c", fmt.Sprintf("kill -STOP %[1]d; sleep %[2]d; kill -CONT %[1]d", os.Getpid(), seconds)).Run()
}
