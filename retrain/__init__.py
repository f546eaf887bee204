"""What every step shares: the config, the artifacts, the cache, the registry, the console."""

import os

# A tool that trains on private data phones nobody. Set before any of the libraries is imported;
# a value that the user has set stands.
for _switch, _off in {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "GX_ANALYTICS_ENABLED": "false",
    "DVC_NO_ANALYTICS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}.items():
    os.environ.setdefault(_switch, _off)

# Arrow's own allocators keep most of what they were ever given: reading by small parts, a process
# grew to several times what it held.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

# A Ray of ours is for this machine alone: it listens on loopback only (the name is Ray's) and takes
# no orders without a token.
if not os.environ.get("RAY_ADDRESS"):
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "token")
