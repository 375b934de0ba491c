package export

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/autopar/autopar/checkpoint"
)

// slurm writes a batch script that starts a process for each rank; autopar run takes rank and addresses from Slurm's
// variables. Slurm interrupts the job before its time is over, so that it saves. When it is queued again, by Slurm or by
// hand, it resumes from its newest checkpoint.
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

// goesOn is the comment on resuming, for jobs that may be started again by a scheduler or by hand.
const goesOn = "A checkpoint that is there is gone on from: for another run name another train.out_dir."

// latest is the file, as a word of a shell, that exists once there is a checkpoint. The scripts test that it exists, not that
// the checkpoint is sound: a new run must not replace a damaged one.
func (p *plan) latest() string {
	return Quote(filepath.Join(p.Config.Train.OutDir, checkpoint.LatestFile))
}

// kubernetes writes an Indexed Job with a pod for each node, and a headless Service that gives the first pod a name, at which
// the agents of all pods meet. Plan, data and checkpoints are on one volume. The Job's podFailurePolicy needs Kubernetes 1.26
// or later.
//
// A pod that replaces another has the same command: it resumes from the newest checkpoint, if there is one. When a pod is
// taken away, the job saves and its agents exit with status 0 although it is not done. So a pod succeeds only if it finds
// the last checkpoint. It looks several times, because the volume may show the checkpoint to other nodes some time later.
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
	if p.Config.Train.EvalOnly { // an evaluation saves no checkpoint
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

// block is one word of a container's command in YAML: a block scalar, with spaces before each line, or a quoted string if a
// name has characters that no block can have. It escapes what Kubernetes would take for one of its own variables, so that the
// shell gets it.
func block(text string, spaces int) string {
	text = strings.NewReplacer("$$", "$$$$", "$(", "$$(").Replace(text)
	if strings.ContainsFunc(text, strange) {
		return strconv.Quote(text)
	}
	before := "\n" + strings.Repeat(" ", spaces)
	return "|" + before + strings.ReplaceAll(text, "\n", before)
}
