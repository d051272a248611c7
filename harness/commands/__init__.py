"""The commands of the command line, one to a module, with the options that each one takes.

1. The options of a command are one frozen dataclass, built from those in `options`, which several
   commands share. `values` has the types of options: how the text of one becomes a value.
2. `harness.cli` calls `run(*, options)` of a module (`golden` and `candidates` have commands of
   their own). It returns the exit status; each status is a constant of `options`.
3. A module imports torch and other large packages inside its functions only, so that `--help`
   and bad input answer at once.
4. A command refuses bad input with `UsageError` before it starts a rank.
5. `open_...` functions are context managers that start ranks and yield what works on them: a pool
   (`ranks`), an engine of one or several pools (`engines`), or a function that does one job. That
   function may run in another process or on another host, so it returns a record of plain values.
"""
