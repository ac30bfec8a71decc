"""The classroom: exercises, checks, hints, predictions, quizzes, grading and releases. It knows no chapter by name.

A chapter's folder holds everything that belongs to the chapter; `chapters/01-naive/exercises/FORMAT.md` describes its
files. A learner's code runs in a worker process (`checks`), which gets inputs and returns results; only the parent
knows what is right. Notebooks use `exercises.answers`: right and wrong answers by name. Importing this package does not
load torch.
"""
