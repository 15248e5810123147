#!/usr/bin/env bash
#SBATCH --job-name=xcheck
#SBATCH --cpus-per-task=2
#SBATCH --requeue
# One task of a job array judges one shard; a job that depends on the array puts the reports together:
#
#   args="run --model $MODEL --reference $DUMP"
#   jobs=$(sbatch --parsable $(xcheck plan --model $MODEL --reference $DUMP --per-shard 5m --format slurm) contrib/slurm.sh $args)
#   sbatch --dependency=afterany:$jobs --wrap "xcheck merge reports/shards/* --report reports/all"
#
# Some shards again: sbatch --array=4,8 --export=ALL,XCHECK_SHARDS=16 contrib/slurm.sh $args
set -u
report="${XCHECK_REPORTS:-reports/shards}/$SLURM_ARRAY_TASK_ID"
"${XCHECK:-xcheck}" "$@" --shard auto --resume --report "$report"
code=$?
# 0, 1 and 3 are verdicts, which the merge tells; whatever else is worth another try.
case $code in 0 | 1 | 3) exit 0 ;; *) exit "$code" ;; esac
