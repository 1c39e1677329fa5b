#!/bin/bash
# A picture set made by the hosts of a TPU slice, each on its own. From a machine with gcloud:
#
#   gcloud compute tpus tpu-vm scp examples/tpu_vm_set.sh NAME:. --zone ZONE --worker all
#   gcloud compute tpus tpu-vm ssh NAME --zone ZONE --worker all --command "HOSTS=4 bash tpu_vm_set.sh"
#
# With xpk, where pods are told their index and the script needs no metadata server:
#
#   xpk workload create --cluster CLUSTER --workload lantern-set --tpu-type v5litepod-16 --docker-image IMAGE \
#     --command "HOSTS=4 HOST=\$TPU_WORKER_ID bash tpu_vm_set.sh"
#
# MODEL, PROMPTS, OUT and CACHE are on storage that all hosts see.
set -euo pipefail

: "${HOSTS:?HOSTS is how many hosts the slice has}"
MODEL=${MODEL:-demo}
PROMPTS=${PROMPTS:-prompts.txt}
OUT=${OUT:-pictures}
export JAX_COMPILATION_CACHE_DIR=${CACHE:-$PWD/cache}

metadata=http://metadata.google.internal/computeMetadata/v1/instance/attributes/agent-worker-number
HOST=${HOST:-$(curl -sf -H "Metadata-Flavor: Google" "$metadata")}

# Only this host's chips: the hosts of a slice would otherwise wait for each other, and a dead one would stop all.
# CHIPS is the host's grid, 2,2,1 for four chips.
export TPU_CHIPS_PER_PROCESS_BOUNDS=${CHIPS:-2,2,1}
export TPU_PROCESS_BOUNDS=1,1,1
unset TPU_WORKER_HOSTNAMES TPU_WORKER_ID

lantern set --worker "$((HOST + 1))/$HOSTS" --model "$MODEL" --prompts "$PROMPTS" --out "$OUT" --seed 1
