#!/bin/bash
# A model that no machine can hold alone, run by the tasks of one SLURM job: sbatch examples/slurm_hosts.sh
#
# One task per GPU; four share a model, and there are two such groups. All tasks are one program: if one fails, all end,
# the shards written so far stay, and the same job, submitted again, goes on.
# MODEL, PROMPTS, OUT and CACHE are on storage that all machines see.
#SBATCH --job-name=lantern-hosts
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-task=1
#SBATCH --time=12:00:00
#SBATCH --output=lantern-hosts-%j.log
set -euo pipefail

MODEL=${MODEL:-demo}
PROMPTS=${PROMPTS:-prompts.txt}
OUT=${OUT:-pictures}
# Programs that were compiled once are reused by the next job.
export JAX_COMPILATION_CACHE_DIR=${CACHE:-$PWD/cache}

# SLURM shows each task only its own GPU, which JAX would otherwise look for by the task's number on its machine.
export JAX_LOCAL_DEVICE_IDS=0

# srun does not inherit the CPUs that were asked for.
srun --cpus-per-task="${SLURM_CPUS_PER_TASK:-8}" lantern set --hosts auto --mesh data=2,model=4 --model "$MODEL" --prompts "$PROMPTS" --out "$OUT" --seed 1
