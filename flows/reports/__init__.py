"""What the flows tell of their runs: documents, verdicts, questions to a person."""
