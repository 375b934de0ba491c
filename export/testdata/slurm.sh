#!/bin/bash
#SBATCH --job-name=autopar
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --requeue
#SBATCH --signal=INT@300
# plans/my plan.json for 16 ranks of h100, H100-80GB-SXM: autopar predicts 1.25 s per step,
# 52429 tokens/s. 12 blocks, 12 heads, width 768, 1024 tokens, 64 sequences per step.
# Send it off with sbatch where autopar, the plan and the data are seen by all nodes.
# A checkpoint that is there is gone on from: for another run name another train.out_dir.
set -eu
resume=
if [ -e 'it'\''s out/ckpt/latest' ]; then
  resume=--resume
fi
exec srun --kill-on-bad-exit=1 autopar run 'plans/my plan.json' --device cuda --out 'it'\''s out' $resume
