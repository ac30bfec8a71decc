"""Grading for teachers: hidden inputs, a worker that learner's code cannot leave, one record with three exports.

`nanoinfer course check` uses none of it. `assignment` is what a release hands over, `grade_submission` grades one
submission and `grade_class` a folder of them, `isolation` holds the layers around the worker.
"""
