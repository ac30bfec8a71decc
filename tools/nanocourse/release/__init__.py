"""Releasing a chapter as an assignment: a tree for students, an autograder, and what the teacher keeps.

`plan` settles what is asked before anything is written, `release` writes it, `oral` draws questions about a learner's
own file.
"""
