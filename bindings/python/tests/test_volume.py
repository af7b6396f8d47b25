"""Volumes: slices, buffers, errors, threads, forks, and hosts that are killed."""

import array as plain_array
import os
import random
import signal
import sys
import threading

import pytest

import cenote

MIB = 1 << 20


def test_slices_are_those_of_a_bytearray(volume):
    model = bytearray(volume.size)
    chance = random.Random(3)
    assert len(volume) == 8 * MIB
    for _ in range(60):
        start = chance.randrange(len(model))
        stop = min(len(model), start + chance.choice([1, 7, 4096, 10_000]))
        data = chance.randbytes(stop - start)
        volume[start:stop] = data
        model[start:stop] = data
        first = max(start - 5000, 0)
        assert volume[first:stop] == model[first:stop]
    volume[-1] = 7
    model[-1] = 7
    assert volume[-1] == volume[len(model) - 1] == 7
    assert volume[-10_000:] == model[-10_000:]
    assert volume[40_000:10_000:-3] == model[40_000:10_000:-3]
    assert volume[5:5] == volume[9:3] == b""
    assert volume[:] == model


def test_what_is_no_byte_of_it_is_refused(volume):
    for index in (volume.size, -volume.size - 1):
        with pytest.raises(IndexError):
            volume[index]
        with pytest.raises(IndexError):
            volume[index] = 1
    with pytest.raises(ValueError, match="its size is fixed"):
        volume[0:4] = b"five."
    with pytest.raises(ValueError, match="a step of 1"):
        volume[0:4:2] = b"ab"
    with pytest.raises(ValueError):
        volume[0] = 256
    before = volume[-4096:]
    with pytest.raises(cenote.OutOfRangeError, match="compare with `size`"):
        volume.write(volume.size - 4096, bytes(3 * MIB))
    with pytest.raises(cenote.OutOfRangeError):
        # Nothing of this size is allocated.
        volume.read(0, 1 << 60)
    with pytest.raises(OverflowError):
        volume.read(-1, 1)
    assert volume[-4096:] == before


def test_any_buffer_is_written_and_read_into(volume):
    numbers = plain_array.array("d", [1.5, -2.0, 3.25])
    volume.write(100, numbers)
    back = plain_array.array("d", [0, 0, 0])
    volume.read_into(100, back)
    assert back == numbers
    volume.write(5000, memoryview(b"0123456789")[::2])
    assert volume[5000:5005] == b"02468"
    landing = bytearray(10)
    volume.read_into(5000, memoryview(landing)[2:7])
    assert landing == b"\0\0" + b"02468" + b"\0\0\0"
    # More than is copied at a time, from bytes that may change.
    long = bytearray(random.Random(1).randbytes(3 * MIB + 777))
    volume.write(4097, long)
    assert volume[4097 : 4097 + len(long)] == long
    for refused in (b"fixed", memoryview(bytearray(8))[::2]):
        with pytest.raises(BufferError):
            volume.read_into(0, refused)


def test_discarded_bytes_are_zeros_and_their_memory_is_given_back(volume):
    volume.write(0, b"x" * MIB)
    stored = volume.status().stored
    volume.discard(0, MIB)
    assert volume.read(0, MIB) == bytes(MIB)
    status = volume.status()
    assert status.stored == stored - MIB
    assert (status.scheme, status.hosts, status.hosts_connected) == ("rs:4+2", 6, 6)
    assert status.whole and status.readable


def test_errors_say_what_to_do(well, tmp_path):
    with pytest.raises(cenote.ConfigurationError, match="whole pages"):
        cenote.Volume(well.folder, size=5)
    with pytest.raises(cenote.ConfigurationError, match="is no size"):
        cenote.Volume(well.folder, size="64 megabytes")
    with pytest.raises(ValueError):
        cenote.Volume(well.folder, scheme="rs:0+1")
    with pytest.raises(cenote.ConfigurationError):
        cenote.Volume(tmp_path / "none.toml")
    with pytest.raises(cenote.ConfigurationError):
        cenote.Volume(well.folder, threads=0)
    with pytest.raises(cenote.TooFewHostsError, match="start hosts") as raised:
        cenote.Volume(well.folder, scheme="rs:8+2")
    assert raised.value.retryable and isinstance(raised.value, ConnectionError)
    volume = cenote.Volume(well.folder / "cluster.toml", size="1M")
    assert not volume.closed
    volume.close()
    volume.close()
    assert volume.closed
    with pytest.raises(cenote.ClosedError):
        volume.read(0, 1)


def test_a_host_is_killed_while_threads_write_and_every_byte_is_there(own_well):
    with cenote.Volume(own_well.folder, size="16M", scheme="rs:2+1", threads=3) as volume:
        halfway = threading.Event()
        written = [[], [], []]
        failures = []

        def work(part):
            chance = random.Random(part)
            try:
                for at in range(part, 256, 3):
                    data = chance.randbytes(65_536)
                    volume.write(at * 65_536, data if at % 2 else bytearray(data))
                    written[part].append((at * 65_536, data))
                    if at > 80:
                        halfway.set()
            except cenote.Error as error:
                failures.append(error)
                halfway.set()

        threads = [threading.Thread(target=work, args=(part,)) for part in range(3)]
        for thread in threads:
            thread.start()
        halfway.wait()
        own_well.kill("h01")
        for thread in threads:
            thread.join()
        assert failures == []
        assert sum(map(len, written)) == 256
        for offset, data in sum(written, []):
            assert volume.read(offset, len(data)) == data, offset


@pytest.mark.parametrize("call", ["read", "read_into", "write", "write_copied"])
def test_other_threads_run_while_one_waits(volume, call):
    landing = bytearray(MIB)
    calls = {
        "read": lambda: volume.read(0, MIB),
        "read_into": lambda: volume.read_into(0, landing),
        "write": lambda: volume.write(0, bytes(MIB)),
        "write_copied": lambda: volume.write(0, landing),
    }
    go, has_run = threading.Event(), []

    def other():
        go.wait()
        has_run.append(True)

    thread = threading.Thread(target=other)
    thread.start()
    interval = sys.getswitchinterval()
    # From here on the interpreter takes the lock from nobody: the call has to give it up.
    sys.setswitchinterval(3600)
    try:
        go.set()
        for _ in range(1000):
            if has_run:
                break
            calls[call]()
        ran = bool(has_run)
    finally:
        sys.setswitchinterval(interval)
    thread.join()
    assert ran


def test_what_is_closed_touches_no_buffer_any_more(well):
    data = random.Random(9).randbytes(8 * MIB)
    for _ in range(5):
        volume = cenote.Volume(well.folder, size=len(data))
        volume.write(0, data)
        begun, landings, failures = threading.Event(), [], []

        def work(volume=volume, begun=begun, landings=landings, failures=failures):
            try:
                while True:
                    landings[:] = [bytearray(len(data))]
                    begun.set()
                    volume.read_into(0, landings[0])
            except cenote.ClosedError:
                pass
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        begun.wait()
        volume.close()
        landing = landings[0]
        left = bytes(landing)
        thread.join()
        assert failures == []
        # Read as a whole before it was closed, or not at all.
        assert landing == left and left in (data, bytes(len(data)))


def test_a_signal_handler_closes_what_its_thread_is_at(well):
    volume = cenote.Volume(well.folder, size=8 * MIB)
    go = threading.Event()

    def interrupt():
        go.wait()
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: volume.close())
    thread = threading.Thread(target=interrupt)
    thread.start()
    interval = sys.getswitchinterval()
    # It runs when the call gives up the lock, and the handler between two parts of the call.
    sys.setswitchinterval(3600)
    try:
        go.set()
        volume.write(0, bytearray(b"x" * 8 * MIB))
        assert volume.closed
    finally:
        sys.setswitchinterval(interval)
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    with pytest.raises(cenote.ClosedError):
        volume.read(0, 1)


def test_a_forked_child_is_told_and_harms_nothing(volume):
    volume[0:5] = b"hello"
    child = os.fork()
    if child == 0:
        try:
            volume.read(0, 5)
            os._exit(1)
        except cenote.ForkedError:
            volume.close()
            os._exit(0)
        except BaseException:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert volume[0:5] == b"hello"
