"""The modules of the team that keeps its models trained here."""
