#!/usr/bin/env python3
"""Prints the microseconds of each tile that was tried for a convolution or a linear layer, from the log of cubecl's
tuner (`[autotune.decisions]` in cubecl.toml, which tools/gpu-lab/gpu-lease.sh sets).

    tiles-tried.py decisions.log
"""

import json
import re
import sys

SLIDE = re.compile(
    r"(?P<dtype>\w+) (?P<batch>\d+) Slide { source: \[(?P<size>[^]]*)\], depth: (?P<depth>\d+), "
    r"result: \[(?P<result>[^]]*)\], features: (?P<features>\d+), window: \[(?P<window>[^]]*)\], "
    r"stride: \[(?P<stride>[^]]*)\].*back: (?P<back>\w+)"
)


def product(key):
    """A line that names the computation, and its number of operations."""
    found = SLIDE.match(key)
    if found is None:
        return key, 0
    numbers = {name: [int(n) for n in found[name].split(",")] for name in ("size", "result", "window", "stride")}
    count = 2 * int(found["batch"]) * int(found["depth"]) * int(found["features"])
    for sides in (numbers["result"], numbers["window"]):
        count *= sides[0] * sides[1]
    back = found["back"] == "true"
    if back:
        count //= numbers["stride"][0] * numbers["stride"][1]
    sides = {name: "x".join(map(str, sides)) for name, sides in numbers.items()}
    return (
        f"{found['dtype']} {sides['size']}x{found['depth']} -> {sides['result']}x{found['features']}, "
        f"window {sides['window']}, stride {sides['stride']}{', back' if back else ''}"
    ), count


def main():
    for line in open(sys.argv[1]):
        decision = json.loads(line)
        what, count = product(decision["key"])
        times = {}
        for result in decision["results"]:
            if "Ok" in result["outcome"]:
                tried = result["outcome"]["Ok"]
                median = tried["computation"]["median"]
                times[tried["index"]] = 1e6 * median["secs"] + median["nanos"] / 1e3
        rate = f"{count / min(times.values()) / 1e6:6.0f} TFLOP/s" if times and count else " " * 14
        print(f"{rate}  {'  '.join(f'{n}: {time:7.1f}' for n, time in sorted(times.items())):36}  {what}")


if __name__ == "__main__":
    main()
