#!/usr/bin/env bash
# Joins the Ray cluster of RAY_ADDRESS as a machine that only starts runs, then runs a command:
#
#     deploy/join.sh deploy/worker.sh
#
# A run has to be on a machine of the cluster. Ends when the command ends, or this part of Ray.
set -euo pipefail
ray start --address "$RAY_ADDRESS" --num-cpus 0 --num-gpus 0 --disable-usage-stats
trap 'kill $(jobs -p)' EXIT
tail --pid "$(pgrep --newest raylet)" --follow /dev/null &
"$@" &
wait -n
