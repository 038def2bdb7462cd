#!/usr/bin/env bash
# shellcheck disable=SC1091  # what a site activates does not lie here
# Starts the training processes of one node; to be run once on each node of the job.
# qwen3-8b-openthoughts-bs96 at vista: 4 node(s) × 1 process(es)
set -euo pipefail

# Activation scripts read variables that may not be set.
set +u
source /etc/profile || true
module load gcc/15.1.0 cuda/12.8
source FILL_IN/bin/activate otagent
export PYTHONPATH=/repository
set -u

# AF_UNIX paths end at 108 bytes, so sockets need a short TMPDIR; it is this job's own.
TMPDIR=$(mktemp -d /tmp/sft.XXXXXX)
export TMPDIR
SPILL=$TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
# Caches that each process writes: shared ones are torn by many nodes at once.
export HF_DATASETS_CACHE="$SPILL/datasets" XDG_CACHE_HOME="$SPILL/cache" TRITON_CACHE_DIR="$SPILL/triton"
export TORCHINDUCTOR_CACHE_DIR="$SPILL/inductor" TORCH_EXTENSIONS_DIR="$SPILL/extensions"
export PYTHONFAULTHANDLER=1 # SIGABRT lets a process write its stack

# What is set here wins over all of the above.
export HF_HOME=/FILL_IN/hf
export WANDB_MODE=disabled
export OMP_NUM_THREADS=72
export TOKENIZERS_PARALLELISM=false
export PYTHONUNBUFFERED=1
export CC=gcc
export CXX=g++
export NCCL_IB_TIMEOUT=23
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
export PYTHONFAULTHANDLER=1


if [ -n "${SLURM_JOB_NODELIST:-}" ]; then
  read -r MASTER_ADDR < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
else
  MASTER_ADDR=127.0.0.1
fi
# Two jobs on a node must not meet: the port follows from the job, below those that hosts give out.
MASTER_PORT=$((16000 + ${SLURM_JOB_ID:-$$} % 16000))

python -m torch.distributed.run \
  --nnodes 4 --nproc-per-node 1 \
  --rdzv-backend c10d --rdzv-id "${SLURM_JOB_ID:-$$}" --rdzv-endpoint "$MASTER_ADDR:$MASTER_PORT" \
  --rdzv-conf "is_host=$((${SLURM_NODEID:-0} == 0))" \
  -m sft.trainers.llamafactory train /runs/r/train.yaml --world-size 4 &
trainer=$! told=yes

# Slurm tells only this script to end. The trainer is told in turn, saves a checkpoint and leaves.
trap 'told=yes; kill -TERM "$trainer" || :' TERM
# Of a job that makes no step: the training processes write where they hang, and end.
trap 'told=yes; pkill -ABRT -P "$trainer" || :' ABRT
while [ "$told" ]; do # a signal ends `wait`, not the trainer
  told='' code=0
  wait "$trainer" || code=$?
done
exit "$code"
