"""The machinery of the course: exercises, checks, hints, predictions, quizzes. It knows no chapter by its name.

A chapter's folder holds all that is the chapter's own; how its files lie is told in its exercises/FORMAT.md. Checks
run in a process of their own (`worker`), which is handed inputs and gives results back; what is right is known to the
parent alone. `bank` is for notebooks: right and wrong answers by name. Importing this package loads no torch.
"""
