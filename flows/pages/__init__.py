"""The reports of runs as HTML pages: what each says, and how it looks."""
