#!/usr/bin/env python3
"""Checks where code stands: imports between the top modules of a crate point downwards, and cargo features are asked
for in few places only; comments have at most 100 columns. scripts/house.toml declares the places, and lists what does
not hold yet. That list may only shrink: an entry that is no longer needed is an error too.

    scripts/house.py             checks, and prints the counts
    scripts/house.py --shrink    takes out of the list what is no longer needed
    scripts/house.py --long      also names the functions that are too long or take too much

Tests are left out: what stands under `#[cfg(test)]` or `#[cfg(all(test, …))]`.
"""

import collections
import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
LISTS = ROOT / "scripts/house.toml"
LONGEST, WIDEST, COMMENTS = 80, 7, 100
CFG = re.compile(r"\bcfg(?:_attr)?!?\s*(?=\()")
FEATURE = re.compile(r"\bfeature\b")
ONLY_TEST = re.compile(r"\btest\b")
COMMENT = re.compile(r"\s*//[/!]? ?(.*)")
TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?\'(?:\\.|[^\'\\])\'', re.S)


def blanked(text):
    """`text` without comments and the contents of strings, with all lines where they were."""
    def keep(match):
        found = match[0]
        lines = "\n" * found.count("\n")
        return lines if found[0] == "/" else '"' + lines + '"' if '"' in found else "' '"
    return TOKEN.sub(keep, text)


def end_of_block(text, begin, pair="{}"):
    """The index behind the bracket that closes the one at `begin`."""
    depth = 0
    for index in range(begin, len(text)):
        depth += (text[index] == pair[0]) - (text[index] == pair[1])
        if depth == 0:
            return index + 1
    return len(text)


def end_of_item(text, begin):
    """The index behind the item that begins at or after `begin`."""
    # A function's parameters may hold no semicolon or brace, but for arrays.
    index = begin
    while index < len(text):
        if text[index] in "([":
            index = end_of_block(text, index, "()" if text[index] == "(" else "[]")
        elif text[index] == "{":
            return end_of_block(text, index)
        elif text[index] in ";,":
            return index + 1
        else:
            index += 1
    return index


TEST = re.compile(r"#\[cfg\((?:test|all\(test\b[^\]]*)\)\]|#\[test\]")


def without_tests(text):
    """`text` with what only tests compile blanked out."""
    while found := TEST.search(text):
        end = end_of_item(text, found.end())
        begin = found.start()
        text = text[:begin] + "\n" * text.count("\n", begin, end) + text[end:]
    return text


class Crate:
    """The module tree of a crate, from lib.rs or main.rs down, without tests."""

    def __init__(self, folder):
        self.src = ROOT / folder / "src"
        self.files = {}  # path -> (module path, blanked text)
        self.names = {}  # what lib.rs re-exports -> top module
        root = next(self.src / name for name in ("lib.rs", "main.rs") if (self.src / name).exists())
        self.read(root, ())
        _, text = self.files[root]
        self.tops = set(re.findall(r"\bmod\s+(\w+)\s*;", text))
        for path, _ in uses(text):
            parts = [part for part in path if part not in ("crate", "self")]
            if len(parts) > 1 and parts[0] in self.tops:
                self.names[parts[-1]] = parts[0]

    def read(self, path, module, is_root=False):
        source = path.read_text()
        text = without_tests(blanked(source))
        self.files[path] = (module, text)
        is_root = is_root or path.name in ("lib.rs", "main.rs", "mod.rs")
        folder = path.parent if is_root else path.with_suffix("")
        # `#[path = "…"] mod name;`: the modules in that file lie beside it.
        named = dict((name, file) for file, name in re.findall(r'#\[path = "([^"]+)"\]\s*(?:pub\s+)?mod (\w+);', source))
        for name in re.findall(r"^\s*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;", text, re.M):
            if name in named:
                self.read(path.parent / named[name], (*module, name), is_root=True)
                continue
            for candidate in (folder / f"{name}.rs", folder / name / "mod.rs"):
                if candidate.exists():
                    self.read(candidate, (*module, name))

    def imports(self):
        """Pairs of top modules, the first of which uses the second, and where."""
        pairs = collections.defaultdict(set)
        for path, (module, text) in self.files.items():
            if not module:
                continue
            for used, index in uses(text):
                top = self.top(used, module, depth_of(text, index))
                if top and top != module[0]:
                    line = text.count("\n", 0, index) + 1
                    pairs[module[0], top].add(f"{path.relative_to(ROOT)}:{line}")
        return pairs

    def top(self, used, module, inline):
        """The top module that a path leads to; None if it leads out of the crate or to no module."""
        if used[0] == "crate":
            rest = used[1:]
        elif used[0] == "super":
            up = 0
            while up < len(used) and used[up] == "super":
                up += 1
            if up - inline != len(module):
                return None
            rest = used[up:]
        else:
            return None
        if not rest:
            return None
        return rest[0] if rest[0] in self.tops else self.names.get(rest[0])


def depth_of(text, index):
    """How many modules `mod name { … }` the place stands in."""
    depth = 0
    for found in re.finditer(r"\bmod\s+\w+\s*\{", text[:index]):
        depth += end_of_block(text, found.end() - 1) > index
    return depth


PATH = re.compile(r"(?<![\w:$])(?:crate|super)(?:\s*::\s*\w+)*(?:\s*::\s*\{)?")


def uses(text):
    """Paths that begin with `crate` or `super`, of `use` and elsewhere, and in lib.rs of all `use`."""
    for found in re.finditer(r"\buse\s+([^;]+);", text):
        for path in tree(found[1]):
            yield path, found.start()
    for found in PATH.finditer(re.sub(r"\buse\s+[^;]+;", lambda use: re.sub(r"[^\n]", " ", use[0]), text)):
        if text[:found.start()].rstrip().endswith(("pub(in", "(in")) or re.search(r"pub\s*\(\s*$", text[:found.start()]):
            continue
        yield [part.strip() for part in found[0].rstrip("{: \n").split("::")], found.start()


def tree(text):
    """The paths of one `use`, whose braces are opened up."""
    text = " ".join(text.split())
    brace = text.find("{")
    if brace < 0:
        return [[part.strip() for part in text.split(" as ")[0].split("::")]]
    prefix = [part.strip() for part in text[:brace].rstrip(": ").split("::") if part.strip()]
    inner, depth, begin = text[brace + 1 : end_of_block(text, brace) - 1], 0, 0
    parts = []
    for index, letter in enumerate(inner + ","):
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            parts.append(inner[begin:index].strip())
            begin = index + 1
    return [prefix + path for part in parts if part for path in tree(part)]


def circles(pairs):
    """Sets of modules that reach each other."""
    after = collections.defaultdict(set)
    for a, b in pairs:
        after[a].add(b)
    def reached(start):
        seen, left = set(), [start]
        while left:
            for name in after[left.pop()] - seen:
                seen.add(name)
                left.append(name)
        return seen
    reach = {name: reached(name) for name in list(after)}
    found = {frozenset(b for b in reach[a] if a in reach.get(b, ())) for a in reach if a in reach[a]}
    return sorted(sorted(circle) for circle in found)


def functions(text):
    """Lines and parameters of each function that is no kernel for GPUs, with its name and line."""
    kernels = []
    for found in re.finditer(r"#\[cube\b", text):
        kernels.append((found.start(), end_of_item(text, end_of_block(text, found.start() + 1, "[]"))))
    for found in re.finditer(r"\bfn\s+(\w+)", text):
        if any(begin <= found.start() < end for begin, end in kernels):
            continue
        index = found.end()
        if text[index:].lstrip().startswith("<"):
            depth = 0
            for index in range(index, len(text)):
                depth += (text[index] == "<") - (text[index] == ">" and text[index - 1] not in "-=")
                if text[index] == ">" and depth == 0:
                    break
        begin = text.find("(", index)
        end = end_of_block(text, begin, "()")
        parameters, depth = "", 0
        for letter in text[begin + 1 : end - 1]:
            depth += (letter in "([{<") - (letter in ")]}>")
            parameters += letter if depth == 0 else ""
        taken = len([part for part in parameters.split(",") if part.strip()])
        last = end_of_item(text, end)
        yield found[1], text.count("\n", 0, found.start()) + 1, text.count("\n", found.start(), last) + 1, taken


def features(text):
    """How many `cfg` ask for a feature."""
    asked = [text[found.end() : end_of_block(text, found.end(), "()")] for found in CFG.finditer(text)]
    return sum(1 for words in asked if FEATURE.search(words) and not ONLY_TEST.search(words))


def wide_comments(path):
    """Numbers of the lines with a comment that is too wide: not of tables, examples and long addresses."""
    found, example = [], False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        comment = COMMENT.match(line)
        if not comment:
            example = False
        elif comment[1].startswith("```"):
            example = not example
        elif len(line) > COMMENTS and not example and comment[1][:1] != "|" and len(comment[1].split()) > 1:
            found.append(number)
    return found


def main():
    arguments = set(sys.argv[1:])
    if arguments - {"--shrink", "--long"}:
        sys.exit(__doc__)
    lists = tomllib.loads(LISTS.read_text())
    wrong, gone, entries = [], [], LISTS.read_text()
    lines, forks, long, wide = {}, {}, [], []

    for folder, order in lists["order"].items():
        crate = Crate(folder)
        place = {name: rank for rank, layer in enumerate(order) for name in layer.split()}
        for name in sorted(crate.tops - set(place)):
            wrong.append(f"{folder}: the module {name} is in no layer of scripts/house.toml")
        for name in sorted(set(place) - crate.tops):
            wrong.append(f"{folder}: scripts/house.toml has a module {name} that is not there")
        pairs = crate.imports()
        allowed = set(lists["upwards"].get(folder, []))
        upwards = {f"{a} -> {b}": where for (a, b), where in pairs.items() if place.get(a, 0) >= place.get(b, 99)}
        for pair in sorted(set(upwards) - allowed):
            wrong.append(f"{folder}: {pair} points upwards: {', '.join(sorted(upwards[pair])[:5])}")
        for pair in sorted(allowed - set(upwards)):
            gone.append(f"{folder}: {pair}")
            before = rf"(^\[upwards\]\n.*?^{re.escape(folder)} = \[\n.*?)"
            entries = re.sub(rf'{before}^  "{re.escape(pair)}",\n', r"\1", entries, count=1, flags=re.M | re.S)
        rounds = circles(pairs)
        print(f"{folder}: {len(upwards)} imports upwards, {len(rounds)} circles", *map(" ".join, rounds), sep="\n    ")

        lines[folder] = 0
        for path, (_, text) in crate.files.items():
            name = str(path.relative_to(ROOT))
            lines[folder] += sum(1 for line in text.splitlines() if line.strip())
            wrong += [f"{name}:{line}: a comment of more than {COMMENTS} columns" for line in wide_comments(path)]
            if count := features(text):
                forks[name] = count
            for function, line, length, taken in functions(text):
                if length > LONGEST:
                    long.append(f"{name}:{line} {function}: {length} lines")
                if taken > WIDEST:
                    wide.append(f"{name}:{line} {function}: {taken} parameters")

    allowed = lists["features"]
    forks = {name: count for name, count in forks.items() if not name.startswith(tuple(lists["may_ask_features"]))}
    for name in sorted({*forks, *allowed}):
        have, may = forks.get(name, 0), allowed.get(name, 0)
        if have > may:
            wrong.append(f"{name}: {have} cfgs of a feature, {may} allowed; they belong into "
                         + " and ".join(lists["may_ask_features"]))
        elif have < may:
            gone.append(f"{name}: {may} cfgs of a feature are allowed, and there are {have}")
            now = f'"{name}" = {have}\n' if have else ""
            entries = re.sub(rf'^"{re.escape(name)}" = \d+\n', now, entries, count=1, flags=re.M)

    tools = set(lists["not_product"])
    print(f"lines of product code: {sum(count for name, count in lines.items() if name not in tools)}",
          *(f"{name} {count}" for name, count in lines.items()), sep="\n    ")
    print(f"cfgs of features: {sum(forks.values())} in {len(forks)} files",
          *(f"{count} {name}" for name, count in sorted(forks.items(), key=lambda fork: -fork[1])), sep="\n    ")
    shown = "--long" in arguments
    print(f"functions over {LONGEST} lines: {len(long)}", *(long if shown else ()), sep="\n    ")
    print(f"functions of more than {WIDEST} parameters: {len(wide)}", *(wide if shown else ()), sep="\n    ")

    if "--shrink" in arguments:
        LISTS.write_text(entries)
    elif gone:
        wrong += [f"no longer so: {entry}; scripts/house.py --shrink takes it out" for entry in gone]
    for line in wrong:
        print(f"house.py: FAILED: {line}", file=sys.stderr)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
