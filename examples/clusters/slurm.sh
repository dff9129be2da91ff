#!/bin/bash
# Trains on two hosts with eight GPUs each, as a job of Slurm. The arguments are flags of train_gpu.py:
#
#   sbatch examples/clusters/slurm.sh --preset wt103_base --data_dir data/wt103 --model_dir runs/wt103
#
# Five minutes before its time ends, the job saves a checkpoint and ends. Submitted again, it resumes;
# `sbatch --dependency=singleton`, several times, makes one job follow the other.
#SBATCH --job-name=txl
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=16
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@300
#SBATCH --output=%x-%j.out
set -euo pipefail

# All hosts must see the project, its .venv, and the folders of the flags at the same paths.
cd "$SLURM_SUBMIT_DIR"
. .venv/bin/activate
workers=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed 's/.*/"&:8470"/' | paste -sd,)
export WORKERS="$workers"
# shellcheck disable=SC2016  # each task sets its own index
srun --kill-on-bad-exit=0 bash -c '
  task="{\"type\": \"worker\", \"index\": $SLURM_PROCID}"
  export TF_CONFIG="{\"cluster\": {\"worker\": [$WORKERS]}, \"task\": $task}"
  exec python train_gpu.py "$@"' train_gpu.py "$@"
