"""Names that stand behind the fence of a block in Markdown. Pure data."""

from __future__ import annotations


def names(text: str) -> frozenset[str]:
    """Several at once, as people write them."""
    return frozenset(text.split())


LANGUAGES = names(
    "abap ada apl applescript asm assembly awk bash basic bat batch bazel c c# c++ cfg clj clojure "
    "cmake cobol coffeescript conf console cpp cs csharp css csv cuda cxx cython d dart diff "
    "docker dockerfile dosbatch elisp elixir elm erl erlang ex f# fish forth fortran fs fsharp "
    "gdscript git gitignore glsl gml go golang gradle graphql groovy h haskell hcl hlsl hpp hs "
    "http ini java javascript jinja jinja2 jl js json json5 jsonc jsonl julia jsx kotlin kt ksh "
    "less lisp llvm log lua m make makefile markdown matlab md mk mips mjs mts nasm nginx nim nix "
    "none objc objective-c ocaml octave output pascal patch perl php pl plain plaintext powershell "
    "prisma prolog properties proto protobuf ps1 puppet purescript py python python3 pycon qml r "
    "racket rb reason regex rego rs rst ruby rust sas sass scala scheme scss sh shell "
    "shell-session sql sol solidity starlark swift systemverilog tcl terraform text tf toml ts tsx "
    "txt typescript v vala vb vba vbnet verilog vhdl vim viml vue wasm wat wgsl xml yaml yml zig "
    "zsh"
)
"""Programs colour them, and do nothing else with them."""
DRAWN = names(
    "abc bpmn chart chartjs d2 dataview dataviewjs ditaa dot echarts embed excalidraw flowchart "
    "geojson graph graphviz katex latex markmap math mermaid nomnoml pikchr plantuml puml sequence "
    "stl svg svgbob tex tikz topojson uml vega vega-lite vegalite wavedrom"
)
"""Programs make a picture of them, and load what it names."""
