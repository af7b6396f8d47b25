#!/usr/bin/env python3
"""Runs test_lmcache.py with LMCache and PyTorch of PyPI, in the long part: they are a download of
650 MB, and 1.5 GB of disk.

PyTorch's package for x86-64 is linked with CUDA's libraries, 3 GB that nothing calls where no GPU
is. Empty libraries take their place; the CUDA runtime, which is asked for a GPU, is real.
"""

import re
import subprocess
import sys
from pathlib import Path

import run

from harness import need, skip, tools

HERE = Path(__file__).resolve().parent


def environment():
    """What requirements-lmcache.txt names, where torch can be imported; its folder."""
    need("cc", "ldd", "nm", "readelf")
    try:
        venv = tools("lmcache", HERE / "requirements-lmcache.txt")
    except subprocess.TimeoutExpired as error:
        skip(f"packages of requirements-lmcache.txt took more than {error.timeout} s to install")
    [packages] = venv.glob("lib/python*/site-packages")
    # Where PyTorch's libraries look.
    place = packages / "nvidia" / "cu13" / "lib"
    place.mkdir(parents=True, exist_ok=True)
    libraries = sorted((packages / "torch" / "lib").glob("libtorch*.so"))
    missing = {name for library in libraries for name in re.findall(
        r"^\s*(\S+) => not found", said("ldd", library), re.M)}
    # What is named in tables has to be somewhere, with its version if it has one.
    names = {name for library in libraries for name in re.findall(
        r"^ +U ((?:cu|nccl|nv)\w+)(?:@(\S+))?$", said("nm", "-D", "-u", library), re.M)}
    versions = {version for library in libraries for version in re.findall(
        r"File: (\S+) .*\n.* Name: (\S+) ", said("readelf", "-WV", library))}
    for file in sorted(missing):
        has = {version for name, version in versions if name == file}
        stub(place / file, {(name, version) for name, version in names if version in has or not version})
    asked = subprocess.run(
        [venv / "bin" / "python", "-c", "import torch; print(torch.cuda.is_available())"],
        capture_output=True, text=True, check=False,
    )
    if asked.returncode != 0:
        skip(f"PyTorch does not run here: {asked.stderr.strip().splitlines()[-1:]}")
    return venv


def said(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def stub(file, names):
    source = "".join(f"char {name};\n" for name, _ in sorted(names))
    versions = sorted({version for _, version in names if version})
    script = file.with_suffix(".map")
    script.write_text("".join(
        f"{version} {{ {' '.join(f'{name};' for name, own in names if own == version)} }};\n"
        for version in versions))
    command = ["cc", "-shared", "-x", "c", "-", f"-Wl,-soname,{file.name}", "-o", file]
    command += [f"-Wl,--version-script={script}"] if versions else []
    subprocess.run(command, input=source, text=True, check=True)
    script.unlink()


if __name__ == "__main__":
    if run.is_long():
        sys.exit(run.main(environment, [HERE / "test_lmcache.py"]))
    sys.exit(run.nothing())
