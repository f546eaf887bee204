#!/usr/bin/env bash
# Joins the Ray cluster of RAY_ADDRESS as a machine that trains nothing, then runs a command:
#
#     deploy/join.sh deploy/worker.sh
#
# What starts a run has to be on a machine of the cluster. When Ray or the command ends, so does the
# other.
set -euo pipefail
ray start --address "$RAY_ADDRESS" --num-cpus 0 --num-gpus 0 --disable-usage-stats
raylet=$(pgrep --newest raylet)
trap 'kill $(jobs -p) $raylet' EXIT
tail --pid "$raylet" --follow /dev/null &
"$@" &
wait -n
