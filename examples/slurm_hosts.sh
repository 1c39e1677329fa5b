#!/bin/bash
# A model that no machine holds alone, by the tasks of one SLURM job: sbatch examples/slurm_hosts.sh
#
# One task a GPU; four share a model, and there are two such groups. All tasks are one program: where one fails all end,
# shards that are written stay, and the same job submitted again goes on.
# MODEL, PROMPTS, OUT and CACHE lie on storage that all machines see.
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
# Programs that were compiled once are there for the next job.
export JAX_COMPILATION_CACHE_DIR=${CACHE:-$PWD/cache}

# SLURM shows each task its own GPU alone, which JAX would look for by the task's number on its machine.
export JAX_LOCAL_DEVICE_IDS=0

# srun does not take over the CPUs that were asked for.
srun --cpus-per-task="${SLURM_CPUS_PER_TASK:-8}" lantern set --hosts auto --mesh data=2,model=4 --model "$MODEL" --prompts "$PROMPTS" --out "$OUT" --seed 1
