#!/usr/bin/env python3
"""Checks the links of the documentation, and builds it as a book (book.toml).

    scripts/docs.py           checks every internal link and anchor, then builds the book
    scripts/docs.py --links   checks the links only
    scripts/docs.py --blocks sh,slurm [PAGE]
                              names the pages with blocks of that kind, or prints those of a page

Names pages that no other page links, and pages that are missing from docs/SUMMARY.md. The book goes to `book` in the
target folder. mdbook is installed under ~/.cache/burn-dist if it is missing.

    MDBOOK_SECONDS   time limit for installing mdbook; 600 unless set, 0 leaves the book out
"""

import html.parser
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SUMMARY = DOCS / "SUMMARY.md"
MDBOOK = "0.5.4"
OUTSIDE = re.compile(r"[a-z][a-z0-9+.-]*:", re.I)
LINK = re.compile(r"""
    !?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(\s*<?(?P<inline>[^()\s<>]+)>?(?:\s+"[^"]*")?\s*\)  # [text](target "title")
  | ^\s{0,3}\[[^\]]+\]:\s*<?(?P<reference>[^\s<>]+)                                     # [name]: target
  | <(?:a|img|source)\b[^>]*?\b(?:href|src)="(?P<html>[^"]+)"                           # <img src="target">
""", re.X | re.M)


def pages():
    """The pages that people read, and SUMMARY.md."""
    return sorted(ROOT.glob("*.md")) + sorted(DOCS.rglob("*.md"))


def without_code(text):
    """`text` with code blanked out, every line where it was."""
    lines, fence = [], None
    for line in text.splitlines():
        mark = re.match(r"\s*(`{3,}|~{3,})", line)
        if fence:
            if mark and mark[1].startswith(fence) and line.strip() == mark[1]:
                fence = None
            line = ""
        elif mark:
            fence, line = mark[1], ""
        lines.append(re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "``", line))
    return "\n".join(lines)


def anchors(text):
    """The anchors that GitHub and mdBook give to the headings of a page."""
    found, fence = {}, None
    for line in text.splitlines():
        mark = re.match(r"\s*(`{3,}|~{3,})", line)
        if mark:
            fence = None if fence and mark[1].startswith(fence) else fence or mark[1]
        heading = None if fence else re.match(r"#{1,6}\s+(.*?)\s*#*$", line)
        if not heading:
            continue
        words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).replace("`", "").lower()
        name = "".join(letter if letter.isalnum() or letter in "-_" else "-" if letter == " " else "" for letter in words)
        again = found.get(name, 0)
        found[name] = again + 1
        if again:
            found[f"{name}-{again}"] = 1
    return set(found) | set(re.findall(r'<a (?:id|name)="([^"]+)"', text))


def links(page):
    """Targets of the links of a page, with their lines."""
    text = without_code(page.read_text())
    for found in LINK.finditer(text):
        yield next(filter(None, found.groups())), text.count("\n", 0, found.start()) + 1


def check_links():
    """What is wrong with links and pages."""
    wrong, linked, listed = [], set(), set()
    known = {page: anchors(page.read_text()) for page in pages()}
    count = 0
    for page in known:
        name = page.relative_to(ROOT)
        for target, line in links(page):
            if OUTSIDE.match(target):
                continue
            count += 1
            path, _, anchor = urllib.parse.unquote(target).partition("#")
            to = (page.parent / path).resolve() if path else page
            if not to.exists():
                wrong.append(f"{name}:{line}: {target}: no such file")
            elif not to.is_relative_to(ROOT):
                wrong.append(f"{name}:{line}: {target}: outside the repository")
            elif anchor and to.suffix == ".md" and anchor not in known.get(to, anchors(to.read_text())):
                wrong.append(f"{name}:{line}: {target}: no such heading")
            if page == SUMMARY:
                listed.add(to)
            elif to != page:
                linked.add(to)
    for page in sorted(DOCS.rglob("*.md")):
        if page in listed or page == SUMMARY:
            continue
        title = re.search(r"^# (.*)", page.read_text(), re.M)
        line = f"- [{title[1] if title else page.stem}]({page.relative_to(DOCS)})"
        wrong.append(f"{page.relative_to(ROOT)}: not in the book; add a line to docs/SUMMARY.md: {line}")
    start = {ROOT / "README.md", DOCS / "README.md", SUMMARY}
    wrong += [f"{page.relative_to(ROOT)}: no page links it" for page in known if page not in linked | start]
    print(f"docs.py: {count} internal links in {len(known)} pages")
    return wrong


class Html(html.parser.HTMLParser):
    """The links and the anchors of a built page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors |= {attributes[key] for key in ("id", "name") if attributes.get(key)}
        self.links += [attributes[key] for key in ("href", "src") if attributes.get(key) and tag != "link"]


def check_book(book):
    """What is wrong with the links of the built book: files outside docs/ are not part of it."""
    wrong = []
    built = {path: Html(path) for path in book.rglob("*.html") if path.name not in ("print.html", "404.html", "toc.html")}
    for path, page in built.items():
        for target in page.links:
            if OUTSIDE.match(target):
                continue
            name, _, anchor = urllib.parse.unquote(target).partition("#")
            to = (path.parent / name).resolve() if name else path
            if not to.exists() or (anchor and to in built and anchor not in built[to].anchors):
                wrong.append(f"{path.relative_to(book)}: {target} leads nowhere")
    return wrong


def moved(text, file, page):
    """`text` of `file` as part of `page` of the book: links that leave docs/ lead to the repository's pages."""
    package = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]

    def link(found):
        path, mark, anchor = found[2].partition("#")
        to = (file.parent / path).resolve()
        if OUTSIDE.match(path) or not path or not to.exists():
            return found[0]
        if to.is_relative_to(DOCS):
            path = os.path.relpath(to, page.parent)
        else:
            path = f"{package['repository']}/{'tree' if to.is_dir() else 'blob'}/main/{to.relative_to(ROOT)}"
        return f"{found[1]}{path}{mark}{anchor})"

    return re.sub(r"(\]\()([^()\s]+)\)", link, text)


def sources(folder):
    """Copies the book's sources to `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DOCS, folder / "docs")
    shutil.copy(ROOT / "book.toml", folder)
    for copy in (folder / "docs").rglob("*.md"):
        page = DOCS / copy.relative_to(folder / "docs")

        def include(found):
            file = (page.parent / found[1]).resolve()
            return moved(file.read_text(), file, page)

        text = moved(page.read_text(), page, page)
        copy.write_text(re.sub(r"\{\{#include\s+([^}\s]+)\s*\}\}", include, text))


def build_book():
    """What went wrong; nothing where mdbook cannot be had, which is said."""
    tool = [ROOT / "scripts/cargo-tool.sh", "mdbook", MDBOOK, os.environ.get("MDBOOK_SECONDS", "600")]
    mdbook = subprocess.run(tool, stdout=subprocess.PIPE, text=True, check=False)
    if mdbook.returncode:
        print("docs.py: MISSING: the book: mdbook could not be installed; "
              f"cargo install mdbook --locked --version {MDBOOK}", file=sys.stderr)
        return []
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
    book = target / "book"
    sources(target / "book-sources")
    shutil.rmtree(book, ignore_errors=True)
    command = [mdbook.stdout.strip(), "build", "--dest-dir", book, target / "book-sources"]
    built = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           text=True, timeout=120, check=False)
    said = [line.strip() for line in built.stdout.splitlines()]
    wrong = [f"mdbook: {line}" for line in said if re.search(r"\b(WARN|ERROR|warning|error)\b", line)]
    if built.returncode and not wrong:
        wrong = [f"mdbook: exit code {built.returncode}: {built.stdout}"]
    if not wrong:
        wrong = check_book(book)
        print(f"docs.py: the book is in {book}")
    return wrong


def blocks(page, kind):
    """The blocks of that kind, with the lines of their fences."""
    fences = re.finditer(r"^```([a-z,]*)\n(.*?)^```$", page.read_text(), re.M | re.S)
    text = page.read_text()
    return [(text.count("\n", 0, found.start()) + 1, found[2]) for found in fences if found[1] == kind]


def print_blocks(kind, names):
    if not names:
        for page in pages():
            if blocks(page, kind):
                print(page.relative_to(ROOT))
    for name in names:
        for line, code in blocks(ROOT / name, kind):
            print(f"echo '=== {name}:{line}'\n{code}", end="")


def main():
    arguments = sys.argv[1:]
    if arguments[:1] == ["--blocks"] and len(arguments) in (2, 3):
        print_blocks(arguments[1], arguments[2:])
        return
    if arguments not in ([], ["--links"]):
        sys.exit(__doc__)
    wrong = check_links()
    if not wrong and not arguments:
        wrong = build_book()
    for line in wrong:
        print(f"docs.py: FAILED: {line}", file=sys.stderr)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
