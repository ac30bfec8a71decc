"""The layers around a worker that runs a student's code: what the kernel offers without installing anything.

`policy` says what a worker may reach, `confine` restricts the worker from within before it reads the student's file,
`probe` tries what must be impossible and reports which layers hold. No layer is trusted alone.
"""
