"""The native sandbox: Linux namespaces, Landlock, seccomp and cgroups around every run.

The way of a run to its cell:

    NativeSandbox.run                                                         native.py
      |
      |-- in a session ---> LiveSessions ---> LiveCellFactory                 sessions.py
      |                                        |-- warm --> ForkedCell        live_cell_factory.py
      |                                        '-- cold --> PreparedCell
      |
      '-- one-shot --+--> WarmPath --> Pool --> WarmCell                      pool.py
                     '--> ColdPath ----------> PreparedCell

The kinds of cells, and what they are made of:

    PreparedCell   one bubblewrap, one cgroup and one shim; init waits        prepared_cell.py
      |            for its plan. SpareCells keeps one ready for the next run.
      |
    Template       a PreparedCell whose program is a zygote                   template.py
      |            (what it contains: TemplateSpec)                           template_spec.py
      |
    ForkedCell     forked by the zygote inside the template's outer wall;     forked_cell.py
      |            takes namespaces of its own and builds its inner walls
      |
    WarmCell       a ForkedCell for one run. The template's shim forks them   prefork.py
                   ahead (PreforkQueue); the Pool keeps those that are ready.

    LiveCell       stays alive between the runs of a session; made from a     live_cell.py
                   ForkedCell (warm) or a PreparedCell (cold)

Each run is watched by one RunMonitor (run_monitor.py), which serves its pipes (run_io.py) and turns
its end into a RunResult (run_result.py).

Processes outside a cell: the shim (shim.py, cell/shim.c) starts bubblewrap, outlives it and removes
the cgroup; the reaper (placeholder_reaper.py, cell/reaper.c) removes placeholders from users'
directories. Inside, init (cell/init.c) is PID 1, builds the inner walls and starts programs; the
zygote (cell/zygote.c) forks cells. outer_wall.py and cell_plan.py write their steps (plan.py).
"""
