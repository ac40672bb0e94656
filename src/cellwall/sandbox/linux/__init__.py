"""The native sandbox: Linux namespaces, Landlock, seccomp and cgroups around every run.

How a run finds its cell:

    NativeSandbox.run                                                 native.py
      |-- in a session --> LiveSessions --> LiveCellFactory           sessions.py
      |                                      |-- warm --> ForkedCell  live_cell_factory.py
      |                                      '-- cold --> PreparedCell
      '-- one-shot --+--> WarmPath --> Pool --> WarmCell              pool.py
                     '--> ColdPath ----------> PreparedCell

How a cell is made:

    PreparedCell     one bubblewrap, one cgroup and one shim          prepared_cell.py
      |              (SpareCells keeps one for the next cold run)
      |-- its plan names a program: a cold cell
      '-- its plan names a zygote: a Template                         template.py
            |
            '-- fork --> ForkedCell: a warm cell; takes namespaces    forked_cell.py
                         of its own inside the template's outer wall
                         (WarmCell: for one run; the Pool keeps some ready)

The states of a cell, cold or warm:

    prepared --plan--> building --walls built--> ready --program--> running --exit--> ended
    (cold only)                                    ^                   |
                                                   '---- live cell ----'

    prepared   bubblewrap has started init, which waits for its plan
    building   init carries out its plan (cell_plan.py, walls.py): mounts, limits, Landlock, seccomp
    ready      a WarmCell in the Pool, or a LiveCell between two runs (live_cell.py)
    running    one RunMonitor (run_monitor.py) serves the pipes (run_io.py, channels.py) and turns
               the end into a RunResult (run_results.py)
    ended      init has reaped every process; the shim or the pool's worker removes the cgroup

A one-shot cell runs one program and is never used again; a live cell stays with its session. A
template that is dead, idle or an hour old forks no more cells, and ends with its last one.

Processes outside a cell: the shim starts bubblewrap, outlives it and removes the cgroup; the reaper
removes placeholders from users' directories (outside_processes.py). Inside, init (cell/init.c) is
PID 1, builds the inner walls and starts programs; the zygote (cell/zygote.c) forks cells.
"""
