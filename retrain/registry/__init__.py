"""The model registry: versions, aliases, and the ledger of all decisions."""
