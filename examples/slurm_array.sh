#!/bin/bash
# A picture set made by the tasks of a SLURM array: sbatch examples/slurm_array.sh
#
# Each task makes its part. One whose machine fails or is taken away is queued again and goes on from what is there;
# after any other failure, submit the same array again.
# MODEL, PROMPTS, OUT and CACHE are on storage that all machines see.
#SBATCH --job-name=lantern-set
#SBATCH --array=0-15
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-task=1
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --output=lantern-set-%A-%a.log
set -euo pipefail

MODEL=${MODEL:-demo}
PROMPTS=${PROMPTS:-prompts.txt}
OUT=${OUT:-pictures}
# Programs that one task compiled are reused by the next.
export JAX_COMPILATION_CACHE_DIR=${CACHE:-$PWD/cache}

lantern set --worker auto --model "$MODEL" --prompts "$PROMPTS" --out "$OUT" --seed 1
