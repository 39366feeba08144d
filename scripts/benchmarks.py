#!/usr/bin/env python3
"""Measures the CPU tables of docs/benchmarks.md and prints them in Markdown.

    scripts/benchmarks.py                      lists the tables and the commands behind them
    scripts/benchmarks.py two-nodes memory     measures these tables and prints them
    scripts/benchmarks.py --write two-nodes    also replaces the table in docs/benchmarks.md

    --bench PROGRAM     default: target/release/bench, built by cargo build --release --workspace
    --torch PYTHON      a Python with PyTorch, for the tables that compare with it
    --quick             one short round, to try the script; refuses --write

Leave the machine idle meanwhile.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/benchmarks.md"

MODELS = (("CNN, MNIST size", "cnn", "f32"), ("WRN-16-4", "wrn-16-4", "f32"),
          ("ViT-Tiny", "vit-tiny", "f32"), ("ViT-Tiny, bf16", "vit-tiny", "bf16"))
TRAINING = [["training", "--model", model, "--precision", precision, "--seconds", "3",
             "--rounds", "5" if model == "cnn" else "3", "--torch", "PYTHON"] for _, model, precision in MODELS]
SMALL = [["collectives", "--ranks", ranks, "--transport", transports, "--sizes", "64,1KiB,32KiB",
          "--rounds", "2", "--seconds", "0.2"]
         for ranks, transports in (("2", "tcp"), ("4,8", "tcp,two-nodes"))]
NODES = [["collectives", "--ranks", "4", "--transport", "tcp,two-nodes,node-first", "--sizes",
          "64KiB,1MiB,25MiB,100MiB", "--rounds", "5"]]
MPI = [["collectives", "--ranks", "2,4", "--transport", "mpi,mpi-collectives", "--sizes", "64,1KiB,32KiB",
        "--rounds", "3", "--seconds", "0.2"]]
MEMORY = [["sharding", "--model", "vit-base", "--batch", "8", "--ranks", "2", "--steps", "4", "--rounds", "3",
           "--parameters", "85221220"],
          ["sharding", "--model", "vit-base", "--batch", "8", "--ranks", "2,4", "--steps", "1", "--rounds", "1",
           "--parameters", "85221220", "--torch", "PYTHON"]]
CHECKPOINT = [["checkpoint", "--model", model] for model in ("cnn", "vit-tiny")]
TRANSPORTS = {"tcp": "`tcp`", "two-nodes": "as on two nodes", "node-first": "as on two nodes, `node-first`"}


def figure(value):
    """Three digits, as bench prints them."""
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def duration(us):
    return f"{figure(us)} µs" if us < 1000 else f"{figure(us / 1000)} ms"


def size(count):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count // unit} {name}"
    return f"{count} bytes"


def rate(report, by, ranks, threads):
    wanted = (by, ranks, threads)
    rows = report["results"]["settings"]
    return next((row["images_per_second"] for row in rows if (row["by"], row["ranks"], row["threads"]) == wanted), None)


def ratio(report, name):
    return next((entry["median"] for entry in report["results"]["ratios"] if entry["name"] == name), None)


def training(reports):
    head = ["model", "1 rank, 2 threads", "PyTorch", "ratio", "2 ranks, 1 thread", "PyTorch DDP, gloo", "ratio"]
    return head, [[name, figure(rate(report, "trainer", 1, 2)), figure(rate(report, "pytorch", 1, 2)),
                   figure(ratio(report, "PyTorch, 2 threads")), figure(rate(report, "trainer", 2, 1)),
                   figure(rate(report, "pytorch", 2, 1)), figure(ratio(report, "PyTorch, 2 ranks"))]
                  for (name, _, _), report in zip(MODELS, reports)]


def scaling(reports):
    head = ["model", "2 ranks ÷ (2 × 1 rank)", "bare loop ÷ trainer, 1 thread", "2 threads"]
    return head, [[name, figure(ratio(report, "scaling")), figure(ratio(report, "overhead, 1 thread")),
                   figure(ratio(report, "overhead, 2 threads"))]
                  for (name, _, _), report in zip(MODELS, reports)]


def collectives(columns, memories, text):
    """A table of medians with a column for each size. `columns` name what tells the rows apart."""
    def table(reports):
        sizes, rows = [], {}
        for row in (row for report in reports for row in report["results"] if row["memory"] in memories):
            names = {"ranks": str(row["ranks"]), "memory": row["memory"],
                     "transport": TRANSPORTS.get(row["transport"], f"`{row['transport']}`")}
            cells = rows.setdefault(tuple(names[column] for column in columns), {})
            cells[row["bytes"]] = text(row["median_us"])
            sizes += [row["bytes"]] if row["bytes"] not in sizes else []
        head = [*columns, *map(size, sizes)]
        return head, [[*key, *(cells.get(each, "–") for each in sizes)] for key, cells in sorted(
            rows.items(), key=lambda item: (item[0][0].zfill(2) if item[0][0].isdigit() else item[0][0] != "registered"))]
    return table


def memory(reports):
    """Times of the first report, which has more rounds; the rest of the second, which has PyTorch."""
    times = {(row["ranks"], row["strategy"]): row["times_ddp"]
             for row in reports[0]["results"] if row["by"] == "trainer"}
    rows = [row for report in reports for row in report["results"]]
    above = {(row["by"], row["ranks"], row["strategy"]): statistics.median(row["above_start_mib"])
             for row in reversed(rows)}
    beside = {"ddp": ("ddp", "DDP"), "zero-1": ("zero-1", "ZeroRedundancyOptimizer"), "zero-3": ("fsdp2", "FSDP2")}
    lines = []
    for row in reports[-1]["results"]:
        if row["by"] != "trainer":
            continue
        key = (row["ranks"], row["strategy"])
        theirs, name = beside.get(row["strategy"], ("", ""))
        torch = above.get(("pytorch", row["ranks"], theirs))
        lines.append([str(row["ranks"]), f"`{row['strategy']}`", figure(above["trainer", *key]),
                      figure(row["formula_mib"]), f"{figure(torch)} ({name})" if torch else "–",
                      figure(times[key]) if key in times else ""])
    return ["ranks", "strategy", "MiB measured", "MiB of state by formula", "PyTorch, MiB", "s per step ÷ `ddp`"], lines


def loader(reports):
    head = ["augmentation", "image", "0 workers", "1 worker", "2 workers"]
    return head, [[f"`{row['augment']}`", "×".join(map(str, row["shape"])),
                   *(figure(each["images_per_second"]) for each in row["workers"])]
                  for row in reports[0]["results"]["rows"]]


def checkpoint(reports):
    rows = [(name, row) for name, report in zip(("CNN", "ViT-Tiny"), reports) for row in report["results"]]
    head = ["model", "ranks", "threads per rank", "images/s without", "with", "overhead, %"]
    return head, [[name, str(row["ranks"]), str(row["threads"]), figure(statistics.median(row["without"])),
                   figure(statistics.median(row["with"])), f"{100 * row['overhead']:.1f}"] for name, row in rows]


# The commands of `bench` behind a table, and what makes the table of their reports.
TABLES = {
    "training": (TRAINING, training),
    "scaling": (TRAINING, scaling),
    "small-messages": (SMALL, collectives(("ranks", "transport"), ("private",), figure)),
    "mpi": (MPI, collectives(("ranks", "transport"), ("private",), figure)),
    "two-nodes": (NODES, collectives(("memory", "transport"), ("registered", "private"), duration)),
    "memory": (MEMORY, memory),
    "loader": ([["loader"]], loader),
    "checkpoint": (CHECKPOINT, checkpoint),
}


def replaced(command, name, value):
    """The command with another value of an option, or without it."""
    at = command.index(name) if name in command else len(command)
    return command[:at] + ([name, value] if value else []) + command[at + 2:]


def prepared(command, options):
    command = replaced(command, "--torch", options.torch) if "--torch" in command else command
    if not options.quick:
        return command
    command = replaced(command, "--rounds", "1")
    if "--model" in command:
        command = replaced(command, "--model", "cnn")
    if command[0] == "sharding":
        return replaced(command, "--steps", "1")
    if command[0] == "checkpoint":
        return replaced(command, "--every", "3")
    return replaced(command, "--seconds", "0.1")


def measured(command, options):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        print("+ bench", *command, file=sys.stderr)
        subprocess.run([options.bench, *command, "--json", file.name], check=True, stdout=sys.stderr)
        return json.loads(pathlib.Path(file.name).read_text())


def machine(report):
    """Date and CPU."""
    text = pathlib.Path("/proc/cpuinfo").read_text()
    numbers = [re.search(rf"^{name}\s*:\s*(\d+)", text, re.M) for name in ("cpu family", "model")]
    kind = ", ".join(f"{name} {found[1]}" for name, found in zip(("family", "model"), numbers) if found)
    return f"{report['date'][:10]}, {report['cpus']} CPUs of an {report['cpu']}" + (f" ({kind})" if kind else "")


def markdown(name, head, lines, where):
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join([where, "", *("| " + " | ".join(row) + " |" for row in rows)])


def around(name):
    """What stands before the table in the page, and behind it."""
    begin, end = f"<!-- table: {name} -->\n", f"\n<!-- end: {name} -->"
    page = PAGE.read_text()
    if page.count(begin) != 1 or page.count(end) != 1:
        raise SystemExit(f"{PAGE} has no place for the table {name}: add {begin.strip()} and {end.strip()}")
    before, rest = page.split(begin)
    return before + begin, end + rest.split(end)[1]


def write(name, text):
    before, behind = around(name)
    PAGE.write_text(before + text + behind)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--bench", default=ROOT / "target/release/bench")
    parser.add_argument("--torch")
    options = parser.parse_args()
    if options.write and options.quick:
        parser.error("--quick measures nothing worth writing")
    for name in options.tables:
        if name not in TABLES:
            parser.error(f"unknown table {name}, expected {', '.join(TABLES)}")
        if options.write:
            around(name)
    if options.tables and not pathlib.Path(options.bench).is_file():
        parser.error(f"{options.bench} is missing: run cargo build --release --workspace --bins, or set --bench")
    if not options.tables:
        for name, (commands, _) in TABLES.items():
            print(name, *("  bench " + " ".join(command) for command in commands), sep="\n")
    reports = {}
    for name in options.tables:
        commands, table = TABLES[name]
        results = []
        for command in commands:
            command = prepared(command, options)
            results.append(reports.setdefault(tuple(command), None) or measured(command, options))
            reports[tuple(command)] = results[-1]
        where = machine(results[0])
        if options.torch and any("--torch" in command for command in commands):
            version = subprocess.run([options.torch, "-c", "import torch; print(torch.__version__)"],
                                     check=True, capture_output=True, text=True).stdout.strip()
            where += f", PyTorch {version}"
        text = markdown(name, *table(results), f"{where},\n`scripts/benchmarks.py {name}`:")
        print(text, end="\n\n")
        if options.write:
            write(name, text)


if __name__ == "__main__":
    main()
