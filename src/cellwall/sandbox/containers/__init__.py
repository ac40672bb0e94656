"""Cells in containers of Docker or Podman: the engine builds the outer wall in place of bubblewrap.

    ContainerPath, ContainerCells    one-shot runs and live cells          container_path.py
      '-- ContainerCell              one container, and init inside        container_cell.py
            |-- container_request    what the engine is asked for; pure    container_request.py
            |-- container_plan       init's steps inside; pure             container_plan.py
            |-- root_image           the root file system; pure            root_image.py
            '-- Engine               the engine's API                      engine.py

Inside, `cellwall-cell join` receives the descriptors that an engine does not pass on, and goes on
as the same init as in a native cell: rlimits, Landlock, the seccomp filter, reports. All mounts are
made by the engine, since init has no capability.
"""
