#!/usr/bin/env python3
"""Counts `unsafe` in the sources of each crate and compares with scripts/unsafe.txt.

    scripts/check-unsafe.py [--write]

Ends with 1 where there is more than the table says, or a crate that it does not name. Whoever adds
unsafe code writes the table again (--write), so that the change shows it; a count that fell is told,
and should be lowered the same way.

Counted is the word in code: blocks, functions, traits, implementations, attributes. Not in comments or
strings, and not in a crate's `tests` and `benches`.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "scripts" / "unsafe.txt"
# What the word may stand in without being code. Lifetimes and labels ('a) are not characters.
NO_CODE = re.compile(
    r"""
    //[^\n]*
    | r(?P<fence>\#*)"(?:.|\n)*?"(?P=fence)
    | "(?:\\(?:.|\n)|[^"\\])*"
    | '(?:\\[^\n]{1,9}?|[^'\\\n])'
    """,
    re.VERBOSE,
)
WORD = re.compile(r"\bunsafe\b")


def without_blocks(text):
    """The text without /* */, which nest."""
    parts, depth, at = [], 0, 0
    for mark in re.finditer(r"/\*|\*/", text):
        if depth == 0:
            parts.append(text[at:mark.start()])
        depth = max(0, depth + (1 if mark[0] == "/*" else -1))
        at = mark.end()
    parts.append(text[at:] if depth == 0 else "")
    return " ".join(parts)


def count(text):
    # Strings first: they may hold what looks like a comment.
    return len(WORD.findall(without_blocks(NO_CODE.sub(" ", text))))


def counted():
    """How often it stands in each crate."""
    counts = {}
    for manifest in sorted([*ROOT.glob("crates/*/Cargo.toml"), *ROOT.glob("bindings/*/Cargo.toml")]):
        sources = sorted((manifest.parent / "src").rglob("*.rs"))
        counts[manifest.parent.name] = sum(count(path.read_text()) for path in sources)
    return counts


def check_the_counting():
    """The expression above is the part of this that may be wrong without a sign of it."""
    for text, wanted in [
        ("unsafe { a() } unsafe fn b() {} #[unsafe(no_mangle)]", 3),
        ("// unsafe\n/// unsafe\n/* unsafe /* unsafe */ unsafe */ unsafe {}", 1),
        ('"unsafe \\" unsafe" b"unsafe" unsafe {}', 1),
        ('r#"unsafe " unsafe"# r"\\" unsafe {}', 1),
        ("'\"' unsafe {} '\"' '\\'' unsafe {} '\\u{1f}'", 2),
        ("fn a<'a>(b: &'a u8) { unsafe {} } 'c: loop {}", 1),
        ("#![forbid(unsafe_code)] not_unsafe unsafe_cell", 0),
        ('"// " unsafe {} "/*" unsafe {}', 2),
    ]:
        assert count(text) == wanted, f"{count(text)} for {wanted} in {text}"


def main():
    check_the_counting()
    counts = counted()
    if "--write" in sys.argv[1:]:
        rows = "".join(f"{name} {number}\n" for name, number in counts.items())
        TABLE.write_text("# `unsafe` in the sources of each crate: scripts/check-unsafe.py --write\n" + rows)
        return 0
    rows = (line.split() for line in TABLE.read_text().splitlines() if not line.startswith("#"))
    known = {name: int(number) for name, number in rows}
    failed = False
    for name, number in counts.items():
        if number > known.get(name, -1):
            print(f"crates/{name}: {number} times unsafe, {known.get(name, 'nothing')} in {TABLE.name}")
            failed = True
        elif number < known[name]:
            print(f"crates/{name}: only {number} times unsafe, {known[name]} in {TABLE.name}: lower it")
    gone = known.keys() - counts.keys()
    if gone:
        print(f"{TABLE.name} names what there is not: {', '.join(sorted(gone))}")
    failed |= bool(gone)
    print(f"{sum(counts.values())} times unsafe in {len(counts)} crates")
    # As a Rust test program ends, for scripts/run-tests.py.
    print(f"test result: {'FAILED' if failed else 'ok'}. {int(not failed)} passed; {int(failed)} failed; 0 ignored")
    return 1 if failed else 0


sys.exit(main())
