"""The layers around a worker that runs a student's code: what the kernel can be asked for without any installation.

`policy` says what a worker may reach, `confine` locks it in there from within before it reads the student's file,
`probe` tries the doors once and says which are shut. No layer is trusted alone.
"""
