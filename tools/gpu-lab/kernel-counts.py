#!/usr/bin/env python3
"""Prints the work of the kernels of a run, from the file that soft-cuda writes with SOFT_CUDA_COUNTS.

    SOFT_CUDA_COUNTS=counts.tsv scripts/cuda-software.sh PROGRAM ...
    tools/gpu-lab/kernel-counts.py counts.tsv [--steps N] [--rows N]

A line per kernel and grid, the longest first: the lower bound of one launch on an H200 in microseconds, and its reason.
Then ratios, of which 1.0 is best: sectors moved per requested byte, accesses to shared memory relative to those without
bank conflicts, active lanes. Then instructions per `mma`, or per amount of `wgmma` work that takes as long. Bounds are
counts divided by data-sheet values and estimates, not times. Look at kernels that are far above their bound, and,
before they ever run on a GPU, at kernels with bad ratios.
"""

import argparse
import csv
from math import prod

PROCESSORS = 132
CLOCK = 1.755e9
MEMORY = 4.8e12  # bytes/s, data sheet
L2 = 5.5e12  # bytes/s, an estimate
WARPS_AT_ONCE = 4  # of an SM, an instruction a clock each
# Clocks of one m16n8k16 by `mma`, which reaches 62 % of the throughput of `wgmma` (Luo et al. 2024, arXiv:2402.13499).
MMA = 6.4
SECTOR = 32
# GPU instructions per PTX instruction, if not one.
COST = {"Move": 0.2, "IntegerDivision": 20, "Special": 2}
LAUNCH = 2.0  # microseconds of any kernel


def read(path):
    """The launches of the file, each with its units."""
    of_launch = ("kernel", "grid", "block", "launches", "blocks", "read", "read_near", "written")
    launches = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            key = tuple(row[name] for name in of_launch)
            numbers = ("instructions", "lanes", "bytes", "sectors", "wavefronts", "least_wavefronts")
            launches.setdefault(key, {})[row["unit"]] = {name: int(row[name]) for name in numbers}
    return launches


def tensor_clocks(name, unit):
    """Clocks of an SM's tensor cores: `Warpgroup(n)` is a warp's quarter of 64 rows by n columns by 16 numbers, of
    which a clock takes 2048."""
    if name == "TensorCores":
        return unit["instructions"] * MMA / WARPS_AT_ONCE
    if name.startswith("Warpgroup"):
        return unit["instructions"] * int(name[len("Warpgroup("):-1]) / 8
    return 0


def bounds(units, blocks, counted, unique):
    """Lower bounds of a launch in microseconds, by their reason. `unique`: sectors that blocks read, read through an
    SM's cache, and wrote, each once per block."""
    read, near, written = unique
    scale = blocks / counted / min(PROCESSORS, blocks) / CLOCK * 1e6
    total = lambda name: sum(unit[name] for unit in units.values())
    instructions = sum(unit["instructions"] * COST.get(name, 1) for name, unit in units.items())
    clocks = sum(tensor_clocks(name, unit) for name, unit in units.items())
    past = units.get("CopyPast", {}).get("sectors", 0)
    return {
        "instructions": instructions / WARPS_AT_ONCE * scale,
        "tensor cores": clocks * scale,
        "shared memory": total("wavefronts") * scale,
        "L2": (past + near + written) * SECTOR * blocks / counted / L2 * 1e6,
        # Blocks of a product read the same.
        "memory": 0 if clocks else (read + written) * SECTOR * blocks / counted / MEMORY * 1e6,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("counts")
    parser.add_argument("--steps", type=int, default=1, help="training steps of the run")
    parser.add_argument("--rows", type=int, default=40, help="lines that are printed")
    options = parser.parse_args()
    lines, total, count = [], 0.0, 0.0
    for (kernel, grid, block, launches, counted, *unique), units in read(options.counts).items():
        blocks = prod(map(int, grid.split("x")))
        least = bounds(units, blocks, int(counted), [int(sectors) for sectors in unique])
        why = max(least, key=least.get)
        each = max(least[why], LAUNCH)
        of_step = int(launches) / options.steps
        sums = {name: sum(unit[name] for unit in units.values()) for name in next(iter(units.values()))}
        ratio = lambda above, below: f"{above / below:5.2f}" if below else "    –"
        products = sum(tensor_clocks(name, unit) for name, unit in units.items()) / MMA * WARPS_AT_ONCE
        lines.append((each * of_step, f"{each * of_step:9.1f} {of_step:7.1f} {each:9.1f}  {why:13} "
                      f"{ratio(sums['sectors'] * SECTOR, sums['bytes'])} "
                      f"{ratio(sums['wavefronts'], sums['least_wavefronts'])} "
                      f"{ratio(sums['lanes'], 32 * sums['instructions'])} "
                      f"{ratio(sums['instructions'], products)}  {kernel} {grid} of {block}"))
        total += each * of_step
        count += of_step
    print(f"{total / 1e3:.2f} ms and {count:.0f} launches per step\n"
          "  us/step per step   us each  bound by     sectors banks lanes per mma")
    for _, line in sorted(lines, reverse=True)[: options.rows]:
        print(line)


if __name__ == "__main__":
    main()
