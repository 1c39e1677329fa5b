#!/bin/bash
# A picture set made by the tasks of one SLURM job, over several machines: sbatch examples/slurm_step.sh
#
# A task that fails, or whose machine does, does not end the others; submit the job again for what is left.
# MODEL, PROMPTS, OUT and CACHE are on storage that all machines see.
#SBATCH --job-name=lantern-set
#SBATCH --ntasks=16
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-task=1
#SBATCH --time=12:00:00
#SBATCH --no-kill
#SBATCH --output=lantern-set-%j.log
set -euo pipefail

MODEL=${MODEL:-demo}
PROMPTS=${PROMPTS:-prompts.txt}
OUT=${OUT:-pictures}
# Programs that one task compiled are reused by the next.
export JAX_COMPILATION_CACHE_DIR=${CACHE:-$PWD/cache}

# srun does not inherit the CPUs that were asked for.
srun --cpus-per-task="${SLURM_CPUS_PER_TASK:-8}" --kill-on-bad-exit=0 --no-kill lantern set --worker auto --model "$MODEL" --prompts "$PROMPTS" --out "$OUT" --seed 1
