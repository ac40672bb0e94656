"""The native sandbox: Linux namespaces, Landlock, seccomp and cgroups around every run.

The life of a cell, and the module of each step:

                          NativeSandbox.run                                   native.py
                                 |
             +-------------------+--------------------------+
             | session with a live cell                     | one-shot run
             v                                              v
       LiveSessions         sessions.py             WarmPath, ColdPath        one_shot.py
             |                                              |
       LiveCellFactory      live_cell_factory.py            |
             |                                              |
             +--- warm ----------------+--------------------+--- cold ----+
             |                         |                                  |
             |                       Pool                  pool.py        |
             |                         |  keeps one Template per spec     |
             |                         |  and ready cells of each         |
             |                    PreforkQueue             prefork.py     |
             |                         |  the template's shim forks       |
             |                         |  single-use cells ahead          |
             v                         v                                  v
         ForkedCell <-------------- WarmCell                         PreparedCell
             |          forked_cell.py |                    prepared_cell.py |
             v                         v                                  |
          Template: a prepared cell which runs a zygote    template.py    |
             |                                                            |
             +-------------------------> PreparedCell <-------------------+
                                             |  one bubblewrap, one cgroup, one shim
                                             v
                                         CellShim                             shim.py, cell/shim.c

    A live cell is a LiveCell (live_cell.py) made from either kind. Each run in any cell is
    watched by one RunMonitor (run_monitor.py), which serves its pipes (run_io.py) and turns the
    end into a RunResult (run_result.py).

Processes outside the cell: the shim starts bubblewrap, outlives it and removes the cgroup; the
placeholder reaper (placeholder_reaper.py) removes placeholders from users' directories. Inside the
cell, init (cell/init.c) is PID 1, builds the inner walls and starts programs; the zygote
(cell/zygote.c) forks cells. outer_wall.py and cell_plan.py write their work as data (plan.py).
"""
