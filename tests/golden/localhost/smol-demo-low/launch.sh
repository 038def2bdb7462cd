#!/usr/bin/env bash
# shellcheck disable=SC1091  # what a site activates does not lie here
# Starts the training processes of one node; to be run once on each node of the job.
# smol-demo-low at localhost: 1 node(s) × 1 process(es)
set -euo pipefail

# Activation scripts read variables that may not be set.
set +u
source /repository/.venv-llamafactory/bin/activate
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
export WANDB_MODE=disabled
export OMP_NUM_THREADS=2
export TOKENIZERS_PARALLELISM=false
export PYTHONUNBUFFERED=1
export SFT_ON_CPU=1
export OMP_WAIT_POLICY=passive


python -m sft.trainers.llamafactory train /runs/r/train.yaml --world-size 1 &
trainer=$! told=yes

# Slurm tells only this script to end. The trainer is told in turn, saves a checkpoint and leaves.
trap 'told=yes; kill -TERM "$trainer" || :' TERM
# Of a job that makes no step: the training processes write where they hang, and end.
trap 'told=yes; kill -ABRT "$trainer" || :' ABRT
while [ "$told" ]; do # a signal ends `wait`, not the trainer
  told='' code=0
  wait "$trainer" || code=$?
done
exit "$code"
