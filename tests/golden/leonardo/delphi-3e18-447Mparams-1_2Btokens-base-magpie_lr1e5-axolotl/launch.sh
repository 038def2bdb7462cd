#!/usr/bin/env bash
# shellcheck disable=SC1091  # what a site activates does not lie here
# Starts the training processes of one node; to be run once on each node of the job.
# delphi-3e18-447Mparams-1_2Btokens-base-magpie_lr1e5-axolotl at leonardo: 1 node(s) × 4 process(es)
set -euo pipefail

# Activation scripts read variables that may not be set.
set +u
source /etc/profile || true
ulimit -c 0
source FILL_IN/bin/activate sft-axolotl
export PYTHONPATH=/repository
set -u

# AF_UNIX paths end at 108 bytes, so sockets need a short TMPDIR; it is this job's own.
TMPDIR=$(mktemp -d /tmp/sft.XXXXXX)
export TMPDIR
# /tmp holds 9.6 GB here: large temporary files go where there is room, each node's to its own.
SPILL=/leonardo_work/FILL_IN/spill/${SLURM_JOB_ID:-$$}-${SLURM_NODEID:-0}
mkdir -p "$SPILL"
trap 'rm -rf "$TMPDIR" "$SPILL"' EXIT
# Caches that each process writes: shared ones are torn by many nodes at once.
export HF_DATASETS_CACHE="$SPILL/datasets" XDG_CACHE_HOME="$SPILL/cache" TRITON_CACHE_DIR="$SPILL/triton"
export TORCHINDUCTOR_CACHE_DIR="$SPILL/inductor" TORCH_EXTENSIONS_DIR="$SPILL/extensions"
export WANDB_DIR=/runs/r/logs
export PYTHONFAULTHANDLER=1 # SIGABRT lets a process write its stack

# What is set here wins over all of the above.
export HF_HUB_OFFLINE=1
export HF_DATASETS_OFFLINE=1
export TRANSFORMERS_OFFLINE=1
export HF_HOME=/leonardo_work/FILL_IN/hf
export WANDB_MODE=offline
export OMP_NUM_THREADS=8
export TOKENIZERS_PARALLELISM=false
export PYTHONUNBUFFERED=1
export TORCH_NCCL_ENABLE_MONITORING=1
export TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=600
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1
export PYTHONFAULTHANDLER=1


if [ -n "${SLURM_JOB_NODELIST:-}" ]; then
  read -r MASTER_ADDR < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
else
  MASTER_ADDR=127.0.0.1
fi
# Two jobs on a node must not meet: the port follows from the job, below those that hosts give out.
MASTER_PORT=$((16000 + ${SLURM_JOB_ID:-$$} % 16000))

python -m torch.distributed.run \
  --nnodes 1 --nproc-per-node 4 \
  --node-rank "${SLURM_NODEID:-0}" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \
  -m sft.trainers.axolotl train /runs/r/train.yaml --world-size 4 &
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
