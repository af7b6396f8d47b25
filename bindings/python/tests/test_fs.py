"""The file system cenote://, by fsspec's own interface, PyArrow and pandas."""

import gc
import random
import threading

import fsspec
import pytest

import cenote
from cenote.fs import PART_BYTES, CenoteFileSystem

SIZES = [0, 1, 1000, 65_536, 65_537, PART_BYTES, PART_BYTES + 1, 9 * PART_BYTES + 5]


@pytest.fixture
def fs(served, store):
    return fsspec.filesystem("cenote", address=served.address, key=str(served.key))


def test_files_of_every_size_are_read_as_they_were_written(fs, store):
    chance = random.Random(4)
    for size in SIZES:
        data = chance.randbytes(size)
        with fs.open("folder/file", "wb") as file:
            # In pieces that are no parts.
            for at in range(0, size, 300_007):
                file.write(data[at : at + 300_007])
        assert fs.cat("folder/file") == data, size
        assert fs.info("folder/file")["size"] == size
        with fs.open("folder/file") as file:
            for _ in range(8):
                at = chance.randrange(size + 1)
                count = chance.choice([1, 100, PART_BYTES])
                file.seek(at)
                assert file.read(count) == data[at : at + count], (size, at, count)
        assert fs.cat_file("folder/file", start=-10) == data[-10:]
        # The parts of the file before are gone.
        parts = -(-size // PART_BYTES) if size > 65_536 else 0
        assert len(store.list("\0")) == parts, size
    fs.rm("folder/file")
    assert store.list() == []


def test_a_file_is_there_once_it_is_closed_and_whole_or_not_at_all(fs, store):
    fs.pipe("a", b"before")
    with fs.open("a", "wb") as file:
        file.write(bytes(20 * PART_BYTES))
        assert fs.cat("a") == b"before"
        assert store.list("\0")
    assert fs.info("a")["size"] == 20 * PART_BYTES
    with pytest.raises(RuntimeError), fs.open("a", "wb") as file:
        file.write(bytes(10 * PART_BYTES) + b"x")
        raise RuntimeError
    assert fs.info("a")["size"] == 20 * PART_BYTES
    assert len(store.list("\0")) == 20
    with pytest.raises(RuntimeError), fs.transaction:
        with fs.open("b", "wb") as file:
            file.write(b"b")
        raise RuntimeError
    assert not fs.exists("b")
    with fs.transaction:
        fs.pipe("b", b"b")
        assert not fs.exists("b")
    assert fs.cat("b") == b"b"
    with pytest.raises(FileExistsError):
        fs.open("b", "xb")
    with fs.open("c", "xb") as file:
        file.write(b"mine")
        fs.pipe("c", b"theirs")
        with pytest.raises(FileExistsError):
            file.close()
    assert fs.cat("c") == b"theirs"


@pytest.mark.parametrize("ending", ["close", "forgotten", "with"])
def test_a_file_whose_write_failed_is_as_it_was(fs, store, monkeypatch, ending):
    fs.pipe("a", b"before" * 100_000)
    before, parts = fs.cat("a"), len(store.list("\0"))
    puts, put_many = [], fs.store.put_many

    def breaks(items, **how):
        put_many(items, **how)
        puts.append(len(items))
        if len(puts) == 2:
            raise cenote.errors.ConnectionLostError("it was stored")

    monkeypatch.setattr(fs.store, "put_many", breaks)
    file = fs.open("a", "wb")
    with pytest.raises(cenote.errors.ConnectionLostError):
        file.write(bytes(24 * PART_BYTES))
    if ending == "close":
        with pytest.raises(OSError, match="not written"):
            file.write(bytes(24 * PART_BYTES))
        with pytest.raises(OSError, match="not written"):
            file.close()
    elif ending == "with":
        with pytest.raises(RuntimeError), file:
            raise RuntimeError
    del file
    gc.collect()
    assert fs.cat("a") == before
    # What was put last, and is not known to be there, is left to this.
    fs.remove_orphans()
    assert len(store.list("\0")) == parts


def test_text_that_is_left_by_an_exception_is_not_written(fs):
    fs.pipe("a", b"before")
    with pytest.raises(RuntimeError), fs.open("a", "w", encoding="utf-8") as file:
        file.write("half")
        raise RuntimeError
    assert fs.cat("a") == b"before"
    with fs.open("a", "wt") as file:
        file.write("whole")
    with fs.open("a", "r") as file:
        assert file.read() == "whole"


def test_folders_are_parts_of_paths(fs, store):
    fs.mkdir("x")
    for path in ("x/a", "x/b/c", "x/b/d", "y", "xx"):
        fs.pipe(path, path.encode())
    store.put_durable("x/plain", b"put by other means")
    assert fs.ls("", detail=False) == ["x", "xx", "y"]
    assert fs.ls("x", detail=False) == ["x/a", "x/b", "x/plain"]
    assert [(info["name"], info["size"], info["type"]) for info in fs.ls("x")] == [
        ("x/a", 3, "file"), ("x/b", 0, "directory"), ("x/plain", 18, "file"),
    ]
    assert fs.ls("x/a", detail=False) == ["x/a"] and fs.ls("x/a")[0]["size"] == 3
    assert fs.find("x") == ["x/a", "x/b/c", "x/b/d", "x/plain"]
    assert set(fs.find("", detail=True)) == {*fs.find("x"), "y", "xx"}
    assert fs.glob("x/**/c") == ["x/b/c"] and fs.glob("x*") == ["x", "xx"]
    assert fs.isdir("x/b") and fs.isfile("x/b/c") and not fs.exists("x/b/e")
    assert fs.cat("x/plain") == b"put by other means"
    assert fs.cat(fs.find("x/b")) == {"x/b/c": b"x/b/c", "x/b/d": b"x/b/d"}
    for missing in (lambda: fs.ls("none"), lambda: fs.info("none"), lambda: fs.cat("none"),
                    lambda: fs.rm("none"), lambda: fs.open("none")):
        with pytest.raises(FileNotFoundError):
            missing()
    fs.mv("x/b", "z", recursive=True)
    assert fs.find("") == ["x/a", "x/plain", "xx", "y", "z/c", "z/d"]
    fs.cp_file("z/c", "w")
    assert fs.cat("w") == b"x/b/c"
    with pytest.raises(OSError, match="not empty"):
        fs.rm("x")
    fs.rm("x", recursive=True)
    assert fs.find("") == ["w", "xx", "y", "z/c", "z/d"]


def test_urls_say_where_the_store_is(served, store, tmp_path):
    url = f"cenote://{served.address.removeprefix('tcp:')}/dir/file.txt"
    with fsspec.open(url, "w", key=str(served.key)) as file:
        file.write("hello")
    assert store.get("dir/file.txt") == b"hello"
    fs, path = fsspec.url_to_fs(url, key=str(served.key))
    assert isinstance(fs, CenoteFileSystem) and path == "dir/file.txt"
    fs.get(path, str(tmp_path / "file"))
    assert (tmp_path / "file").read_bytes() == b"hello"
    fs.put(str(tmp_path / "file"), "copy")
    assert fs.cat("copy") == b"hello"
    with pytest.raises(cenote.ConfigurationError, match="key=FILE"):
        fsspec.open("cenote:///a", address=served.address).open()
    for path in ("", "a\0b"):
        with pytest.raises(ValueError):
            fs.open(path, "wb")
    with pytest.raises(ValueError, match="written whole"):
        fs.open("a", "ab")


def test_what_only_looks_like_a_file_is_refused_and_hides_no_other(fs, store):
    data = b"\0cenote-file\0 begins this one"
    fs.pipe("same", data)
    assert fs.cat("same") == data
    magic = b"\0cenote-file\0"
    bad = [
        b"{", b"[]", b'{"bytes":-1,"id":"%s","part_bytes":1,"version":1}' % (b"0" * 32),
        b'{"bytes":1,"id":"../../x","part_bytes":1,"version":1}',
        b'{"bytes":1,"id":"%s","part_bytes":0,"version":1}' % (b"0" * 32),
        b'{"bytes":1,"id":"%s","part_bytes":1,"version":2}' % (b"0" * 32),
    ]
    for value in bad:
        store.put_durable("bad", magic + value)
        with pytest.raises(OSError):
            fs.cat("bad")
        assert fs.ls("", detail=False) == ["bad", "same"]
        assert [info["type"] for info in fs.ls("")] == ["other", "file"]
    # Its parts are not there.
    said = b'{"bytes":1,"id":"%s","part_bytes":1,"version":1}' % (b"0" * 32)
    store.put_durable("bad", magic + said)
    with pytest.raises(FileNotFoundError):
        fs.cat("bad")


def test_who_writes_the_same_file_leaves_no_parts_behind(fs, store):
    def work(part):
        for _ in range(4):
            fs.pipe("same", bytes([part]) * (2 * PART_BYTES))

    threads = [threading.Thread(target=work, args=(part,)) for part in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = fs.cat("same")
    assert found == found[:1] * (2 * PART_BYTES)
    assert len(store.list("\0")) == 2
    store.put_durable("\0parts/" + "f" * 32 + "/00000000", b"of a program that died")
    assert fs.remove_orphans() == 1
    assert fs.cat("same") == found


def test_pyarrow_writes_and_reads_parquet(fs):
    import pyarrow
    import pyarrow.dataset
    import pyarrow.parquet

    rows = 200_000
    table = pyarrow.table({
        "number": pyarrow.array(range(rows)),
        "even": pyarrow.array([at % 2 == 0 for at in range(rows)]),
        "noise": pyarrow.array(random.Random(1).random() for _ in range(rows)),
    })
    pyarrow.parquet.write_table(table, "data/one.parquet", filesystem=fs)
    assert fs.info("data/one.parquet")["size"] > PART_BYTES
    assert pyarrow.parquet.read_table("data/one.parquet", filesystem=fs).equals(table)
    column = pyarrow.parquet.read_table("data/one.parquet", columns=["even"], filesystem=fs)
    assert column["even"].equals(table["even"])
    pyarrow.dataset.write_dataset(
        table, "set", format="parquet", partitioning=["even"], filesystem=fs)
    dataset = pyarrow.dataset.dataset("set", filesystem=fs, partitioning=["even"])
    assert dataset.count_rows() == rows
    some = dataset.to_table(filter=pyarrow.dataset.field("number") < 10)
    assert sorted(some["number"].to_pylist()) == list(range(10))


def test_pandas_writes_and_reads_by_url(served, store):
    import pandas

    where = f"cenote://{served.address.removeprefix('tcp:')}"
    options = {"key": str(served.key)}
    frame = pandas.DataFrame({"a": range(1000), "b": [f"row {at}" for at in range(1000)]})
    frame.to_parquet(f"{where}/frame.parquet", storage_options=options)
    pandas.testing.assert_frame_equal(
        pandas.read_parquet(f"{where}/frame.parquet", storage_options=options), frame)
    frame.to_csv(f"{where}/frame.csv", index=False, storage_options=options)
    pandas.testing.assert_frame_equal(
        pandas.read_csv(f"{where}/frame.csv", storage_options=options), frame)
