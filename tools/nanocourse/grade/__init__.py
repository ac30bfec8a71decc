"""Grading for teachers: hidden inputs, a worker that learner's code cannot leave, one record with three exports.

A learner's own `nanoinfer course check` uses none of it. `assignment` is what a release hands over, `grade` is one
submission, `classroom` is a folder of them, `isolation` holds the layers around the worker.
"""
