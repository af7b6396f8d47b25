#!/usr/bin/env python3
"""Writes the seeds: a few valid inputs of each target, from which the rest is made up.

    python3 fuzz/seeds.py

An input that was found is put beside them by hand: fuzz/corpus/TARGET/what-it-is.
"""

import re
import struct
from pathlib import Path

HERE = Path(__file__).resolve().parent
CRATES = HERE.parent / "crates"


def le(form, *values):
    return struct.pack("<" + form, *values)


def be(form, *values):
    return struct.pack(">" + form, *values)


def text(words):
    return bytes([len(words)]) + words


def kv_text():
    yield "classic", (b"set k 5 60 3\r\nabc\r\nget k other\r\ncas k 0 0 1 7 noreply\r\nx\r\n"
                      b"incr k 1\r\ntouch k 0\r\ndelete k noreply\r\nflush_all 5\r\nversion\r\n")
    yield "meta", (b"mg key t v f c s k q O12\r\nms key 3 T0 F5 C7 I\r\nabc\r\nmd key q I T30\r\n"
                   b"ma key N0 J13 D2 MD\r\nme key\r\nmn\r\nmg a2V5 b v\r\n")
    yield "refused", b"set k 0 0 1000\r\n" + b"x" * 1002 + b"get k\r\nset k 0 0 2\r\nabcd\r\nget " + b"k" * 251
    yield "operators", b"stats items\r\nlru_crawler enable\r\nwatch fetchers\r\nslabs automove 1\r\nverbosity 1\r\n"
    yield "http", b"GET / HTTP/1.1\r\n\r\n"


def binary(opcode, extras=b"", key=b"", value=b"", cas=0):
    body = extras + key + value
    return be("BBHBBHIIQ", 0x80, opcode, len(key), len(extras), 0, 0, len(body), 7, cas) + body


def kv_binary():
    yield "items", (binary(0, b"", b"key") + binary(1, bytes(8), b"key", b"value", 3)
                    + binary(5, be("QQI", 1, 2, 60), b"key") + binary(0x14, b"", b"key"))
    yield "others", (binary(0x0a) + binary(0x0b) + binary(0x10, b"", b"items") + binary(0x08, be("I", 5))
                     + binary(0x1c, be("I", 5), b"key") + binary(0x0e, b"", b"key", b"more") + binary(7))
    yield "login", binary(0x20) + binary(0x21, b"", b"PLAIN", b"\0user\0word")
    yield "too-large", binary(1, bytes(8), b"key", b"v" * 300) + binary(0, b"", b"key")


def frame(kind, payload):
    return le("IB", len(payload), kind) + payload


def kv_link():
    yield "frames", frame(1, le("Q", 5)) + frame(3, le("QI", 1, 2) + b"get k\r\n") + frame(4, le("Q", 1) + b"END\r\n")
    yield "datagram", be("HHHH", 7, 0, 1, 0) + b"get a\r\n"
    yield "too-long", le("IB", 1 << 24, 16)


def kv_group():
    """The examples of the crate, whose bytes are for ever."""
    source = (CRATES / "kv/src/group/wire/examples.rs").read_text()
    for number, found in enumerate(re.findall(r'^ {12}"([0-9a-f]{14,})",$', source, re.M)):
        example = bytes.fromhex(found)
        yield f"example-{number:02}", example
        if number == 0:
            yield "view", example[7:]
        elif example[6] == 3:
            yield f"operation-{number:02}", example[24:]


def kv_documents():
    yield "cluster", (b'{"version":1,"groups":5,"code":"3+2","scheme":"coded","region_bytes":67108864,'
                      b'"memory_bytes":536870912,"lanes":2,"link_traffic":"encrypted",'
                      b'"key":"0123456789abcdef","nodes":["n00","n01","n02","n03","n04"]}')
    yield "node", (b'{"version":1,"name":"n00","clients":["127.0.0.1:11211"],'
                   b'"peers":["127.0.0.1:7001","[::1]:7002"],"incarnation":7,"state":"draining"}')


def fabric_frame():
    window = le("IQ", 0x04030201, 7)
    yield "welcome", b"\0\0"
    yield "message", b"\1grant 7"
    yield "attach", b"\2" + window
    yield "attached", b"\3\1\7" + window + le("Q", 4096)
    yield "immediate", b"\4" + window + le("QII", 1 << 40, 4096, 5)
    yield "join", b"\5" + le("IIHBB", 17, 99, 3, 5, 16) + bytes(16)
    yield "credits", b"\6" + le("I", 8)
    yield "keyed", b"\7\7" + window + le("QQI", 4096, 1 << 40, 0x1234)
    yield "write", le("BBHIIIQQQQ", 2, 1, 0, 4096, 7, 5, 7, 4096, 0, 0)
    yield "swap", le("BBHIIIQQQQ", 4, 0, 0, 8, 7, 0, 7, 4096, 1, 2)
    yield "response", le("BBHIQ", 0xCE, 0, 0, 4096, 1)


def fabric_records():
    yield "as-sent", bytes([0, 3, 20])
    yield "changed", bytes([1, 3, 20, 0, 45, 1])
    yield "shorter", bytes([0, 2, 40, 0, 0, 8])


def fabric_handshake():
    yield "zeros", bytes(64)
    yield "point", b"\t" + bytes(31) + b"cenote" + bytes(60)


def fabric_address():
    for number, one in enumerate([b"tcp:127.0.0.1:7000", b"tcp:[::1]:7000", b"tcp:host.name:1", b"shm:/run/host.sock",
                                  b"rdma:10.0.0.1:7000", b"host.name:7", b"[fe80::1%eth0]:7", b"encrypted", b"5a" * 32]):
        yield f"address-{number}", one


def call(number, body):
    return le("II", len(body), number) + body


def fabric_calls():
    yield "calls", call(1, b"a") + call(2, b"") + call(3, bytes(100)) + call(4, b"more")[:9]
    yield "too-long", call(1, b"a") + le("II", 1 << 17, 2)


def fabric_ring():
    yield "honest", b"".join(le("BQ", 200, number) for number in range(5))
    yield "scribbled", le("BQ", 200, 3) + le("BQ", 64, 9) + le("BQ", 0, 11) + le("BQ", 0, 1 << 40)


def entry():
    return le("IQIQBB", 3, 9, 0, 77, 2, 1) + le("HHB", 1, 2, 7) + le("IQIQ", 1, 2, 3, 4)


def cache_message():
    yield "join", b"\1" + le("H", 2)
    yield "alive", b"\2" + le("Q", 5)
    yield "known", b"\3" + le("IQIQ", 1, 2, 3, 4)
    yield "trouble", b"\4" + le("H", 2)
    yield "ask", b"\6" + le("I", 1) + b'{"status":{}}'
    yield "doubt", b"\7" + le("IQ", 1, 2)
    yield "host", b"\2" + le("H", 1) + text(b"h01") + text(b"tcp:10.0.0.1:7000") + text(b"rack")
    yield "entry", b"\3" + entry()
    yield "answer", b"\6" + le("IB", 1, 1) + b"{}"
    yield "refused", b"\7\2"


def cache_journal():
    begin = b"\1" + bytes(16) + le("QIBQ", 1 << 20, 4, 2, 1)
    host = b"\2" + le("H", 0) + text(b"a") + text(b"tcp:127.0.0.1:7000") + text(b"rack")
    region = b"\3" + le("IQBIQB", 0, 3, 2, 0, 0, 1) + le("H", 0)
    rest = b"\4\1" + le("Q", 5000) + b"\5" + le("HB", 0, 1) + b"\x08" + le("IQ", 0, 99)
    machine = (b"\6" + le("QIBBQQH", 1, 2, 0, 1, 100, 1 << 30, 0xFFFF)
               + b"".join(text(one) for one in (b"small", b"cloud", b"", b"", b"rack")))
    first = begin + host + region
    yield "whole", text(first) + text(rest) + text(machine)
    yield "torn", b"cenoteC1" + le("III", 9, 9, 9) + first


def cache_catalogue():
    yield "machines", b"""look_every_s = 60
[[provider]]
name = "cloud"
kind = "program"
program = "/bin/true"
[[machine]]
name = "small"
provider = "cloud"
cores = 2
memory_mib = 4096
price_per_hour = 0.1
spot_price_per_hour = 0.03
distance_ns = 1000
count = 4
"""


def cache_model():
    yield "two-tables", b"""cenote-cache-model 2
space c=4 s=2 b=8 q=2 levels=powers
# A comment.
table transport=sim distance_ns=1000 record_bytes=16 writes=0
1 0 1 1 250000 4 3.5 9.25
2 1 8 2 1.5e7 10 8 30
table transport=tcp distance_ns=0 record_bytes=4096 writes=5
end
"""
    yield "oldest", b"cenote-cache-model 1\nspace c=1 s=1 b=1 q=1 levels=all\ntable transport=shm distance_ns=0 record_bytes=8\nend\n"


def record(previous, key, value):
    def fill(part):
        return part + bytes(-len(part) % 8)
    return le("QQ", previous | 1 << 48, len(key) << 32 | len(value) << 42) + fill(key) + fill(value)


def cache_log_record():
    yield "record", le("Q", 4096) + record(64, b"key", b"a value")


def cache_log_page():
    yield "page", b"\3" + bytes(32) + record(0, b"key", b"value") + record(8, b"other", b"") + bytes(24)


def cache_log_image():
    words = le("8Q", 4096, 9, 0, 4096, 8192, 16, 2, 0)
    yield "image", b"CENLOG01" + words + bytes(16) + le("4Q", 3 | 5 << 48, 4160, 4, 64)


def store_protocol():
    condition = le("BQ", 2, 7)
    yield "space", b"\1" + condition + le("II", 100, 7) + b"key"
    yield "put", b"\3" + condition + text(b"key") + b"value"
    yield "locate", b"\4key"
    yield "settle", b"\5" + le("HQ", 1, 7)
    yield "list", b"\x08" + le("HQ", 1, 7) + b"pre"
    yield "keys", b"\6" + le("Q", 9) + text(b"a") + text(b"key")
    yield "refused", b"\7\3" + le("Q", 7)
    yield "figures", b"\x08" + le("5QB", 1, 2, 3, 4, 5, 1)


def store_recovery():
    yield "nothing", b""
    yield "a-flag", bytes([0, 0x10, 56, 1])
    yield "a-value", bytes([0, 0x11, 0, 9, 0, 0x10, 8, 1, 3, 0x10, 0, 1])
    yield "the-space", bytes([1, 2, 8, 2, 2, 0, 0, 1, 1, 4, 29, 1, 2, 0, 0, 2])


def proc_message():
    request = le("Q", 1) + bytes(16) + le("II", 3, 4) + b"abcd"
    yield "requests", b"\1" + le("I", 2) + request + request
    yield "responses", b"\2" + le("I", 1) + le("QBII", 1, 0, 0, 2) + b"ok"
    yield "fetch", b"\5" + le("IQ", 1, 2) + bytes(16) + le("QIQB", 64, 8, 1, 0)
    yield "data", b"\6" + le("QBI", 2, 0, 3) + b"abc"


def pool_control():
    for kind in range(19):
        yield f"kind-{kind:02}", bytes([8, kind]) + le("IQIQ", 1, 2, 3, 4)


def pool_cluster():
    yield "two-hosts", b"""[[host]]
name = "h00"
address = "tcp:10.0.0.1:7000"
domain = "rack1"
power = "feed1"
[[host]]
name = "h01"
address = "tcp:10.0.0.2:7000"
retired = true
lends = false
"""


def cache_checkpoint():
    """Checksums are left out: the target puts them in."""
    header = b"CENOTECP" + le("II", 1, 0) + bytes(16) + le("QQ", 64, 5)
    chunks = le("III", 32, 1, 0) + bytes(range(32)) + le("III", 32, 0, 0)
    index = le("IQQ", 0, 100, len(header))
    end = le("QII", len(header) + len(chunks), 1, 0) + b"CENOTECE"
    yield "one-region", header + chunks + index + end


def volume_journal():
    begin = b"\1" + bytes(16) + le("QBBQ", 1 << 20, 4, 2, 1)
    hold = b"\2" + le("IBQ", 1, 0, 3) + text(b"h01")
    yield "whole", text(begin + hold) + text(b"\3" + le("IB", 1, 0) + b"\4\1\x08\2" + hold)


def option(number, data=b""):
    return b"IHAVEOPT" + be("II", number, len(data)) + data


def block_handshake():
    first = be("I", 5) + b"first"
    go = first + be("HHH", 2, 0, 3)
    context = first + be("II", 1, 15) + b"base:allocation"
    yield "go", b"\0" + be("I", 3) + option(8) + option(10, context) + option(7, go)
    yield "info", b"\0" + be("I", 3) + option(3) + option(6, go) + option(11) + option(9, first + be("I", 0)) + option(2)
    yield "tls", b"\1" + be("I", 3) + option(5)
    yield "required", b"\2" + be("I", 3) + option(7, go) + option(1, b"first")
    yield "old", b"\3" + be("I", 1) + option(1, b"second")


def block_request():
    yield "read", be("IHHQQI", 0x25609513, 0, 0, 7, 4096, 512)
    yield "extended", be("IHHQQQ", 0x21E41C71, 1, 1, 7, 4096, 512)


def fuse_request():
    def request(opcode, rest):
        return le("IIQQIIIHH", 40 + len(rest), opcode, 7, 1, 0, 0, 1, 0, 0) + rest
    yield "lookup", request(1, b"name\0")
    yield "forget", request(2, le("Q", 3))
    yield "setattr", request(4, bytes(88))
    yield "rename", request(12, le("Q", 2) + b"old\0new\0")
    yield "read", request(15, bytes(40))
    yield "write", request(16, le("QQIIQII", 1, 0, 4, 0, 0, 0, 0) + b"abcd")
    yield "setxattr", request(21, le("II", 3, 0) + b"user.a\0abc")
    yield "batch-forget", request(42, le("IIQQQQ", 2, 0, 5, 1, 6, 2))


def main():
    for target in sorted(path.stem for path in (HERE / "fuzz_targets").glob("*.rs")):
        folder = HERE / "corpus" / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, seed in globals()[target]():
            (folder / name).write_bytes(seed)


if __name__ == "__main__":
    main()
