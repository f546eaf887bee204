#!/usr/bin/env bash
# Registers the deployments of this clone at the Prefect server of PREFECT_API_URL, and runs them.
#
# When it starts, it has the runs go on that an earlier one has left; if the server has other workers,
# whose names are those of their machines, only those that have held a lock in the store.
set -euo pipefail
: "${PREFECT_API_URL:?a worker needs the address of a Prefect server}"
if ! prefect work-pool inspect local > /dev/null 2>&1; then
  prefect --no-prompt work-pool create local --type process
  prefect work-pool set-concurrency-limit local 1 # a run at a time; what you set later stays
fi
python -m retrain.servers.deployments
exec python -m retrain.servers.program worker prefect worker start \
  --pool local --type process --name "$(hostname)"
