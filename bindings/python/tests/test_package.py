"""The package as a whole: types, the example, the guide, and what pip makes of it."""

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness import CENOTE, ROOT, run

import cenote

PACKAGE = ROOT / "bindings" / "python"
GUIDE = ROOT / "docs" / "guides" / "python.md"


def test_mypy_finds_no_fault_with_the_package_and_its_example():
    run(sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", cwd=PACKAGE)


def test_the_stub_says_what_the_library_has():
    run(sys.executable, "-m", "mypy.stubtest", "cenote._cenote", cwd="/")


def test_types_are_told_to_programs(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import cenote\n"
        "from typing_extensions import assert_type\n"
        "def use(volume: cenote.Volume, store: cenote.Store) -> None:\n"
        "    assert_type(volume[1:5], bytes)\n"
        "    assert_type(volume[1], int)\n"
        "    assert_type(store.get('a'), bytes | None)\n"
        "    assert_type(store.get('a', b''), bytes)\n"
        "    assert_type(store.list(), list[str])\n"
        "    volume.write(0)  # refused: no data\n"
    )
    place = Path(cenote.__file__).parent.parent
    ended = run(sys.executable, "-m", "mypy", "--strict", program, code=1,
                env=dict(os.environ, MYPYPATH=str(place)))
    faults = re.findall(r"^.*: error: .*$", ended.stdout, re.M)
    assert len(faults) == 1 and ":9: error: Missing positional argument" in faults[0], ended.stdout


def test_the_example_runs(well):
    said = run(sys.executable, PACKAGE / "examples" / "embeddings.py", well.folder).stdout
    assert re.fullmatch(r"rs:4\+2: 2\d\d rows changed, 9 MiB stored\n", said), said


def test_the_guide_is_what_runs(well, served, store, tmp_path, monkeypatch):
    """Its blocks of Python, one after the other, in a home where the cluster is."""
    (tmp_path / ".cenote").mkdir()
    (tmp_path / ".cenote" / "python").symlink_to(well.folder)
    monkeypatch.setenv("HOME", str(tmp_path))
    well.cache("guide", "8M").close()
    text = GUIDE.read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    assert len(blocks) >= 5
    names = {}
    for block in blocks:
        for said, here in (
            ("10.0.0.7:7100", served.address.removeprefix("tcp:")),
            ("~/cluster.key", str(served.key)),
            ("~/.cenote/python", str(well.folder)),
        ):
            block = block.replace(said, here)
        exec(compile(block, str(GUIDE), "exec"), names)  # noqa: S102


def test_every_error_says_what_to_do():
    guide = GUIDE.read_text()
    for name in dir(cenote.errors):
        kind = getattr(cenote.errors, name)
        if isinstance(kind, type) and issubclass(kind, cenote.Error) and kind is not cenote.Error:
            assert kind.hint and kind.hint in str(kind("it failed")), name
            assert getattr(cenote, name) is kind
            assert f"`{name}`" in guide, f"the guide does not name {name}"


def test_the_version_is_the_crates():
    assert cenote.__version__ == importlib.metadata.version("cenote")
    said = run(CENOTE, "--version").stdout
    assert said.split()[1] == cenote.__version__, said


@pytest.mark.parametrize("how", ["ends", "raises", "thread"])
def test_a_program_that_does_not_close_ends_all_the_same(well, served, how):
    well.cache(f"left-{how}", "1M", 1).close()
    program = (
        "import cenote, sys, threading\n"
        "folder, cache, address, key, how = sys.argv[1:]\n"
        "volume = cenote.Volume(folder, size='1M')\n"
        "cache = cenote.Cache(cache, folder)\n"
        "store = cenote.Store(address, key=key)\n"
        "volume[0] = cache[0] = 1\n"
        "store.put('left', b'1')\n"
        "def work():\n"
        "    while True:\n"
        "        volume.write(0, bytes(4096)), cache.read(0, 5), store.get('left')\n"
        "if 'thread' in how:\n"
        "    threading.Thread(target=work, daemon=True).start()\n"
        "print('through', flush=True)\n"
        "if 'raises' in how:\n"
        "    raise SystemExit(3)\n"
    )
    ended = run(sys.executable, "-c", program, well.folder, f"left-{how}",
                served.address, served.key, how, code=3 if "raises" in how else 0)
    assert (ended.stdout, ended.stderr) == ("through\n", "")


@pytest.mark.long
def test_pip_builds_a_wheel_that_works(well, tmp_path):
    """With dependencies that are built already, as far as cargo takes them."""
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", venv)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["MATURIN_PEP517_ARGS"] = "--profile dev"
    environment["CARGO_TARGET_DIR"] = os.environ.get("CARGO_TARGET_DIR", str(ROOT / "target"))
    ended = subprocess.run(
        [venv / "bin" / "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, PACKAGE],
        env=environment, capture_output=True, text=True, timeout=1400, check=False,
    )
    if "maturin" in ended.stderr and "No matching distribution" in ended.stderr:
        pytest.skip("maturin cannot be had")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    [wheel] = tmp_path.glob("cenote-*.whl")
    assert re.match(r"cenote-[\d.]+-cp311-abi3-(many)?linux.*_x86_64\.whl", wheel.name), wheel.name
    run(venv / "bin" / "pip", "install", "-q", wheel, env=environment)
    program = (
        "import cenote, importlib.metadata as m, importlib.resources as r, sys\n"
        "assert r.files('cenote').joinpath('py.typed').is_file()\n"
        "assert [e.value for e in m.entry_points(group='fsspec.specs')]"
        " == ['cenote.fs.CenoteFileSystem']\n"
        "with cenote.Volume(sys.argv[1], size='1M') as volume:\n"
        "    volume[0:5] = b'hello'\n"
        "    print(volume[0:5])\n"
    )
    said = run(venv / "bin" / "python", "-c", program, well.folder, env=environment).stdout
    assert said == "b'hello'\n"
