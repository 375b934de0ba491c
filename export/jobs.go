package export

import (
	"fmt"
	"path/filepath"
	"strings"
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
if [ -n "${SLURM_RESTART_COUNT:-}" ] && autopar checkpoint inspect %[1]s >/dev/null 2>&1; then
  resume=--resume
fi
exec srun --kill-on-bad-exit=1 autopar run %[2]s --device %[3]s --out %[1]s $resume
`, quote(p.Config.Train.OutDir), quote(o.Plan), p.device())
}

// kubernetes writes an Indexed Job with a pod for each node (Kubernetes 1.24 or later), whose
// agents meet at the first one, and the headless Service by which it has a name. Plan, data and
// checkpoints are on one volume.
func (p *plan) kubernetes(o Options) string {
	resources := ""
	if p.device() == "cuda" {
		resources = fmt.Sprintf("          resources:\n            limits: {nvidia.com/gpu: %d}\n", p.perNode)
	}
	command := []string{"autopar", "launch", filepath.Base(o.Plan), "--nnodes", fmt.Sprint(p.machines), "--nproc", fmt.Sprint(p.perNode), "--max-restarts", "3", "--device", p.device()}
	if p.machines > 1 {
		command = append(command, "--node-rank", "$(JOB_COMPLETION_INDEX)", "--master", "autopar-0.autopar:29500")
	}
	words := make([]string, len(command))
	for i, word := range command {
		words[i] = fmt.Sprintf("%q", word)
	}
	return p.header(o,
		"A claim named autopar has the plan and the data, and gets the checkpoints: kubectl apply -f FILE") +
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
          command: [%[3]s]
%[4]s          volumeMounts:
            - {name: job, mountPath: /job}
            - {name: shm, mountPath: /dev/shm}
      volumes:
        - name: job
          persistentVolumeClaim: {claimName: autopar}
        - name: shm
          emptyDir: {medium: Memory}
`, p.machines, o.Image, strings.Join(words, ", "), resources)
}
