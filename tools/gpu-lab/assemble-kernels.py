#!/usr/bin/env python3
"""Translates kernels that soft-cuda has kept with NVIDIA's assembler, for scripts/cuda-software.sh --assemble.

    assemble-kernels.py PTXAS FOLDER [INTO]

Prints the kernels that it refuses, and those with more numbers than registers. With INTO, it keeps the results there in
the same format: a driver accepts both, and then has nothing to translate when it loads a kernel.
"""

import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import blake3

# As in kernel-cache/src/kept.rs: a digest, then the kept text.
DIGEST = 32


def say(text):
    print(f"assemble-kernels.py: {text}", file=sys.stderr)


def assemble(ptxas, file, into, scratch):
    """Whether the assembler accepts the kernel, and its message about missing registers."""
    # A zero ends the text.
    text = file.read_bytes()[DIGEST:].rstrip(b"\0")
    target = re.search(rb"^\.target\s+(\w+)", text, re.MULTILINE)
    if target is None:
        return None, ""
    kernel, assembled = scratch / file.name, scratch / f"{file.stem}.cubin"
    kernel.write_bytes(text)
    command = [ptxas, "-v", f"-arch={target[1].decode()}", "-o", assembled, kernel]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if done.returncode != 0:
        return False, said
    if into is not None:
        content = assembled.read_bytes()
        (into / file.name).write_bytes(blake3.blake3(content).digest() + content)
    kernel.unlink()
    assembled.unlink(missing_ok=True)
    name = re.search(r"Compiling entry function '([^']*)'", said)
    spilled = re.search(r"[1-9]\d* bytes spill.*", said)
    return True, f"{name[1] if name else file.name}: {spilled[0]}" if spilled else ""


def main():
    ptxas, folder = sys.argv[1], Path(sys.argv[2])
    into = Path(sys.argv[3]) if len(sys.argv) > 3 else None
    if into is not None:
        into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(os.cpu_count()) as threads:
        files = [file for file in sorted(folder.glob("*.ptx")) if file.stat().st_size > DIGEST]
        run = lambda file: assemble(ptxas, file, into, Path(scratch))
        results = [(file, *result) for file, result in zip(files, threads.map(run, files))]
    kernels = [result for result in results if result[1] is not None]
    refused = [(file, said) for file, taken, said in kernels if not taken]
    spilling = [said for _, taken, said in kernels if taken and said]
    for file, said in refused:
        say(f"REFUSED: {file}: {said}")
    for said in spilling:
        say(f"spills: {said}")
    say(f"{len(kernels)} kernels assembled, {len(refused)} refused, {len(spilling)} spill registers")
    return 0 if kernels and not refused else 1


if __name__ == "__main__":
    sys.exit(main())
