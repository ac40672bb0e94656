"""A classic-BPF interpreter for seccomp filters: what the kernel would answer, without a kernel.

Written from the kernel's description of cBPF and apart from the generator, so that a shared
misreading of the encoding is unlikely. It accepts only what seccomp accepts.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass


class BadProgram(Exception):
    """The kernel would refuse this program, or it would read or jump out of bounds."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One `struct sock_filter`."""

    code: int
    jt: int
    jf: int
    k: int


def decode(program: bytes) -> list[Instruction]:
    """The instructions, after the checks of `bpf_check_classic` and `seccomp_check_filter`."""
    if not program or len(program) % 8 or len(program) // 8 > 4096:
        raise BadProgram("length")
    instructions = [Instruction(*fields) for fields in struct.iter_unpack("<HBBI", program)]
    for at, instruction in enumerate(instructions):
        left = len(instructions) - at - 1
        match instruction:
            case Instruction(code=0x20, k=k):
                if k % 4 or k >= 64:
                    raise BadProgram(f"{at}: load from {k}")
            case Instruction(code=0x15 | 0x35 | 0x45, jt=jt, jf=jf):
                if jt >= left or jf >= left:
                    raise BadProgram(f"{at}: jump past the end")
            case Instruction(code=0x05, k=k):
                if k >= left:
                    raise BadProgram(f"{at}: jump past the end")
            case Instruction(code=0x54 | 0x06):
                pass
            case _:
                raise BadProgram(f"{at}: unknown code {instruction.code:#x}")
    if instructions[-1].code != 0x06:
        raise BadProgram("the last instruction does not return")
    return instructions


def run(
    program: list[Instruction], *, arch: int, nr: int, args: tuple[int, ...] = ()
) -> tuple[int, int]:
    """The filter's answer, and how many instructions it took."""
    padded = [*args, 0, 0, 0, 0, 0, 0][:6]
    data = struct.pack("<IIQ6Q", nr & 0xFFFFFFFF, arch, 0, *(a & (2**64 - 1) for a in padded))
    at = steps = accumulator = 0
    while True:
        instruction = program[at]
        at += 1
        steps += 1
        match instruction.code:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, instruction.k)
            case 0x54:
                accumulator &= instruction.k
            case 0x05:
                at += instruction.k
            case 0x15:
                at += instruction.jt if accumulator == instruction.k else instruction.jf
            case 0x35:
                at += instruction.jt if accumulator >= instruction.k else instruction.jf
            case 0x45:
                at += instruction.jt if accumulator & instruction.k else instruction.jf
            case _:
                return instruction.k, steps
