#!/usr/bin/env python3
"""Lists what is linked into the programs, with licences: for people, and as an SBOM.

    scripts/licences.py [--list FILE] [--sbom FILE]

Crates that only build or test are left out: nothing of them is in a program. The list has each
crate with its licence, and then each text of a licence once. The SBOM is CycloneDX 1.5, JSON. Both
are the same for the same Cargo.lock. Which licences there may be is deny.toml's, and `make deny`
checks it.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tomllib
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The packages whose programs are shipped.
SHIPPED = ("cenote", "cenote-lab", "cenote-memcached")
TARGET = "x86_64-unknown-linux-gnu"
TEXTS = ("LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE")


def linked():
    """The packages that are linked in, by id, and what each of them uses."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", TARGET]
    found = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)
    packages = {package["id"]: package for package in found["packages"]}
    nodes = {node["id"]: node for node in found["resolve"]["nodes"]}
    members = set(found["workspace_members"])
    waiting = [one for one in members if packages[one]["name"] in SHIPPED]
    uses = {}
    while waiting:
        one = waiting.pop()
        if one in uses:
            continue
        uses[one] = [
            dep["pkg"] for dep in nodes[one]["deps"]
            # None: neither for building nor for tests.
            if any(kind["kind"] is None for kind in dep["dep_kinds"])
            and not is_macro(packages[dep["pkg"]])
        ]
        waiting += uses[one]
    return {one: packages[one] for one in uses}, uses, members


def is_macro(package):
    """Whether it runs in the compiler."""
    return any("proc-macro" in target["kind"] for target in package["targets"])


def licence(package):
    """Its SPDX expression. A slash is how it was written once."""
    expression = package["license"]
    if not expression:
        sys.exit(f"{package['name']} {package['version']}: no licence is said")
    return re.sub(r"\s*/\s*", " OR ", expression)


def write_list(path, packages):
    """For people: crates, and texts."""
    lines = ["What is linked into the programs of Cenote, and under which licences.", ""]
    texts = {}
    for package in packages:
        who = f"{package['name']} {package['version']}"
        lines.append(f"{who}: {licence(package)}")
        for file in sorted(Path(package["manifest_path"]).parent.iterdir()):
            if file.is_file() and file.name.upper().startswith(TEXTS):
                text = file.read_text(errors="replace").strip()
                texts.setdefault(text, []).append(f"{who} ({file.name})")
    for text, whose in texts.items():
        lines += ["", "=" * 72, *whose, "=" * 72, "", text]
    Path(path).write_text("\n".join(lines) + "\n")


def write_sbom(path, packages, uses, members):
    """CycloneDX, for programs."""
    locked = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    sums = {(one["name"], one["version"]): one.get("checksum") for one in locked}
    reference = {one["id"]: f"pkg:cargo/{one['name']}@{one['version']}" for one in packages}
    components = []
    for package in packages:
        name, version = package["name"], package["version"]
        component = {
            "type": "library",
            "bom-ref": reference[package["id"]],
            "name": name,
            "version": version,
            "licenses": [{"expression": licence(package)}],
        }
        if package["id"] not in members:
            component["purl"] = reference[package["id"]]
        if checksum := sums.get((name, version)):
            component["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        components.append(component)
    version = next(one["version"] for one in packages if one["name"] == SHIPPED[0])
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": "cenote-programs",
                "name": "cenote",
                "version": version,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
        },
        "components": components,
        "dependencies": [
            {"ref": "cenote-programs",
             "dependsOn": [reference[one["id"]] for one in packages if one["name"] in SHIPPED]},
            *({"ref": reference[one["id"]], "dependsOn": sorted(reference[to] for to in uses[one["id"]])}
              for one in packages),
        ],
    }
    digest = hashlib.sha256(json.dumps(bom, sort_keys=True).encode()).digest()
    bom["serialNumber"] = uuid.UUID(bytes=digest[:16], version=4).urn
    Path(path).write_text(json.dumps(bom, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", metavar="FILE")
    parser.add_argument("--sbom", metavar="FILE")
    arguments = parser.parse_args()
    found, uses, members = linked()
    packages = sorted(found.values(), key=lambda one: (one["name"], one["version"]))
    if arguments.list:
        write_list(arguments.list, packages)
    if arguments.sbom:
        write_sbom(arguments.sbom, packages, uses, members)
    if not (arguments.list or arguments.sbom):
        for package in packages:
            print(f"{package['name']} {package['version']}: {licence(package)}")


main()
