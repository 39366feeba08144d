#!/usr/bin/env python3
"""Checks how the project is written: phrases, width of prose, subjects of commits.

    scripts/style.py    checks, and prints the counts

Phrases are searched in Markdown pages, doc comments and string literals of product code, without tests. Each has a
better wording in PHRASES. If good English matches a pattern by accident, refine the pattern. Markdown prose has at most
100 columns, except in tables, code and links. Subjects of commits since SINCE are `area: what it does`, in the
imperative, at most 72 characters.
"""

import re
import subprocess
import sys

from house import ROOT, TEST, TOKEN, blanked, end_of_item

# Crates whose doc comments and messages are checked.
PRODUCT = ["burn-dist", "kernels", "models", "datasets", "trainer", "kernel-cache", "learner", "loader"]
WIDEST, LONGEST = 100, 72
# The committer time of 939269d. A time, not a commit, because a shallow clone need not hold that commit.
SINCE = 1795791331
# Its text comes from doc comments, which are checked.
GENERATED = {"docs/config.md"}

# The begin of a sentence.
BEGIN = r"(?:^|(?<=[.:;] ))"
PHRASES = {
    # The field's words.
    r"\bprocessors?\b": "CPU, or SM of a GPU",
    r"\b(?:is|are) no numbers?\b|\b(?:that|which|it|they|this|a number) (?:is|are) none\b": "NaN",
    r"\bset aside\b": "abandoned",
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"\banew\b": "again, new",
    # Sentences that reach their verb late.
    BEGIN + r"What (?![^.]*\?)": "say who does it: subject, verb, object",
    BEGIN + r"Of (?!course)": "begin with the subject",
    BEGIN + r"Where (?![^.]*\?)": "if, when",
    BEGIN + r"Who(?:ever)? (?![^.]*\?)": "name who: a process, a user, a rank",
    BEGIN + r"(?:That|Those) (?:of|that|which)\b": "repeat the noun",
    BEGIN + r"There (?!is\b|are\b|was\b|were\b|can\b|may\b|must\b|has\b|have\b|will\b|should\b|need)": "name the place",
    # Words that stand for others.
    r"(?<!\bno )\bsuch\b(?! as\b)": "name the thing",
    r"\bthose (?:that|which|who|whose)\b": "repeat the noun",
    r"\bthe one (?:of|by|which)\b": "repeat the noun",
    r"\b(?!it|that|what|there|here|let|he|she|who)\w+'s (?:is|are|does|do|has|have|goes|go|takes|take)\b": "repeat the noun",
    r"\bof which\b": "two sentences",
    # Translated.
    r"\bso (?:often|many|much)\b": "say the number: N times, that many",
    r"\bequally many\b": "the same number",
    r"\b(?:is|are|was|were|be|been) told\b": "gets, receives, knows",
    r"\bbut for\b": "except",
    r"\blikewise\b": "also, the same",
    r"\bin vain\b": "without effect",
    r"\bonce and for all\b": "leave it out",
    r"\bfrom time to time\b": "sometimes",
    r"\bwhat is (?:left|read|written|trained|learned|missing) (?:is|are|of)\b": "name it",
}
PATTERNS = [(re.compile(pattern, re.I if not pattern.startswith(BEGIN) else 0), better) for pattern, better in PHRASES.items()]


def pages():
    found = sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md"))
    return [page for page in found if str(page.relative_to(ROOT)) not in GENERATED]


def prose(page):
    """Lines of a page without code, with their numbers."""
    fence = None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        mark = re.match(r"\s*(`{3,}|~{3,})", line)
        if mark:
            fence = None if fence and mark[1].startswith(fence) else fence or mark[1]
        elif not fence:
            yield number, line


def blocks(lines):
    """Joins the lines of a paragraph: phrases are broken over lines too. Pairs of text and the lines of its letters."""
    text, where, last = "", [], None
    for number, line in lines:
        begins = not line or re.match(r"(?:#|\||[-*] |\d+\. |<)", line) or last is None or number != last + 1
        if begins and text:
            yield text, where
            text, where = "", []
        if line:
            line = re.sub(r"^(?:[-*]|\d+\.) ", "", line)
            text += (" " if text else "") + line
            where += [number] * (len(text) - len(where))
        last = number
    if text:
        yield text, where


def of_page(page):
    plain = []
    for number, line in prose(page):
        # Headings may ask, and cells of tables are no sentences.
        if line.startswith("#"):
            line = ""
        # Targets of links are no prose.
        line = re.sub(r"\]\([^)]*\)", "]", line)
        plain.append((number, re.sub(r"`[^`]*`", "`code`", line.strip())))
    return blocks(plain)


def test_lines(text):
    """Numbers of the lines that only tests compile."""
    text, lines = blanked(text), set()
    while found := TEST.search(text):
        begin, end = found.start(), end_of_item(text, found.end())
        lines |= set(range(text.count("\n", 0, begin) + 1, text.count("\n", 0, end) + 2))
        text = text[:begin] + "\n" * text.count("\n", begin, end) + text[end:]
    return lines


def of_source(path):
    """Doc comments and string literals of a file of product code."""
    text = path.read_text()
    tests = test_lines(text)
    documented, literals, example = [], [], False
    for found in TOKEN.finditer(text):
        number = text.count("\n", 0, found.start()) + 1
        if number in tests:
            continue
        token = found[0]
        if comment := re.match(r"//[/!] ?(.*)", token):
            line = comment[1].strip()
            if line.startswith("```"):
                example = not example
                line = ""
            documented.append((number, "" if example or line.startswith("#") else re.sub(r"`[^`]*`", "`code`", line)))
        elif token[0] in 'r"' and " " in token:
            line = re.sub(r"\\\n\s*", "", token.strip('r#"'))
            literals.append((line, [number] * len(line)))
    return [*blocks(documented), *literals]


def phrases(parts):
    """Pairs of a line's number and what is wrong there."""
    for text, where in parts:
        for pattern, better in PATTERNS:
            for found in pattern.finditer(text):
                near = text[max(0, found.start() - 20) : found.end() + 30].strip()
                yield where[min(found.start(), len(where) - 1)], f"“… {near} …”; better: {better}"


def wide(page):
    for number, line in prose(page):
        shown = re.sub(r"\]\([^)]*\)|^\[[^\]]*\]: \S+|<?https?://\S+", "", line)
        if len(shown) > WIDEST and not line.startswith("|"):
            yield number, f"{len(line)} columns"


VERBS_IN_S = {"pass", "process", "compress", "decompress", "focus", "address", "access", "discuss", "bypass", "express",
              "guess", "miss", "cross", "dismiss", "suppress", "assess", "stress", "press", "toss", "bias", "canvas", "alias"}
VERBS_IN_ED = {"need", "embed", "feed", "seed", "speed", "shed", "exceed", "proceed", "succeed", "shred", "heed"}
VERBS_IN_ING = {"bring", "ping", "ring", "swing"}
NO_VERBS = {"a", "an", "the", "no", "all", "each", "every", "what", "which", "who", "where", "when", "how", "of", "one", "two",
            "its", "this", "that", "these", "those", "some", "more", "new", "also", "only", "now", "then", "and"}


def subject_is_wrong(subject):
    """What is wrong with the subject of a commit, or None."""
    if len(subject) > LONGEST:
        return f"{len(subject)} characters, {LONGEST} allowed"
    found = re.fullmatch(r"[a-z][\w./-]*: (\S+)(?: .*)?", subject)
    if not found:
        return "write `area: what it does`, with one area"
    word = found[1].lower().rstrip(",")
    if (word in NO_VERBS or (re.search(r"[^sui]s$", word) and word not in VERBS_IN_S)
            or (word.endswith("ed") and word not in VERBS_IN_ED) or (word.endswith("ing") and word not in VERBS_IN_ING)
            or word.endswith("'s")):
        return f"begin with a verb in the imperative after the colon, not with “{found[1]}”"
    if subject.endswith("."):
        return "ends with a full stop"
    return None


def commits():
    """What is wrong with the subjects of the commits since SINCE that this clone holds, and how many there are."""
    log = ["git", "-C", str(ROOT), "log", "--no-merges", "--format=%h %ct %s"]
    said = subprocess.run(log, capture_output=True, text=True, check=False)
    if said.returncode:
        print(f"SKIPPED: subjects of commits: {said.stderr.strip()}")
        return [], 0
    new = [line.split(" ", 2) for line in said.stdout.splitlines()]
    new = [(commit, subject) for commit, time, subject in new if int(time) > SINCE]
    wrong = [(commit, subject, subject_is_wrong(subject)) for commit, subject in new]
    return [f"commit {commit} “{subject}”: {reason}" for commit, subject, reason in wrong if reason], len(new)


def main():
    if sys.argv[1:]:
        sys.exit(__doc__)
    sources = [path for crate in PRODUCT for path in sorted((ROOT / crate / "src").rglob("*.rs"))]
    checks = {
        "phrases": [(page, phrases(of_page(page))) for page in pages()] + [(path, phrases(of_source(path))) for path in sources],
        "wide": [(page, wide(page)) for page in pages()],
    }
    wrong, entries = commits()
    print(f"subjects of commits: {entries}")
    for kind, found in checks.items():
        hits = [f"{path.relative_to(ROOT)}:{line}: {what}" for path, lines in found for line, what in lines]
        print(f"{kind}: {len(hits)}")
        wrong += hits
    for line in wrong:
        print(f"style.py: FAILED: {line}", file=sys.stderr)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
