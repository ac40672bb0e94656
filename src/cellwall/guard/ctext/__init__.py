"""Single passes over text in C: they tell where a closer look is worthwhile.

Built at installation, see `build_native.py` and docs/adr/0013-compiled-passes.md. `passes.h` states
what the passes may do with hostile text.
"""
