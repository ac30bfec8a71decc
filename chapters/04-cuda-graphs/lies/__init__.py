"""Graphs that lied: defects of real engines, each small enough to be read, run and caught. Text: graphs-that-lied.md.

`toy` is a right engine; `frozen`, `moved`, `padding` and `coverage` hold engines that lie by one method, `alone` lies
that need no engine; `catalogue` lists them all with their threads. `python chapters/04-cuda-graphs/lies` runs them, on
a CPU by the stand-in and with `--device cuda` by real graphs.
"""
