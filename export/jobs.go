package export

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/autopar/autopar/checkpoint"
)

// slurm writes a batch script that starts a process for each rank: autopar run takes rank and
// addresses from Slurm's variables. Before the time is over the job is interrupted, and saves; when
// it is put into the queue again, by Slurm or by hand, it goes on from its newest checkpoint.
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
		p.header(o, "Send it off with sbatch where autopar, the plan and the data are seen by all nodes.", goesOn) +
		fmt.Sprintf(`set -eu
resume=
if [ -e %s ]; then
  resume=--resume
fi
exec srun --kill-on-bad-exit=1 autopar run %s --device %s --out %s $resume
`, p.latest(), Quote(o.Plan), p.device(), Quote(p.Config.Train.OutDir))
}

// goesOn is said of jobs that others start again, or that somebody sends off once more when their time was over.
const goesOn = "A checkpoint that is there is gone on from: for another run name another train.out_dir."

// latest is what is there, for a shell, once there is a checkpoint. One that is damaged is not for a
// new run to replace.
func (p *plan) latest() string {
	return Quote(filepath.Join(p.Config.Train.OutDir, checkpoint.LatestFile))
}

// kubernetes writes an Indexed Job with a pod for each node (Kubernetes 1.24 or later), whose
// agents meet at the first one, and the headless Service by which it has a name. Plan, data and
// checkpoints are on one volume. A pod that takes the place of another is given the same command: it
// goes on from the newest checkpoint, where there is one. When a pod is taken away the job saves, and its agents end well, but it
// is not done: only a pod that finds the last checkpoint has succeeded. The others may see it some time later.
func (p *plan) kubernetes(o Options) string {
	resources := ""
	if p.device() == "cuda" {
		resources = fmt.Sprintf("          resources:\n            limits: {nvidia.com/gpu: %d}\n", p.perNode)
	}
	words := []string{"autopar", "launch", Quote(filepath.Base(o.Plan)), "--nnodes", fmt.Sprint(p.machines), "--nproc", fmt.Sprint(p.perNode), "--max-restarts", "3", "--device", p.device()}
	if p.machines > 1 {
		words = append(words, "--node-rank", "$JOB_COMPLETION_INDEX", "--master", "autopar-0.autopar:29500")
	}
	evaluated := ""
	if p.Config.Train.EvalOnly { // that saves nothing
		evaluated = "exit 0\n"
	}
	script := fmt.Sprintf(`latest=%s
if [ -e "$latest" ]; then resume=--resume; fi
stopped=
trap 'stopped=1; kill $!' TERM
%s --out %s $resume &
wait $!; status=$?
if [ "$stopped" ]; then wait $!; status=$?; fi
if [ $status != 0 ]; then exit $status; fi
%sfor try in 1 2 3 4 5 6; do
  read -r at < "$latest" && at=${at#step-} && [ "${at%%%%.*}" -ge %d ] && exit 0
  sleep 5
done
exit 1`, p.latest(), strings.Join(words, " "), Quote(p.Config.Train.OutDir), evaluated, p.Config.Train.MaxIters+1)
	return p.header(o,
		"A claim named autopar has the plan and the data, and gets the checkpoints: kubectl apply -f FILE",
		goesOn) +
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
  backoffLimit: %[5]d
  podFailurePolicy:
    rules:
      - action: FailJob # wrong input, or no plan that fits, is so the next time too
        onExitCodes: {containerName: autopar, operator: In, values: [2, 3]}
      - action: Ignore # a pod that is taken away counts for no failure
        onPodConditions: [{type: DisruptionTarget}]
  template:
    spec:
      subdomain: autopar
      restartPolicy: Never
      terminationGracePeriodSeconds: 300
      containers:
        - name: autopar
          image: %[2]q
          workingDir: /job
          command:
            - sh
            - -c
            - %[3]s
%[4]s          volumeMounts:
            - {name: job, mountPath: /job}
            - {name: shm, mountPath: /dev/shm}
      volumes:
        - name: job
          persistentVolumeClaim: {claimName: autopar}
        - name: shm
          emptyDir: {medium: Memory}
`, p.machines, o.Image, block(script, 14), resources, 3*p.machines)
}

// block is a word of a container's command in YAML: a block of lines with so many spaces before each, or quoted where a name has
// characters that no block can have. What Kubernetes would take for one of its variables is for the shell.
func block(text string, spaces int) string {
	text = strings.NewReplacer("$$", "$$$$", "$(", "$$(").Replace(text)
	if strings.ContainsFunc(text, strange) {
		return strconv.Quote(text)
	}
	before := "\n" + strings.Repeat(" ", spaces)
	return "|" + before + strings.ReplaceAll(text, "\n", before)
}
