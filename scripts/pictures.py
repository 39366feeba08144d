#!/usr/bin/env python3
"""Draws the pictures of the documentation into docs/img. Needs only Python.

    scripts/pictures.py                    draws step, ring, direct, zero and dashboard
    scripts/pictures.py --check            fails if a committed picture is not what it draws
    scripts/pictures.py --record TRAINER   trains for a minute; takes dashboard.ans and report.png

`dashboard.svg` is drawn from `dashboard.ans`, the last full screen of a run with `--dashboard`.
`report.png` is a screenshot of that run's report by a headless Chromium.
"""

import fcntl
import os
import pathlib
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from xml.sax.saxutils import escape

IMAGES = pathlib.Path(__file__).resolve().parent.parent / "docs/img"

WIDTH = 800
INK, SOFT, LINE = "#1f2937", "#5b6472", "#9aa3b0"
PAPER, PLAIN = "#ffffff", "#f1f3f6"
BLUE, AMBER, GREEN, VIOLET = "#dbe8ff", "#ffe9b8", "#cdeed6", "#e9dcff"
EDGE = {PLAIN: "#9aa3b0", BLUE: "#4a7fd6", AMBER: "#c98a12", GREEN: "#2f9454", VIOLET: "#8556c9"}
FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"

# Widths of Helvetica's characters in thousandths of the size; all others count as 600.
NARROW = dict.fromkeys("ijl.,:;'|!", 278) | dict.fromkeys(" ft()/[]-I", 333)
NARROW |= dict.fromkeys("mMW→", 1000) | dict.fromkeys("rs", 500)
SPARE = 1.06  # Other fonts are wider.


def text_width(text, size, bold=False):
    thousandths = sum(NARROW.get(c, 700 if c.isupper() else 580) for c in text)
    return thousandths / 1000 * size * SPARE * (1.06 if bold else 1.0)


class Picture:
    """An SVG image on a light card, so that it can be read on dark pages too."""

    def __init__(self, title, height, width=WIDTH):
        self.title, self.width, self.height = title, width, height
        self.parts = []

    def add(self, part):
        self.parts.append(part)

    def rect(self, x, y, w, h, fill=PLAIN, edge=None, radius=5, thick=1.2):
        edge = edge or EDGE.get(fill, LINE)
        self.add(f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{radius}" fill="{fill}" '
                 f'stroke="{edge}" stroke-width="{thick}"/>')

    def text(self, x, y, text, size=13, anchor="start", color=INK, bold=False, room=None):
        """`room` is the width that the text may take."""
        width = text_width(text, size, bold)
        left = {"start": x, "middle": x - width / 2, "end": x - width}[anchor]
        if left < 6 or left + width > self.width - 6 or (room and width > room):
            raise SystemExit(f"{self.title}: no room for “{text}” ({width:.0f} of {room})")
        weight = ' font-weight="bold"' if bold else ""
        self.add(f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" '
                 f'fill="{color}"{weight}>{escape(text)}</text>')

    def box(self, x, y, w, h, lines, fill=PLAIN, size=13):
        """A box with its lines in the middle; the first is bold."""
        self.rect(x, y, w, h, fill)
        step = size * 1.35
        top = y + h / 2 - step * (len(lines) - 1) / 2 + size * 0.35
        for row, line in enumerate(lines):
            bold = row == 0 and len(lines) > 1
            self.text(x + w / 2, top + row * step, line, size if row == 0 else size - 1, "middle",
                      INK if row == 0 else SOFT, bold, w - 8)

    def line(self, points, color=SOFT, thick=1.5, head=True, dashed=False):
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
        more = ' stroke-dasharray="4 3"' if dashed else ""
        more += ' marker-end="url(#head)"' if head else ""
        self.add(f'<path d="{path}" fill="none" stroke="{color}" stroke-width="{thick}"{more}/>')

    def svg(self):
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" font-family="{FONT}" role="img">',
            f"<title>{escape(self.title)}</title>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            f'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="{SOFT}"/></marker></defs>',
            f'<rect width="{self.width}" height="{self.height}" rx="8" fill="{PAPER}"/>',
            *self.parts, "</svg>", ""])


def step():
    p = Picture("One training step on two ranks", 640)
    wide, left, right, mid, mid_wide = 220, 30, 550, 285, 230
    for x, rank in ((left, 0), (right, 1)):
        p.text(x + wide / 2, 32, f"rank {rank}", 15, "middle", bold=True)
        p.box(x, 46, wide, 44, ["loader", f"slice {rank} of the global batch"], BLUE)
        p.box(x, 112, wide, 44, ["forward", "CPU or GPU kernels, or Burn"], BLUE)
        p.box(x, 178, wide, 44, ["loss", "× loss scale, with f16"], BLUE)
        p.box(x, 244, wide, 44, ["backward", "hooks put gradients into buckets"], BLUE)
        for above in (90, 156, 222):
            p.line([(x + wide / 2, above), (x + wide / 2, above + 21)])
        # Buckets: the last layers' fill up first.
        for index, (name, fill) in enumerate((("bucket 0", GREEN), ("bucket 1", AMBER), ("bucket 2", PLAIN))):
            p.box(x + index * 75, 316, 70, 46, [name, ("reduced", "full", "filling")[index]], fill, 12)
        p.line([(x + wide / 2, 288), (x + wide / 2, 315)])
        p.box(x, 456, wide, 44, ["optimizer", "unscale, clip, step"], VIOLET)
        p.line([(x + wide / 2, 362), (x + wide / 2, 455)])
        p.box(x, 528, wide, 44, ["parameters", "replica, or shard with zero-3"], BLUE)
        p.line([(x + wide / 2, 500), (x + wide / 2, 527)])
    # Exchange between the ranks.
    p.box(mid, 46, mid_wide, 44, ["sampler", "same order on all ranks"])
    p.line([(mid, 68), (left + wide + 1, 68)])
    p.line([(mid + mid_wide, 68), (right - 1, 68)])
    p.add(f'<rect x="{mid - 10}" y="232" width="{mid_wide + 20}" height="198" rx="6" fill="none" '
          f'stroke="{LINE}" stroke-dasharray="5 4"/>')
    p.text(400, 250, "reduce, during backward", 14, "middle", bold=True)
    p.text(400, 267, "ddp: all-reduce", 12, "middle", SOFT, room=mid_wide)
    p.text(400, 282, "zero-1 to zero-3: reduce-scatter", 12, "middle", SOFT, room=mid_wide)
    p.box(mid, 294, mid_wide, 58, ["buckets in host memory", "one node: in place, in shared memory",
                                   "between nodes: TCP or MPI"], AMBER, 12)
    p.box(mid, 362, mid_wide, 58, ["buckets in GPU memory", "a GPU per rank: NCCL",
                                   "else: through host memory and back"], AMBER, 12)
    p.line([(left + wide, 339), (mid - 11, 339)])
    p.line([(right, 339), (mid + mid_wide + 11, 339)])
    p.line([(mid - 10, 391), (left + wide / 2 + 4, 391)])
    p.line([(mid + mid_wide + 10, 391), (right + wide / 2 - 4, 391)])
    p.text(left + wide / 2 + 8, 411, "mean gradients", 12, "start", SOFT)
    p.text(right + wide / 2 - 8, 411, "mean gradients", 12, "end", SOFT)
    p.box(mid, 528, mid_wide, 58, ["all-gather", "zero-1, zero-2: after the step",
                                   "zero-3: before a layer reads them"], AMBER, 12)
    for x, edge in ((left + wide, mid), (right, mid + mid_wide)):
        sign = 1 if edge > x else -1
        p.line([(x, 543), (edge - sign, 543)])
        p.line([(edge, 557), (x + sign, 557)])
    for x, way in ((left, -16), (right + wide, 16)):
        p.line([(x, 550), (x + way, 550), (x + way, 134), (x + (1 if way > 0 else -1), 134)])
    p.text(400, 616, "The next step begins with the new parameters. The loader works ahead, "
           "the reduction beside backward.", 12, "middle", SOFT)
    return p


CELL, GAP = 34, 16


def grid(p, x, y, cells, title, arrows=()):
    """Four ranks (rows) with four shards each (columns). A cell is (text, fill, is_new)."""
    p.text(x + 26 + 2 * CELL, y - 32, title, 13, "middle", bold=True)
    for shard in range(4):
        p.text(x + 26 + shard * CELL + CELL / 2, y - 15, "ABCD"[shard], 11, "middle", SOFT)
    for rank in range(4):
        top = y + rank * (CELL - 8 + GAP)
        p.text(x + 18, top + 17, str(rank), 12, "end", SOFT)
        for shard in range(4):
            text, fill, new = cells[rank][shard]
            left = x + 26 + shard * CELL
            p.rect(left + 1, top, CELL - 2, CELL - 8, fill, radius=2,
                   thick=2.4 if new else 0.8)
            p.text(left + CELL / 2, top + 17, text, 11, "middle", room=CELL - 4)
    for rank, shard in arrows:
        left = x + 26 + shard * CELL + CELL / 2
        top = y + rank * (CELL - 8 + GAP) + CELL - 8
        if rank < 3:
            p.line([(left, top + 1), (left, top + GAP - 2)])
        else:
            # From the last rank on to the first.
            p.line([(left, top + 1), (left, top + 10)], head=False, dashed=True)
            p.line([(left, y - 12), (left, y - 1)], head=True)


def cell(ranks, new=False):
    """A partial sum; the digits say whose parts it has, in the order of the additions."""
    fill = GREEN if len(ranks) == 4 else AMBER if len(ranks) > 1 else PLAIN
    return ranks, fill, new


def ring_states():
    """(title, cells, transfers into that state) of every hop, as collective/ring.rs runs them."""
    held = [[str(rank) for _ in range(4)] for rank in range(4)]
    new = set()

    def cells():
        return [[cell(held[r][s], (r, s) in new) for s in range(4)] for r in range(4)]

    states = [("start", cells(), [])]
    for hop in range(1, 7):
        moves = []
        for rank in range(4):
            # Shard s begins at rank s + 1 and is complete at rank s, its owner.
            shard = (rank - hop) % 4 if hop <= 3 else (rank - (hop - 4)) % 4
            moves.append((rank, shard, held[rank][shard]))
        new = set()
        for rank, shard, sent in moves:
            to = (rank + 1) % 4
            held[to][shard] = sent + str(to) if hop <= 3 else sent
            new.add((to, shard))
        name = f"reduce-scatter {hop}" if hop <= 3 else f"all-gather {hop - 3}"
        states.append((name, cells(), [(rank, shard) for rank, shard, _ in moves]))
    assert all(sorted(sums) == list("0123") for row in held for sums in row)
    assert all(held[r] == held[0] for r in range(4))
    return states


def ring():
    p = Picture("Ring all-reduce on four ranks", 482)
    for index, (title, cells, arrows) in enumerate(ring_states()):
        x = 22 + (index % 4) * 194
        y = 66 + (index // 4) * 226
        grid(p, x, y, cells, title, arrows)
    x, y = 612, 286
    p.text(x, y, "Rows: ranks. Columns: shards.", 11)
    legend = ((PLAIN, "own part"), (AMBER, "partial sum"), (GREEN, "complete sum"))
    for row, (fill, text) in enumerate(legend):
        p.rect(x, y + 12 + row * 22, 26, 16, fill, radius=2)
        p.text(x + 34, y + 24 + row * 22, text, 11)
    for row, text in enumerate(("Digits: ranks in the sum, in", "the order of addition.",
                                "Thick edge: just received.", "Rank 3 sends to rank 0.")):
        p.text(x, y + 92 + row * 17, text, 11, color=SOFT)
    return p


def direct():
    p = Picture("Direct all-reduce of a registered bucket on four ranks of one node", 300)
    order = ["".join(str((shard + 1 + hop) % 4) for hop in range(4)) for shard in range(4)]
    tints = (BLUE, AMBER, GREEN, VIOLET)
    start = [[(str(rank), PLAIN, False) for _ in range(4)] for rank in range(4)]
    work = [[(str(rank), tints[shard], shard == rank) for shard in range(4)] for rank in range(4)]
    done = [[(order[shard], GREEN, False) for shard in range(4)] for _ in range(4)]
    for x, title, cells in ((46, "1. all ranks enter", start), (310, "2. each reduces a shard", work),
                            (574, "3. all ranks leave", done)):
        grid(p, x, 66, cells, title)
    for x in (234, 498):
        p.line([(x, 142), (x + 56, 142)], thick=2)
    for row, text in enumerate((
            "Each rank has mapped the buckets of all ranks. Rank 0 adds up shard A of the four buckets and writes the",
            "sum into all four. Rank 1 does the same with B, rank 2 with C, rank 3 with D. There are no copies.",
            "Both algorithms add in the same order, so they give the same bits.")):
        p.text(46, 250 + row * 17, text, 12, color=SOFT)
    return p


def zero():
    p = Picture("Memory of each rank under DDP and ZeRO on four ranks", 440)
    kinds = (("parameters", 4, BLUE), ("gradients", 4, AMBER), ("optimizer state", 8, VIOLET))
    rows = (("ddp", (), "16", "16"), ("zero-1", (2,), "8 + 8/N", "10"),
            ("zero-2", (1, 2), "4 + 12/N", "7"), ("zero-3", (0, 1, 2), "16/N", "4"))
    left, wide, gap = 92, 128, 10
    for rank in range(4):
        p.text(left + rank * (wide + gap) + wide / 2, 30, f"rank {rank}", 13, "middle", bold=True)
    p.text(716, 22, "bytes per parameter", 12, "middle", bold=True, room=150)
    p.text(716, 38, "N ranks, and N = 4", 12, "middle", SOFT)
    for row, (name, cut, formula, four) in enumerate(rows):
        top = 52 + row * 86
        p.text(14, top + 38, name, 14, bold=True)
        for rank in range(4):
            x, y = left + rank * (wide + gap), top
            for kind, (_, size, fill) in enumerate(kinds):
                high = size * 4
                part = wide / 4
                p.rect(x, y, wide, high, PAPER, "#d3d8df", radius=1, thick=1)
                held = (x + rank * part, part) if kind in cut else (x, wide)
                p.rect(held[0], y, held[1], high, fill, radius=1, thick=1)
                y += high + 3
        more = " + layers in use" if name == "zero-3" else ""
        p.text(716, top + 32, formula + more, 13, "middle", room=156)
        p.text(716, top + 50, four + more, 12, "middle", SOFT, room=156)
    x = left
    for name, size, fill in kinds:
        p.rect(x, 406, 18, 14, fill, radius=1)
        label = f"{name}, {size} bytes"
        p.text(x + 24, 418, label, 12)
        x += 44 + text_width(label, 12)
    p.text(x, 418, "(AdamW in f32)", 12, color=SOFT)
    return p


# Terminal pictures. A screen of COLUMNS × ROWS, as a VT shows what ratatui writes.

COLUMNS, ROWS = 100, 26
COLORS = {"1": "#ff6f85", "2": "#4ac989", "3": "#d9b13b", "4": "#6ea0ff", "5": "#c08bff", "6": "#45c8d8"}
SEQUENCE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])")


def screen(text):
    """Rows of (character, foreground, background) after what `text` writes."""
    cells = [[(" ", None, None) for _ in range(COLUMNS)] for _ in range(ROWS)]
    row = column = at = 0
    front = back = None
    while at < len(text):
        found = SEQUENCE.match(text, at)
        if found:
            at = found.end()
            arguments, letter = found.groups()
            if letter == "H":
                numbers = [int(n or 1) for n in (arguments or "1;1").split(";")]
                row, column = numbers[0] - 1, numbers[-1] - 1
            elif letter == "J":
                cells = [[(" ", None, None) for _ in range(COLUMNS)] for _ in range(ROWS)]
            elif letter == "m":
                codes = arguments.split(";")
                while codes:
                    code = codes.pop(0)
                    if code in ("38", "48") and codes[:1] == ["5"]:
                        color = codes[1]
                        codes = codes[2:]
                        front, back = (color, back) if code == "38" else (front, color)
                    elif code in ("", "0", "39"):
                        front = None
                    if code in ("", "0", "49"):
                        back = None
            continue
        character = text[at]
        at += 1
        if character >= " " and row < ROWS and column < COLUMNS:
            cells[row][column] = (character, front, back)
            column += 1
    return cells


def ansi(cells):
    """The screen as text with colours, to be kept in a file."""
    lines = []
    for row in cells:
        line, last = "", (None, None)
        for character, front, back in row:
            if (front, back) != last:
                line += "\x1b[0m" + (f"\x1b[38;5;{front}m" if front else "") + (f"\x1b[48;5;{back}m" if back else "")
                last = (front, back)
            line += character
        lines.append(line.rstrip() + ("\x1b[0m" if last != (None, None) else ""))
    return "\n".join(lines) + "\n"


BOX = {"─": "lr", "│": "ud", "┌": "rd", "┐": "ld", "└": "ru", "┘": "lu"}


def dashboard():
    text = (IMAGES / "dashboard.ans").read_text()
    cells = screen("".join(f"\x1b[{row};1H{line}" for row, line in enumerate(text.splitlines(), 1)))
    wide, high, edge = 8, 17, 16
    p = Picture("trainer --dashboard", edge * 2 + high * ROWS, edge * 2 + wide * COLUMNS)
    p.rect(0, 0, p.width, p.height, "#12161e", "#12161e", 8)
    ink, edges, dots = "#d5dae2", "", {}
    for row, line in enumerate(cells):
        y = edge + row * high
        for column, (character, front, back) in enumerate(line):
            color = COLORS.get(front, ink) if "▏" >= character >= "█" else back and COLORS.get(back, ink)
            if color:
                eighths = 8 if back else 0x2590 - ord(character)
                p.add(f'<rect x="{edge + column * wide}" y="{y}" width="{eighths * wide / 8:g}" height="{high}" '
                      f'fill="{color}"/>')
        column = 0
        while column < COLUMNS:
            character, front, back = line[column]
            x, color = edge + column * wide, COLORS.get(front, ink)
            column += 1
            if character in BOX:
                mx, my = x + wide / 2, y + high / 2
                ends = {"l": (x, my), "r": (x + wide, my), "u": (mx, y), "d": (mx, y + high)}
                edges += "".join(f"M{mx:g} {my:g}L{ends[way][0]:g} {ends[way][1]:g}" for way in BOX[character])
            elif "▏" >= character >= "█":
                pass  # Drawn above.
            elif "⠀" < character <= "⣿":
                for bit, (dx, dy) in enumerate(((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))):
                    if ord(character) >> bit & 1:
                        dots[color] = dots.get(color, "") + f"M{x + 2 + dx * 4} {y + 2.1 + dy * 4.25:g}h0"
            elif character != " ":
                word = character
                while column < COLUMNS and line[column][0] not in BOX and line[column][1:] == (front, back) and (
                        line[column][0].isascii() or line[column][0].isalnum()) and line[column][0] != " ":
                    word += line[column][0]
                    column += 1
                dark = "#12161e" if back else color
                p.add(f'<text x="{x}" y="{y + 13}" font-size="13" font-family="monospace" fill="{dark}" '
                      f'textLength="{wide * len(word)}" lengthAdjust="spacingAndGlyphs">{escape(word)}</text>')
    p.add(f'<path d="{edges}" stroke="#5b6472"/>')
    for color, path in dots.items():
        p.add(f'<path d="{path}" stroke="{color}" stroke-width="2.4" stroke-linecap="round"/>')
    return p


def record(trainer):
    """Trains with the dashboard on a terminal of our own, and keeps its screen and its report."""
    trainer = os.path.abspath(shutil.which(trainer) or trainer)
    with tempfile.TemporaryDirectory() as folder:
        process, terminal = pty.fork()
        if process == 0:
            os.chdir(folder)
            os.environ["TERM"] = "xterm-256color"
            os.execv(trainer, ["trainer", "--dashboard", "--run-dir", "runs/digits", "--set", "train.epochs=8"])
        size = struct.pack("HHHH", ROWS, COLUMNS, 0, 0)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
        os.kill(process, signal.SIGWINCH)
        written, begin = b"", time.monotonic()
        while time.monotonic() - begin < 300:
            try:
                piece = os.read(terminal, 65536)
            except OSError:  # The other end is closed.
                break
            if not piece:
                break
            written += piece
        if os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) != 0:
            raise SystemExit(f"the run failed: {written.decode()[-400:]}")
        # The last epoch at about half of its steps.
        text = written.decode()
        frames = [found.start() for found in re.finditer(r"\x1b\[\?25l", text)]
        shown = [(end, "".join(c for c, _, _ in screen(text[:end])[1])) for end in frames]
        last = [(end, found) for end, line in shown if (found := re.search(r"(\d+)/(\d+)", line))]
        eighth = [end for end, found in last if "epoch 8 of" in
                  "".join(c for c, _, _ in screen(text[:end])[0]) and int(found[1]) * 5 > int(found[2]) * 3]
        if not eighth:
            raise SystemExit("no screen of the last epoch was found")
        frame = ansi(screen(text[:eighth[0]]))
        prefix = f"{os.path.realpath(folder)}/"  # Another one in every run.
        frame = re.sub(f"{re.escape(prefix)}(.*?)│", lambda found: found[1] + " " * len(prefix) + "│", frame)
        (IMAGES / "dashboard.ans").write_text(frame)
        browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        if not browser:
            raise SystemExit("dashboard.ans is taken; report.png needs Chromium")
        subprocess.run(
            [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--window-size=1180,1120", f"--screenshot={IMAGES / 'report.png'}",
             f"file://{folder}/runs/digits/report.html"],
            check=True, stderr=subprocess.DEVNULL)


PICTURES = {"step": step, "ring": ring, "direct": direct, "zero": zero, "dashboard": dashboard}


def main(arguments):
    if arguments[:1] == ["--record"] and len(arguments) == 2:
        record(arguments[1])
    elif arguments not in ([], ["--check"]):
        raise SystemExit(__doc__)
    IMAGES.mkdir(exist_ok=True)
    others = []
    for name, draw in PICTURES.items():
        path, svg = IMAGES / f"{name}.svg", draw().svg()
        if arguments != ["--check"]:
            path.write_text(svg)
        elif not path.exists() or path.read_text() != svg:
            others.append(str(path))
    if others:
        raise SystemExit(f"not what scripts/pictures.py draws, run it again: {', '.join(others)}")


if __name__ == "__main__":
    main(sys.argv[1:])
