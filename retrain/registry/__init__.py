"""The model registry: versions and aliases, and the ledger of all decisions."""
