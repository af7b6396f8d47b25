#!/usr/bin/env python3
"""The dashboard in a real browser: Debian's chromium, without a screen, driven by Playwright.

With CENOTE_SCREENSHOTS=docs/images the pictures of the documents are taken as well.
"""

import contextlib
import json
import os
import re
import signal
import site
import ssl
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import harness
from cluster import Process
from harness import CENOTE, LIMIT_S, need, run, wait_for

PICTURES = os.environ.get("CENOTE_SCREENSHOTS")
# Slabs of the volume are rebuilt this slowly, so that a page sees it.
REPAIR_RATE = "512K"


class Shared:
    """One cluster, one dashboard and one browser for all tests here."""

    place = None
    processes = []
    browser = None
    driver = None

    @classmethod
    def start(cls):
        try:
            cls.launch()
        except BaseException:
            # The next test tries again, with a cluster of its own.
            cls.end()
            raise

    @classmethod
    def launch(cls):
        need("chromium", "nbdcopy")
        packages = next((harness.tools() / "lib").glob("python3*/site-packages"))
        site.addsitedir(str(packages))
        from playwright.sync_api import sync_playwright

        cls.place = tempfile.TemporaryDirectory(prefix="cenote-ops-")
        cls.folder = Path(cls.place.name)
        cls.dir = cls.folder / "well"
        run(CENOTE, "up", "--hosts", "6", "--memory", "32M", "--slab", "1M", "--dir", cls.dir)
        cls.token = cls.folder / "token"
        run(CENOTE, "key", "new", "--out", cls.token)
        cls.volume = cls.begin(
            "v0", "nbd", "--volume", "v0", "--size", "16M", "--scheme", "rs:2+1", "--dir", cls.dir,
            "--repair-rate", REPAIR_RATE, "--socket", cls.folder / "socket",
        )
        content = cls.folder / "content"
        content.write_bytes(os.urandom(16 << 20))
        # A page each: longer requests are not timed.
        cls.uri = cls.volume.line.split(" at ")[1]
        run("nbdcopy", "--request-size=4096", content, cls.uri)
        cls.url = cls.dashboard("dashboard", "--token-file", cls.token)
        cls.driver = sync_playwright().start()
        cls.browser = cls.driver.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"])

    @classmethod
    def begin(cls, name, *arguments):
        process = Process(cls.folder / f"{name}.log", *arguments)
        cls.processes.append(process)
        return process

    @classmethod
    def dashboard(cls, name, *arguments):
        """Another one, of the same cluster; its address."""
        process = cls.begin(
            name, "dashboard", "--dir", cls.dir, "--interval", "500ms",
            *([] if "--listen" in arguments else ["--listen", "127.0.0.1:0"]), *arguments)
        return process.line.split(" at ")[1]

    @classmethod
    def end(cls):
        # The last first, each whatever becomes of those before it.
        with contextlib.ExitStack() as ends:
            if cls.place:
                ends.callback(cls.place.cleanup)
                ends.callback(run, CENOTE, "down", "--force", "--dir", cls.dir, code=None)
            for process in cls.processes:
                ends.callback(process.end)
            if cls.driver:
                ends.callback(cls.driver.stop)
            if cls.browser:
                ends.callback(cls.browser.close)
        cls.place, cls.processes, cls.driver, cls.browser = None, [], None, None


class Tab:
    """A page of the dashboard; what its console complains of is an error."""

    def __init__(self, url=None, width=1280, height=900, scheme="light"):
        if Shared.browser is None:
            Shared.start()
        self.context = Shared.browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme,
            ignore_https_errors=True)
        self.page = self.context.new_page()
        self.page.set_default_timeout(LIMIT_S * 1000)
        self.complaints = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda said: said.type == "error" and self.complaints.append(said.text))
        self.url = url or Shared.url

    def __enter__(self):
        self.page.goto(self.url)
        return self

    def __exit__(self, kind, error, trace):
        if kind:
            print(self.page.inner_text("body"))
        self.context.close()
        # Answers that refuse are told in the console as well.
        wrong = [text for text in self.complaints if "Failed to load resource" not in text]
        if not kind:
            assert not wrong, wrong

    def says(self, selector, text):
        """Waits until an element has this text."""
        wait_for(lambda: text in self.page.inner_text(selector) or self.page.wait_for_timeout(50),
                 lambda: f"{text!r} in {selector}: {self.page.inner_text(selector)!r}")

    def shows_all(self):
        """Waits until every part is there, with a point of the last hour."""
        self.page.wait_for_selector("#hosts tbody tr")
        self.page.wait_for_selector(".volume .map path")
        self.page.wait_for_selector(".chart path[d*=M]", state="attached")

    def picture(self, name, height=None):
        if PICTURES:
            size = self.page.viewport_size
            clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"]}
            place = Path(PICTURES)
            place.mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=place / f"{name}.png", clip=clip, full_page=True)


def pid(host):
    return int((Shared.dir / "hosts" / host / "pid").read_text())


def holder():
    """A host that has slabs of the volume."""
    said = run(CENOTE, "volume", "status", "v0", "--dir", Shared.dir, "--json", code=None).stdout
    return json.loads(said)["status"]["extents"][0]["hosts"][0]


def test_a_host_that_dies_is_shown_and_so_is_the_healing():
    with Tab() as tab:
        tab.shows_all()
        # No chart of parts that are not there.
        drawn = tab.page.inner_text("#hour .charts")
        assert "Memory of hosts" in drawn and "stores" not in drawn and "Key-value" not in drawn, drawn
        tab.says("#summary-title", "All is well")
        tab.says(".volume", "8 mapped extents: 8 whole")
        host = holder()
        os.kill(pid(host), signal.SIGKILL)
        row = f'#hosts tr[data-key="{host}"]'
        tab.says(row, "process ended")
        tab.says("#events", f"host {host} is down: its process has exited")
        tab.says("#summary-title", "1 host is down")
        tab.says(".volume .badge", "being rebuilt")
        # The shapes of the map, and what is said of them to those who do not see it.
        shapes = ".volume .map path.r[d*=M], .volume .map path.d[d*=M]"
        tab.page.wait_for_selector(shapes, state="attached")
        label = tab.page.get_attribute(".volume .map", "aria-label")
        assert re.search(r"\d (being rebuilt|degraded)", label), label
        tab.says("#work", "Volume v0: rebuilding slabs")
        tab.says("#work", "about ")
        # What volumes do is of the time since the answer before.
        run("nbdcopy", "--request-size=4096", Shared.uri, "null:")
        tab.says(".volume .rates", "us read")
        tab.says(".volume details summary", "Extents that are not whole")
        # Read aloud, not only drawn.
        tab.says("#news", "volume v0")
        tab.picture("dashboard", 1000)
        with Tab(width=400, height=860, scheme="dark") as narrow:
            narrow.shows_all()
            narrow.picture("dashboard-dark")
        tab.says("#events", "volume v0 is whole")
        tab.says(".volume .badge", "whole")
        tab.says("#work", "No rebuilds or moves")
        run(CENOTE, "up", "--hosts", "6", "--memory", "32M", "--slab", "1M", "--dir", Shared.dir)
        tab.says("#events", f"host {host} is up")
        tab.says("#summary-title", "All is well")


def test_a_part_that_does_not_answer_holds_up_no_other():
    with Tab() as tab:
        tab.shows_all()
        host = next(name for name in ("h00", "h01") if name != holder())
        os.kill(Shared.volume.process.pid, signal.SIGSTOP)
        try:
            tab.says(".volume", "no answer")
            os.kill(pid(host), signal.SIGKILL)
            tab.says(f'#hosts tr[data-key="{host}"]', "process ended")
            tab.says("#link", "live")
        finally:
            os.kill(Shared.volume.process.pid, signal.SIGCONT)
        run(CENOTE, "up", "--hosts", "6", "--memory", "32M", "--slab", "1M", "--dir", Shared.dir)
        tab.says("#hosts", host)
        tab.says("#events", f"host {host} is up")
        tab.says(".volume .badge", "whole")


def test_groups_caches_and_stores_are_shown_and_what_becomes_of_them():
    if Shared.browser is None:
        Shared.start()
    need("etcd")
    here, objects, kv = ["--dir", Shared.dir], Shared.folder / "objects", Shared.folder / "kv"
    run(CENOTE, "store", "create", objects, "--size", "16M")
    store = Shared.begin("store", "store", "serve", objects, "--listen", "tcp:127.0.0.1:0",
                         "--key", Shared.dir / "cluster.key")
    address = re.search(r" at (tcp:[0-9.]+:[0-9]+)", store.line)[1]
    run(CENOTE, "cache", "create", "c0", "--size", "2M", "--region", "1M", "--copies", "2", *here)
    try:
        run(CENOTE, "kv", "up", "--nodes", "3", "--groups", "3", "--code", "2+1",
            "--memory", "64M", "--dir", kv)
        url = Shared.dashboard("services", "--kv", kv, "--store", address)
        with Tab(url) as tab:
            tab.says("#caches tbody tr", "whole")
            tab.says("#kv .groups", "group 2: whole")
            tab.says('#kv tr[data-key="n01"]', "up")
            tab.says("#stores tbody tr", "efactory")
            tab.says("#cards", "3 of 3 whole")
            run(CENOTE, "store", "put", address, "k", __file__, "--key", Shared.dir / "cluster.key")
            # It takes two points of ten seconds.
            chart = '#hour [data-key="Bytes put into stores per second"]'
            tab.page.wait_for_selector(f"{chart} path[d*=M]", state="attached")
            tab.says(chart, "put")
            run(CENOTE, "cache", "stop", "c0", *here)
            store.end()
            os.kill(int((kv / "nodes" / "n01" / "pid").read_text()), signal.SIGKILL)
            tab.says("#caches tbody tr", "no manager")
            tab.says("#stores tbody tr", "no answer")
            tab.says("#events", f"store {address} does not answer")
            tab.says("#events", "cache c0 has no manager")
            tab.says("#events", "group 0 is not whole")
            tab.says("#kv .groups", "group 0: not whole")
            assert faults(tab.page) == [0, []], faults(tab.page)
    finally:
        run(CENOTE, "kv", "down", "--dir", kv, code=None)
        run(CENOTE, "cache", "delete", "c0", *here, code=None)


def faults(page):
    """Elements that pass the right edge, and the page's own width if it is too wide."""
    return page.evaluate("""() => {
        const wide = document.documentElement.scrollWidth - innerWidth;
        const hidden = ".hidden, .skip, thead, thead *";
        const past = [...document.body.querySelectorAll("*")].filter((element) =>
            !element.matches(hidden) && element.getBoundingClientRect().right > innerWidth + 1);
        return [wide, past.map((element) => element.outerHTML.slice(0, 200))];
    }""")


def contrasts(page):
    """Text whose contrast to what is behind it is below that of WCAG AA."""
    return page.evaluate("""() => {
        const light = (colour) => {
            const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((part) => {
                const share = part / 255;
                return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
            });
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const behind = (element) => {
            for (let at = element; at; at = at.parentElement) {
                const colour = getComputedStyle(at).backgroundColor;
                if (!/, 0\\)$|transparent/.test(colour)) return colour;
            }
            return "rgb(255, 255, 255)";
        };
        const found = [];
        for (const element of document.querySelectorAll("body *")) {
            const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
            if (!own || !element.checkVisibility() || element.closest("noscript")) continue;
            const [one, two] = [light(getComputedStyle(element).color), light(behind(element))];
            const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
            if (ratio < 4.5) found.push([ratio, element.textContent.slice(0, 60)]);
        }
        return found;
    }""")


def test_nothing_overflows_at_400_pixels_nor_is_hard_to_read_in_the_dark():
    backs = set()
    for width in (400, 1280):
        for scheme in ("light", "dark"):
            with Tab(width=width, scheme=scheme) as tab:
                tab.shows_all()
                assert faults(tab.page) == [0, []], (width, scheme, faults(tab.page))
                assert contrasts(tab.page) == [], (width, scheme, contrasts(tab.page))
                backs.add(tab.page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(backs) == 2, backs


def test_everything_can_be_reached_and_heard_without_a_mouse():
    with Tab() as tab:
        tab.shows_all()
        page = tab.page
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        reached = []
        for _ in range(60):
            page.keyboard.press("Tab")
            said = page.evaluate(
                "(document.activeElement.ariaLabel || document.activeElement.id || '')")
            reached.append(said)
            if said == "Drain host h05":
                break
        assert "Scrub volume v0" in reached, reached
        assert reached[-1] == "Drain host h05", reached
        page.keyboard.press("Enter")
        page.wait_for_selector("#order[open]")
        assert page.evaluate("document.activeElement.closest('dialog') !== null")
        page.keyboard.press("Escape")
        page.wait_for_selector("#order:not([open])", state="attached")
        # New answers came meanwhile, and the button is still the one that had the focus.
        page.wait_for_timeout(1500)
        assert page.evaluate("document.activeElement.ariaLabel") == "Drain host h05"
        tree = page.aria_snapshot() if hasattr(page, "aria_snapshot") else \
            page.locator("body").aria_snapshot()
        for wanted in ('heading "Cenote', 'region "Hosts"', 'table "Hosts"', 'columnheader "State"',
                       'rowheader "h00"', 'img "v0: 8 mapped extents: 8 whole"', "status"):
            assert wanted in tree, f"{wanted}: {tree}"


def ask(url, path, **headers):
    """Status and text of an answer; with `order` a POST of it."""
    order = headers.pop("order", None)
    data = json.dumps(order).encode() if order else None
    request = urllib.request.Request(url.rstrip("/") + path, data=data, headers=headers)
    trusting = ssl._create_unverified_context()
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S, context=trusting) as answer:
            return answer.status, answer.read(65536).decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_orders_take_the_token_and_come_from_the_page_itself():
    with Tab() as tab:
        tab.shows_all()
        page = tab.page
        page.click('button[aria-label="Drain host h05"]')
        page.fill("#order-token", "0" * 64)
        page.click("#order-do")
        tab.says("#order-said", "wrong token")
        assert "draining" not in page.inner_text("#hosts")
        page.fill("#order-token", Shared.token.read_text())
        page.click("#order-do")
        tab.says('#hosts tr[data-key="h05"]', "draining")
        tab.says("#events", "ordered from 127.0.0.1: host h05: draining")
        # The token is kept for this tab.
        page.click('button[aria-label="Have host h05 lend again"]')
        assert not page.is_visible("#order-token")
        page.click("#order-do")
        tab.says('#hosts tr[data-key="h05"]', "up")
        page.click('button[aria-label="Limit repairs of volume v0"]')
        page.fill("#order-rate", "64")
        page.click("#order-do")
        tab.says("#events", "repair rate limited to 64.0 MiB per second")
        page.click('button[aria-label="Scrub volume v0"]')
        page.click("#order-do")
        tab.says("#events", "volume v0: scrub started")
        page.click('button[aria-label="Drain host h05"]')
        page.click("#order-cancel")

    token = Shared.token.read_text().strip()
    own = Shared.url.rstrip("/")
    right = {"Origin": own, "Authorization": f"Bearer {token}"}
    order = {"order": "scrub", "volume": "v0"}
    for status, headers in (
        (200, right),
        (401, {"Origin": own}),
        (401, {**right, "Authorization": "Bearer " + "0" * 64}),
        (403, {"Authorization": f"Bearer {token}"}),
        (403, {**right, "Origin": "http://evil.example.org"}),
        (403, {**right, "Sec-Fetch-Site": "cross-site"}),
        (421, {**right, "Host": "evil.example.org"}),
    ):
        said = ask(Shared.url, "/orders", order=order, **headers)
        assert said[0] == status, (status, headers, said)
    assert ask(Shared.url, "/orders", order={"order": "delete"}, **right)[0] == 400
    assert ask(Shared.url, "/orders", order={"order": "x" * 5000}, **right)[0] == 400
    assert ask(Shared.url, "/orders", order={**order, "volume": "../x"}, **right)[0] == 409
    assert ask(Shared.url, "/events", Host="evil.example.org")[0] == 421
    reader = Shared.dashboard("reader")
    with Tab(reader) as tab:
        tab.shows_all()
        assert tab.page.query_selector("#hosts button") is None
    said = ask(reader, "/orders", order=order, **{**right, "Origin": reader.rstrip("/")})
    assert said[0] == 403 and "read-only" in said[1], said


def test_what_hosts_say_is_text_whatever_it_is():
    evil = '<img src=x onerror="document.title=1"><script>document.title=1</script>'
    hostile = {
        "hosts": {"asked_ms": 1, "error": evil, "answer": [{
            "name": evil, "address": evil, "domain": evil, "state": evil, "why": evil, "figures": None}]},
        "volumes": {"asked_ms": 1, "error": evil, "answer": [{
            "name": evil, "size": evil, "scheme": evil, "state": "silent", "why": evil, "figures": None}]},
        "stores": {"asked_ms": 1, "error": None, "answer": [{
            "address": evil, "answers": False, "why": evil, "figures": None}]},
        "events": [{"number": 1, "at_ms": 1, "grade": evil, "text": evil}],
        "work": [{"kind": "scrub", "of": evil, "left": 1, "unit": "pages", "note": evil, "done": None,
                  "left_s": None}],
    }
    stream = "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in hostile.items())
    tab = Tab()
    tab.page.route("**/events", lambda route: route.fulfill(
        content_type="text/event-stream", body=stream))
    with tab:
        tab.says("#events", evil)
        for part in ("#hosts", "#volumes", "#stores", "#work"):
            tab.says(part, evil)
        assert tab.page.query_selector("img, #content script") is None
        assert "Cenote" in tab.page.title()
    policy = urllib.request.urlopen(Shared.url, timeout=LIMIT_S).headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy, policy


def test_beyond_loopback_tls_and_the_token_are_demanded():
    if Shared.browser is None:
        Shared.start()
    need("openssl")
    anywhere = ["dashboard", "--dir", Shared.dir, "--listen", "0.0.0.0:0"]
    files = [Shared.folder / "cert.pem", Shared.folder / "key.pem"]
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
        "-nodes", "-subj", "/CN=localhost", "-out", files[0], "-keyout", files[1])
    tls = ["--tls-cert", files[0], "--tls-key", files[1]]
    for less in ([], tls, ["--token-file", Shared.token]):
        assert "reachable from other machines" in run(CENOTE, *anywhere, *less, code=2).stderr
    own_key = run(CENOTE, *anywhere, *tls, "--token-file", Shared.dir / "cluster.key", code=2)
    assert "this is the cluster's key" in own_key.stderr, own_key.stderr
    url = Shared.dashboard("remote", "--listen", "0.0.0.0:0", *tls, "--token-file", Shared.token)
    url = url.replace("0.0.0.0", "127.0.0.1")
    assert url.startswith("https://"), url
    for path in ("/events", "/history"):
        assert ask(url, path)[0] == 401, path
    assert ask(url, "/")[0] == 200
    assert "h00" not in ask(url, "/")[1]
    with Tab(url) as tab:
        page = tab.page
        page.fill("#login-token", "0" * 64)
        page.keyboard.press("Enter")
        tab.says("#login-said", "wrong token")
        assert not page.is_visible("#content")
        page.fill("#login-token", Shared.token.read_text())
        page.keyboard.press("Enter")
        tab.shows_all()
        tab.says("#link", "live")


if __name__ == "__main__":
    try:
        harness.main(globals())
    finally:
        Shared.end()
