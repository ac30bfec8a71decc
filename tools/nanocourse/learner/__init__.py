"""A learner's own folder: progress, predictions, quizzes, and their functions in the engine."""
