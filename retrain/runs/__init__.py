"""Running a flow's steps, dry runs, and the records of runs."""
