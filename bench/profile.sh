#!/bin/sh
# Measures this machine and holds what the planner predicts from it against measured steps of twelve plans:
#   bench/profile.sh bin/autopar [STEPS] > bin/profile.md
# bench/profile.md has these tables and text written by hand: carry the tables over by hand.
set -eu
autopar=$1
steps=${2:-40}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
load=$(cut -d' ' -f1-3 /proc/loadavg)
"$autopar" -q profile -o "$dir/cluster.yaml" --check --steps "$steps" > "$dir/table"
cat <<END
# Predicted and measured steps on the CPU

Made by \`make profile-check\` (\`bench/profile.sh bin/autopar $steps\`) on $(date -u +%Y-%m-%d), $(uname -m), $(nproc) processors, $(go version 2>/dev/null | cut -d' ' -f3). Load averages
before $load, after $(cut -d' ' -f1-3 /proc/loadavg).

Plans are of two models:

| model | |
|---|---|
| narrow | nanoGPT's for a CPU (4 layers, 4 heads, C 128, T 64, batch 12, float32) |
| wide | two of the blocks of shakespeare_char (6 heads, C 384, T 256, batch 4, no dropout) |

The profile times other models, with one rank and with one rank a core, in four turns. After each turn all plans are timed in a
round, so that profile and plans find the machine in the same state. Noise is the standard error of the measured time over these
rounds. A rank correlation of all plans says little, as one model takes four times as long as the other.

## Result
END
sed -n '/^$/,$p' "$dir/table"
printf '\nThe cluster file:\n\n```yaml\n'
cat "$dir/cluster.yaml"
printf '```\n'
