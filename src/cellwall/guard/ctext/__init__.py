"""Single passes over text, written in C: they say where it is worth to look closer.

Built when Cellwall is installed, see `build_native.py` and docs/adr/0013-compiled-passes.md. What
they may do with hostile text is said in `passes.h`. Each `.py` file here calls the `.c` file of the
same name.
"""
