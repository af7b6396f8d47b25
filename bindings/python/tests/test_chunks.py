"""Chunks of many MiB in a store: whole or not there, whoever writes, removes or dies meanwhile."""

import random
import threading

import pytest

import cenote
from cenote.chunks import MAGIC, PIECE_BYTES, Chunks, decode, name_of

SIZES = [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 9 * PIECE_BYTES + 5]


@pytest.fixture
def chunks(store):
    made = Chunks(store, "kv/")
    yield made
    made.close()


def read(chunks, name):
    """The bytes of a chunk; None: it is not there, or not whole."""
    [head] = chunks.heads([name])
    if head is None:
        return None
    landing = bytearray(head.size)
    return bytes(landing) if chunks.read_into([(head, memoryview(landing))]) == [True] else None


def test_chunks_of_every_size_are_read_as_they_were_put(chunks, store):
    chance = random.Random(1)
    datas = {name_of(str(size)): chance.randbytes(size) for size in SIZES}
    for name, data in datas.items():
        assert read(chunks, name) is None
        head = chunks.put(name, {"of": "a test"}, memoryview(data))
        assert head.size == len(data) and head.about == {"of": "a test"}
        assert read(chunks, name) == data
    store.sync()
    assert sorted(chunks.names()) == sorted(datas)
    # Of many at a time each is where it belongs.
    heads = chunks.heads(list(datas))
    landings = [bytearray(head.size) for head in heads]
    wanted = [(head, memoryview(landing)) for head, landing in zip(heads, landings, strict=True)]
    assert chunks.read_into(wanted) == [True] * len(SIZES)
    assert list(map(bytes, landings)) == list(datas.values())
    for name in datas:
        assert chunks.remove(name).name == name
        assert chunks.remove(name) is None and read(chunks, name) is None
    assert store.list() == []


def test_a_chunk_is_put_once(chunks, store):
    name = name_of("a")
    assert chunks.put(name, {}, memoryview(b"first" * PIECE_BYTES))
    assert chunks.put(name, {}, memoryview(b"other" * PIECE_BYTES)) is None
    assert read(chunks, name) == b"first" * PIECE_BYTES
    store.sync()
    assert len(store.list()) == 6


def test_of_two_that_put_at_a_time_one_is_there_whole(chunks, store):
    for round_ in range(10):
        name = name_of(f"race {round_}")
        datas = [bytes([who]) * (6 * PIECE_BYTES) for who in range(3)]
        together = threading.Barrier(3)
        put = []

        def work(data, name=name, together=together, put=put):
            together.wait()
            put.append(chunks.put(name, {}, memoryview(data)))

        threads = [threading.Thread(target=work, args=(data,)) for data in datas]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert read(chunks, name) in datas
        assert len([head for head in put if head is not None]) == 1
        store.sync()
        # The pieces of the others are gone.
        assert len(store.list("kv/")) == 7, round_
        chunks.remove(name)


def test_a_chunk_that_lacks_something_is_not_there_and_can_be_put_again(chunks, store):
    data = random.Random(2).randbytes(5 * PIECE_BYTES + 7)
    name = name_of("a")
    for harm in ("gone", "short", "long"):
        head = chunks.put(name, {}, memoryview(data))
        piece = f"kv/{name}/{head.tag}/00000003"
        if harm == "gone":
            store.delete(piece)
        else:
            store.put(piece, data[: PIECE_BYTES + (1 if harm == "long" else -1)])
        assert read(chunks, name) is None, harm
        assert chunks.heads([name]) == [None], harm
        assert chunks.put(name, {}, memoryview(data)) is not None, harm
        assert read(chunks, name) == data, harm
        chunks.remove(name)


def test_one_that_is_removed_while_it_is_read_is_not_there(chunks):
    name, data = name_of("a"), b"x" * (3 * PIECE_BYTES)
    old = chunks.put(name, {}, memoryview(data))
    chunks.remove(name)
    new = chunks.put(name, {}, memoryview(b"y" * len(data)))
    landing = bytearray(len(data))
    assert chunks.read_into([(old, memoryview(landing))]) == [False]
    # Who comes late does not remove the one that is there now.
    assert chunks.heads([name]) == [new]
    # A buffer that is too short is none of the chunk's faults.
    assert chunks.read_into([(new, memoryview(landing)[1:])]) == [False]
    assert chunks.heads([name]) == [new]


def test_heads_that_make_no_sense_are_no_chunks(chunks, store):
    name = name_of("a")
    good = chunks.put(name, {}, memoryview(b"good")).encode()
    assert decode(name, good) is not None
    chance = random.Random(3)
    for value in (
        b"", b"x", MAGIC, MAGIC + b"[]", MAGIC + b"{}", MAGIC + b"\xff\xfe", good[:-1],
        good.replace(b'"version": 1', b'"version": 2'),
        good.replace(b'"bytes": 4', b'"bytes": -4'), good.replace(b'"bytes": 4', b'"bytes": "4"'),
        good.replace(b'"piece_bytes": 5', b'"piece_bytes": 5555'),
        good.replace(b'"tag": "', b'"tag": "/'),
        # Of its pieces keys are made.
        good.replace(b'"bytes": 4', b'"bytes": 4000000000000000000'),
    ):
        assert decode(name, value) is None, value
    for _ in range(500):
        value = bytearray(good)
        value[chance.randrange(len(MAGIC), len(value))] = chance.randrange(256)
        decode(name, bytes(value))
    store.put(f"kv/{name}", b"something else")
    assert read(chunks, name) is None
    assert chunks.remove(name) is None


def test_pieces_of_a_program_that_died_are_found(chunks, store):
    data = memoryview(b"x" * (4 * PIECE_BYTES))
    kept = chunks.put(name_of("kept"), {}, data)
    dead = chunks.put(name_of("dead"), {}, data)
    store.delete(f"kv/{dead.name}")
    others = ["kv", "kv/a/b", "kv/" + "0" * 40 + "/x", "other/" + name_of("a")]
    store.put_many({key: b"" for key in others})
    store.sync()
    assert chunks.remove_orphans() == 4
    assert chunks.remove_orphans() == 0
    assert chunks.heads([kept.name]) == [kept] and read(chunks, kept.name) == bytes(data)
    assert set(others) <= set(store.list())


def test_a_prefix_that_leaves_no_room_is_refused(store):
    for prefix in ("x" * 151, "a\0b"):
        with pytest.raises(cenote.ConfigurationError):
            Chunks(store, prefix)


def test_after_its_end_it_is_closed(store):
    made = Chunks(store, "kv/")
    head = made.put(name_of("a"), {}, memoryview(b"x"))
    made.close()
    with pytest.raises(cenote.ClosedError):
        made.read_into([(head, memoryview(bytearray(1)))])
    with pytest.raises(cenote.ClosedError):
        made.put(name_of("b"), {}, memoryview(b"x"))


def test_a_store_is_killed_while_chunks_are_put_and_none_has_wrong_bytes(own_served):
    def data_of(at):
        return random.Random(at).randbytes(PIECE_BYTES + at)

    with own_served.open() as store:
        chunks = Chunks(store, "kv/", durable=True)
        acknowledged, tried = [], []
        halfway = threading.Event()

        def work(part):
            for at in range(part, 400, 3):
                tried.append(at)
                try:
                    chunks.put(name_of(str(at)), {}, memoryview(data_of(at)))
                    acknowledged.append(at)
                except cenote.Error:
                    return
                finally:
                    if at > 12:
                        halfway.set()

        threads = [threading.Thread(target=work, args=(part,)) for part in range(3)]
        for thread in threads:
            thread.start()
        assert halfway.wait(60)
        own_served.kill()
        for thread in threads:
            thread.join()
        assert len(acknowledged) < len(tried), "it was killed too late"
        own_served.start()
        for at in tried:
            found = read(chunks, name_of(str(at)))
            assert found == data_of(at) or (found is None and at not in acknowledged), at
        chunks.remove_orphans()
        store.sync()
        pieces = sum(chunks.heads([name])[0].piece_count() + 1 for name in chunks.names())
        assert pieces == len(store.list())
        chunks.close()
