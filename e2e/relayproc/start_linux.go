package relayproc

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// startTied starts a process that the kernel kills when this one ends, however
// it ends. The kernel watches the thread that started it, hence one thread
// that never ends starts them all.
func startTied(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	done := make(chan error)
	starter() <- func() { done <- cmd.Start() }
	return <-done
}

var starter = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})
