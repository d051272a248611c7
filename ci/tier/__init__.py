"""The GPU tier: the programs that `ci/gpu` runs on a machine with a GPU, and how it runs them.

A *step* is one program with a limit of seconds. A *visit* is one run of several steps within a
limit for all of them, and a *plan* is a list of steps that fit into one visit. The *probe* is the
step that measures how fast the machine judges cases.

1. The steps are data (`steps`), in the order of their value, so that a visit that runs out of time
   leaves out the least valuable ones. `shares` divides the time that is left among them; what the
   probe measured says how many cases fit.
2. A step runs in a process group of its own (`child`), which is interrupted and then killed when
   its time is over.
3. `visit` rewrites all results after every step, also as one small file (`archive`), because it
   may be killed at any moment.
4. `one_line` condenses the document of a step into one line of the summary.
5. `machine`, `probe`, `attention` and `collectives` are programs that steps run. All other modules
   need the standard library only, so that they run where packages are missing.
"""
