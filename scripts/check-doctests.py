#!/usr/bin/env python3
"""Says which crates have `doctest` wrong in their Cargo.toml; ends with 1 if some have.

    scripts/check-doctests.py

Cargo looks for examples in the documentation of each crate, for seconds. So a library without examples
says `doctest = false`, and one that has some does not.
"""

import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENTATION = re.compile(r"^\s*//[/!] ?(.*)$", re.M)
FENCE = re.compile(r"^\s*```(.*)$")


def has_example(text):
    """Whether a block of the documentation is Rust's: what is not marked as another language is."""
    is_inside = False
    for line in DOCUMENTATION.findall(text):
        if fence := FENCE.match(line):
            is_inside = not is_inside
            words = {word.strip() for word in fence[1].split(",")}
            if is_inside and words <= {"", "rust", "no_run", "should_panic", "compile_fail"}:
                return True
    return False


def main():
    wrong = []
    for manifest in sorted([*ROOT.glob("crates/*/Cargo.toml"), *ROOT.glob("bindings/*/Cargo.toml")]):
        sources = manifest.parent / "src"
        if not (sources / "lib.rs").exists():
            continue
        is_looked_at = tomllib.loads(manifest.read_text()).get("lib", {}).get("doctest", True)
        has_some = any(has_example(file.read_text()) for file in sources.rglob("*.rs"))
        if is_looked_at != has_some:
            name = manifest.relative_to(ROOT)
            wrong.append(f"{name}: doctest = {str(has_some).lower()} under [lib]")
    print("\n".join(wrong))
    word = "FAILED" if wrong else "ok"
    print(f"test result: {word}. {int(not wrong)} passed; {int(bool(wrong))} failed; 0 ignored")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
