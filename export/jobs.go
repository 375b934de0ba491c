package export

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/autopar/autopar/checkpoint"
)

// slurm writes a batch script that starts a process for each rank: autopar run takes rank and
// addresses from Slurm's variables. Before the time is over the job is interrupted, and saves; when
// it is put into the queue again it goes on from its newest checkpoint.
func (p *plan) slurm(o Options) string {
	lines := []string{
		"#SBATCH --job-name=autopar",
		fmt.Sprintf("#SBATCH --nodes=%d", p.machines),
		fmt.Sprintf("#SBATCH --ntasks-per-node=%d", p.perNode),
	}
	if p.device() == "cuda" {
		lines = append(lines, fmt.Sprintf("#SBATCH --gpus-per-node=%d", p.perNode))
	}
	lines = append(lines, "#SBATCH --requeue", "#SBATCH --signal=INT@300")
	return "#!/bin/bash\n" + strings.Join(lines, "\n") + "\n" +
		p.header(o, "Send it off with sbatch where autopar, the plan and the data are seen by all nodes.") +
		fmt.Sprintf(`set -eu
resume=
if [ -n "${SLURM_RESTART_COUNT:-}" ] && [ -e %s ]; then
  resume=--resume
fi
exec srun --kill-on-bad-exit=1 autopar run %s --device %s --out %s $resume
`, p.latest(), quote(o.Plan), p.device(), quote(p.Config.Train.OutDir))
}

// latest is what is there, for a shell, once there is a checkpoint. One that is damaged is not for a
// new run to replace.
func (p *plan) latest() string {
	return quote(filepath.Join(p.Config.Train.OutDir, checkpoint.LatestFile))
}

// kubernetes writes an Indexed Job with a pod for each node (Kubernetes 1.24 or later), whose
// agents meet at the first one, and the headless Service by which it has a name. Plan, data and
// checkpoints are on one volume. A pod that takes the place of another is given the same command: it
// goes on from the newest checkpoint, where there is one.
func (p *plan) kubernetes(o Options) string {
	resources := ""
	if p.device() == "cuda" {
		resources = fmt.Sprintf("          resources:\n            limits: {nvidia.com/gpu: %d}\n", p.perNode)
	}
	words := []string{"autopar", "launch", quote(filepath.Base(o.Plan)), "--nnodes", fmt.Sprint(p.machines), "--nproc", fmt.Sprint(p.perNode), "--max-restarts", "3", "--device", p.device()}
	if p.machines > 1 {
		words = append(words, "--node-rank", "$JOB_COMPLETION_INDEX", "--master", "autopar-0.autopar:29500")
	}
	script := fmt.Sprintf("if [ -e %s ]; then resume=--resume; fi; exec %s --out %s $resume", p.latest(), strings.Join(words, " "), quote(p.Config.Train.OutDir))
	return p.header(o,
		"A claim named autopar has the plan and the data, and gets the checkpoints: kubectl apply -f FILE",
		"A checkpoint that is there is gone on from: for another run name another train.out_dir.") +
		fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: autopar}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {job-name: autopar}
---
apiVersion: batch/v1
kind: Job
metadata: {name: autopar}
spec:
  completionMode: Indexed
  completions: %[1]d
  parallelism: %[1]d
  backoffLimit: 3
  template:
    spec:
      subdomain: autopar
      restartPolicy: Never
      containers:
        - name: autopar
          image: %[2]q
          workingDir: /job
          command: [sh, -c, %[3]q]
%[4]s          volumeMounts:
            - {name: job, mountPath: /job}
            - {name: shm, mountPath: /dev/shm}
      volumes:
        - name: job
          persistentVolumeClaim: {claimName: autopar}
        - name: shm
          emptyDir: {medium: Memory}
`, p.machines, o.Image, script, resources)
}
