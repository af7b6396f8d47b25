"""Arrays in remote memory, held against NumPy's own."""

import threading

import numpy as np
import pytest

import cenote

SHAPE = (37, 6, 50)
INDICES = [
    (),
    ...,
    slice(None),
    5,
    -1,
    (3, 2, 1),
    (slice(2, 9),),
    (slice(None, None, -1),),
    (slice(30, 3, -4), 2),
    (slice(1, 30, 7), slice(None), slice(4, 40, 5)),
    (..., 7),
    (..., slice(49, 0, -2)),
    (4, ..., None),
    (None, slice(3), None, 1, slice(2, 2)),
    (slice(None), slice(1, 5, 2), 3),
    (slice(10, 11), slice(0, 6), slice(3, 9)),
    (slice(0, 0), 1),
    [3, 1, 36, 0, -2],
    np.array([[0, 5], [36, 7]]),
    np.arange(37) % 5 == 2,
]


def named(index):
    return str(index).replace("\n", " ")


@pytest.fixture
def pair(volume):
    """An array and its model, at a place that is no page's beginning."""
    model = np.random.default_rng(7).integers(0, 1 << 40, SHAPE)
    remote = cenote.array(volume, SHAPE, np.int64, offset=1003)
    remote[...] = model
    return remote, model


def test_every_index_reads_what_numpy_reads(pair):
    remote, model = pair
    for index in INDICES:
        found = remote[index]
        np.testing.assert_array_equal(found, model[index], err_msg=named(index))
        assert np.shape(found) == np.shape(model[index]), named(index)
        assert np.asarray(found).dtype == model.dtype


def test_every_index_writes_what_numpy_writes_and_nothing_else(pair):
    remote, model = pair
    for number, index in enumerate(INDICES):
        value = np.arange(model[index].size).reshape(model[index].shape) + 1000 * number
        remote[index] = value
        model[index] = value
        np.testing.assert_array_equal(remote.read(), model, err_msg=named(index))
        remote[index] = -number
        model[index] = -number
        np.testing.assert_array_equal(remote.read(), model, err_msg=named(index))
    remote[[4, 4, 4]] = np.arange(3)[:, None, None]
    model[[4, 4, 4]] = np.arange(3)[:, None, None]
    remote[2] += 5
    model[2] += 5
    np.testing.assert_array_equal(remote, model)


def test_bytes_around_an_array_are_left_alone(volume):
    volume.write(0, b"\xff" * (1 << 20))
    remote = cenote.array(volume, (100, 100), "f4", offset=5001)
    remote.fill(0)
    remote[::3, 1::2] = 2.5
    assert volume[:5001] == b"\xff" * 5001
    end = 5001 + remote.nbytes
    assert volume[end : end + 5000] == b"\xff" * 5000


def test_columns_of_a_wide_and_of_a_narrow_array(volume):
    for shape in ((200, 1100), (70_000, 11)):
        model = np.random.default_rng(1).random(shape)[:, :].astype("f8")
        remote = cenote.array(volume, shape)
        remote[:] = model
        np.testing.assert_array_equal(remote[:, 3], model[:, 3])
        np.testing.assert_array_equal(remote[5::3, -1], model[5::3, -1])
        remote[:, 4] = 1
        model[:, 4] = 1
        np.testing.assert_array_equal(remote.read(), model)


def test_types_whose_buffers_python_does_not_know(volume):
    record = np.dtype([("a", "<i2"), ("b", "S3"), ("c", "<f8", (2,))])
    for dtype in ("f2", "datetime64[us]", "c16", "?", ">i4", "S5", record):
        model = np.zeros((4, 3), dtype)
        model.view("u1").reshape(-1)[:] = np.arange(model.nbytes) % 2
        remote = cenote.array(volume, model.shape, dtype)
        remote[...] = model
        assert remote.read().tobytes() == model.tobytes(), dtype
        assert remote[1, 2].tobytes() == model[1, 2].tobytes(), dtype
        volume.write(0, model)
        back = np.empty_like(model)
        volume.read_into(0, back)
        assert back.tobytes() == model.tobytes(), dtype
    with pytest.raises(TypeError, match="not objects"):
        cenote.array(volume, 3, object)


def test_what_is_a_copy_and_what_is_none(pair):
    remote, model = pair
    remote[3][2] = -1
    np.testing.assert_array_equal(remote.read(), model)
    part = remote.rows(3, 5)
    part[0, 2] = -1
    model[3, 2] = -1
    np.testing.assert_array_equal(remote.read(), model)
    np.testing.assert_array_equal(np.stack(list(part)), model[3:5])
    out = np.empty(SHAPE, np.int64)
    assert remote.read(out) is out
    np.testing.assert_array_equal(out, model)
    np.testing.assert_array_equal(np.asarray(remote, dtype="f8"), model.astype("f8"))
    with pytest.raises(ValueError, match="a copy"):
        np.array(remote, copy=False)
    with pytest.raises(ValueError):
        remote.read(np.empty((1, 2)))


def test_what_is_no_index_is_refused(pair):
    remote, model = pair
    for index in (37, -38, (0, 6), (0, 0, 0, 0), "a", 1.5, True, [99], [1.5], np.ones(3, bool),
                  ([1, 2], 3), (..., ...)):
        with pytest.raises(IndexError):
            remote[index]
        with pytest.raises(IndexError):
            remote[index] = 1
    with pytest.raises(ValueError):
        remote[0] = np.zeros(7)
    with pytest.raises(cenote.OutOfRangeError):
        cenote.array(remote._memory, (1 << 20, 9), offset=1)
    np.testing.assert_array_equal(remote.read(), model)


def test_an_array_of_no_axes_and_one_of_no_elements(volume):
    number = cenote.array(volume, (), "i4")
    number[...] = 9
    assert number[()] == 9 and number.read().shape == ()
    empty = cenote.array(volume, (0, 5))
    assert empty.read().shape == (0, 5) and list(empty) == [] and len(empty) == 0
    empty[:] = 1
    empty.fill(3)


def test_a_host_is_killed_while_an_array_is_written(own_well):
    shape = (64, 64, 64)
    model = np.random.default_rng(5).random(shape)
    with cenote.Volume(own_well.folder, size="4M", scheme="rs:2+1") as volume:
        remote = cenote.array(volume, shape)
        halfway = threading.Event()

        def work():
            # Columns: runs of a few bytes, many of each page.
            for at in range(64):
                remote[:, :, at] = model[:, :, at]
                if at == 16:
                    halfway.set()

        thread = threading.Thread(target=work)
        thread.start()
        halfway.wait()
        own_well.kill("h02")
        thread.join()
        np.testing.assert_array_equal(remote.read(), model)


def test_an_array_in_a_cache(well):
    with well.cache("arrays", "2M") as cache:
        model = np.random.default_rng(2).random((300, 40))
        remote = cenote.array(cache, model.shape, offset=17)
        remote[:] = model
        remote[::7, 3] = 0
        model[::7, 3] = 0
        np.testing.assert_array_equal(remote[:, 2:5], model[:, 2:5])
        np.testing.assert_array_equal(remote[[9, 1]], model[[9, 1]])
        np.testing.assert_array_equal(remote.read(), model)
