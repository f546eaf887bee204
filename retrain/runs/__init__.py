"""Running a flow's steps, looking without running, and the records of runs."""
