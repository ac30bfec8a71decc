"""Running a learner's code in a worker process, and comparing what it returns with what is right."""
