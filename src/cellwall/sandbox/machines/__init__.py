"""Cells in virtual machines: one QEMU for each cell, with a Linux kernel of its own.

    MachinePath, MachineCells        one-shot runs and live cells              machine_path.py
      '-- MachineCell                one machine, and init inside it           machine_cell.py
            |-- machine_walls        whether this host can; kernel, accelerator machine_walls.py
            |-- machine_plan         every command line and plan; pure          machine_plan.py
            '-- guest_image          kernel and initramfs                       guest_image.py

The supervisor's descriptors end at a relay on the host (cell/relay.c). Frames of bytes go to and
from PID 1 of the machine (cell/guest.c), which starts bubblewrap and init as the shim does on a
host. The same init builds the same inner walls.
"""
