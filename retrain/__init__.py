"""What every step shares: the config, the artifacts, the cache, the registry, the console."""

import os

# Settings of libraries, made before any of them is imported; a value that the user has set is kept.
SETTINGS = {
    # No telemetry: the data may be private.
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "GX_ANALYTICS_ENABLED": "false",
    "DVC_NO_ANALYTICS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # Arrow's own allocators return little memory to the system: when it read many small parts, a
    # process grew to several times the size of its data.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    # With MLflow's defaults a step waits for minutes when the server does not answer.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # Under `uv run`, Ray would send the clone to the workers, and have uv start each of them.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
# A Ray that this project starts is for this machine only: it listens on loopback (the variable's
# name is Ray's) and refuses requests without a token.
if not os.environ.get("RAY_ADDRESS"):
    SETTINGS |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token"}
for _name, _value in SETTINGS.items():
    os.environ.setdefault(_name, _value)

# What is on this machine is not asked through a proxy.
NO_PROXY = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""  # of the user
os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(
    filter(None, [NO_PROXY, "127.0.0.1,localhost"])
)
