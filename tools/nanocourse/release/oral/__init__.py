"""Questions that a teacher asks a learner about their own code."""
