"""The figures of the text, one kind a file. Each is drawn from results files, and from nothing else."""
