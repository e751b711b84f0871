"""Reading .pt files: what torch.save writes, and nothing that runs."""

import collections
import os
import pickle
import struct
import zipfile

import ml_dtypes
import numpy as np
import pytest

from looped_jax.errors import UserError
from looped_jax.interchange import torch_files, torch_saving
from tests.interchange.torch_zip import View, load, save, state_dict


def read(path, entry=None):
    """All tensors of the file, as arrays."""
    tensors = torch_files.read(path, entry).tensors
    return {name: stored.read() for name, stored in tensors.items()}


A = np.arange(12, dtype=np.float32).reshape(3, 4)


def rewritten(path, name, content):
    """The same archive with one member's content replaced."""
    with zipfile.ZipFile(path) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for member, old in members.items():
            archive.writestr(member, content if member == name else old)


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int64]
)
def test_every_dtype(tmp_path, dtype):
    path = save(state_dict({"a": A.astype(dtype), "b.c": A[0].astype(dtype)}), tmp_path / "m.pt")
    found = read(path)
    assert list(found) == ["a", "b.c"]
    assert found["a"].dtype == dtype
    np.testing.assert_array_equal(found["a"], A.astype(dtype))
    np.testing.assert_array_equal(found["b.c"], A[0].astype(dtype))


def test_views_of_one_storage(tmp_path):
    storage = A.reshape(-1)
    content = {
        "whole": View(storage, (3, 4)),
        "transposed": View(storage, (4, 3), (1, 4)),
        "row": View(storage, (4,), (1,), 8),
        "scalar": View(storage, (), (), 5),
        "empty": View(storage, (0, 4)),
        "expanded": View(storage, (2, 3), (0, 1)),
    }
    found = read(save(content, tmp_path / "m.pt"))
    np.testing.assert_array_equal(found["transposed"], A.T)
    np.testing.assert_array_equal(found["row"], A[2])
    assert found["scalar"] == 5
    assert found["scalar"].shape == ()
    assert found["empty"].shape == (0, 4)
    np.testing.assert_array_equal(found["expanded"], np.stack([A[0, :3]] * 2))


def test_a_state_dict_within_a_checkpoint(tmp_path):
    path = save({"model": {"a": A}, "step": 3, "optimizer": {"a": A}}, tmp_path / "m.pt")
    np.testing.assert_array_equal(read(path, "model")["a"], A)
    hint = r"holds 'model', a dict; allowed: tensors by name \(choose the model's with --entry=NA"
    with pytest.raises(UserError, match=hint):
        read(path)
    with pytest.raises(UserError, match=r"has no entry 'modle'; allowed: 'model', 'step', 'optim"):
        read(path, "modle")
    with pytest.raises(UserError, match=r"holds 'step', a int; allowed: tensors by name"):
        read(save({"a": A, "step": 3}, tmp_path / "m.pt"))
    with pytest.raises(UserError, match=r"holds a list; allowed: tensors by name"):
        read(save([A], tmp_path / "m.pt"))


class Runs:
    """A pickle that makes a folder when it is read by Python's own pickle."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def test_nothing_is_run(tmp_path):
    path = save({"a": A, "b": Runs(tmp_path / "made")}, tmp_path / "m.pt")
    with pytest.raises(UserError, match=r"holds the Python object posix\.mkdir; allowed: tensors"):
        read(path)
    assert not (tmp_path / "made").exists()
    pickle.loads(pickle.dumps(Runs(tmp_path / "made")))
    assert (tmp_path / "made").exists()  # it would have been


@pytest.mark.parametrize(
    "global_", [b"cbuiltins\neval\n", b"ctorch\nload\n", b"ctorch._utils\n_rebuild_qtensor\n",
                b"ccollections\nnamedtuple\n", b"cbuiltins\ngetattr\n"],
)  # fmt: skip
def test_every_other_name_is_refused(tmp_path, global_):
    path = save({"a": A}, tmp_path / "m.pt")
    rewritten(path, "archive/data.pkl", b"\x80\x02" + global_ + b"(U\x031+1tR.")
    with pytest.raises(UserError, match=r"holds the Python object .*nothing in the file was run"):
        read(path)


def test_damage(tmp_path):
    path = save({"a": A}, tmp_path / "m.pt")
    whole = path.read_bytes()
    for size in (len(whole) // 2, len(whole) - 3, 10, 0):
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match=r"is no whole zip file of torch.save"):
            read(path)
    at = whole.index(A.tobytes()) + 5
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(UserError, match=r"Bad CRC-32"):
        read(path)
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(UserError, match=r"written before PyTorch 1.6"):
        read(path)
    with pytest.raises(UserError, match=r"cannot read .*none.pt: No such file"):
        read(tmp_path / "none.pt")


@pytest.mark.parametrize(
    ("member", "content", "message"),
    [
        ("archive/data/0", b"1234", "storage archive/data/0 has 4 bytes instead of 48"),
        ("archive/byteorder", b"big", "has byte order b'big'; allowed: b'little'"),
        ("archive/data.pkl", b"\x80\x02}q", "a pickle that is damaged or not of tensors only"),
        ("archive/data.pkl", b"\x80\x02U\x01aQ.", "a reference 'a' that is no storage of numbers"),
    ],
)
def test_members_that_do_not_fit(tmp_path, member, content, message):
    path = save({"a": A}, tmp_path / "m.pt")
    rewritten(path, member, content)
    with pytest.raises(UserError, match=message):
        read(path)


@pytest.mark.parametrize("view", [View(A.reshape(-1), (3, 5)), View(A.reshape(-1), (2,), (1,), 11)])
def test_a_tensor_beyond_its_storage(tmp_path, view):
    with pytest.raises(UserError, match=r"reaches beyond its storage"):
        read(save({"a": view}, tmp_path / "m.pt"))


def test_a_tensor_of_negative_stride(tmp_path):
    path = save({"a": View(A.reshape(-1), (3,), (-1,), 5)}, tmp_path / "m.pt")
    with pytest.raises(UserError, match=r"a tensor of size .* that is none"):
        read(path)


def pickled_tensors(references):
    """data.pkl of tensors {name: (storage kind, key, count, offset, size, stride)}, as claimed."""
    integer = lambda n: b"\x8a\x09" + int(n).to_bytes(9, "little", signed=True)
    several = lambda numbers: b"(" + b"".join(map(integer, numbers)) + b"t"
    text = lambda value: b"X" + struct.pack("<I", len(value)) + value.encode()
    items = b""
    for name, (kind, key, count, offset, size, stride) in references.items():
        storage = (
            b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + text(key) + text("cpu")
            + integer(count) + b"tQ"
        )  # fmt: skip
        arguments = storage + integer(offset) + several(size) + several(stride) + b"\x89)t"
        items += text(name) + b"ctorch._utils\n_rebuild_tensor_v2\n(" + arguments + b"R"
    return b"\x80\x02}(" + items + b"u."


def test_every_reference_to_a_storage_is_held_to_it(tmp_path):
    """A second reference may not claim more numbers than the storage has, or another dtype."""
    path = save({"a": A}, tmp_path / "m.pt")
    honest = ("FloatStorage", "0", 12, 0, (3, 4), (4, 1))
    for claimed in (
        ("FloatStorage", "0", 4096, 0, (4096,), (1,)),
        ("FloatStorage", "0", 1 << 62, 1 << 40, (4,), (1,)),
        ("DoubleStorage", "0", 12, 0, (12,), (1,)),
        ("BoolStorage", "0", 12, 0, (12,), (1,)),
    ):
        rewritten(path, "archive/data.pkl", pickled_tensors({"a": honest, "b": claimed}))
        with pytest.raises(UserError, match=r"storage archive/data/0 has 48 bytes instead of "):
            read(path)
    repeated = ("FloatStorage", "0", 12, 0, (1000, 12), (0, 1))
    rewritten(path, "archive/data.pkl", pickled_tensors({"a": repeated}))
    with pytest.raises(UserError, match=r"has more numbers than the 12 of its storage"):
        read(path)


def test_any_key_count_dtype_offset_size_and_stride(tmp_path):
    """Whatever a file claims, what is read lies within its storages, or a line says what is wrong.

    The numbers of every storage are its own, so that one from elsewhere would show.
    """
    rng = np.random.default_rng(0)
    storages = [np.full(n, n, np.float32) for n in (1, 7, 24)]
    path = save({str(i): storage for i, storage in enumerate(storages)}, tmp_path / "m.pt")
    integers = [-1, 0, 1, 2, 3, 4, 6, 7, 12, 23, 24, 25, 48, 1 << 31, 1 << 62, (1 << 63) - 1]
    weights = np.array([1, 8, 8, 4, 4, 4, 4, 4, 4, 2, 4, 1, 1, 1, 1, 1], float)
    draw = lambda n=None: rng.choice(np.array(integers, object), n, p=weights / weights.sum())
    kinds = ["FloatStorage"] * 6 + ["HalfStorage", "DoubleStorage", "LongStorage", "BoolStorage"]
    outcomes, lines = collections.Counter(), set()
    for _ in range(600):
        key = int(rng.integers(0, 4))
        honest = rng.random() < 0.7
        count = len(storages[key]) if honest and key < 3 else draw()
        ranks = rng.integers(0, 4), rng.integers(0, 4)
        size, stride = draw(ranks[0]), draw(ranks[0] if honest else ranks[1])
        claimed = (rng.choice(kinds), str(key), count, draw(), size, stride)
        rewritten(path, "archive/data.pkl", pickled_tensors({"a": claimed}))
        try:
            found = read(path)["a"]
        except UserError as error:
            lines.add(str(error).count("\n") + 1)
            outcomes["refused"] += 1
            continue
        outcomes["read"] += 1
        assert found.shape == tuple(size)
        assert found.size <= len(storages[key])
        if found.dtype == np.float32:
            assert (found == len(storages[key])).all()
    assert min(outcomes["read"], outcomes["refused"]) > 40
    assert lines == {1}


def test_what_a_pickle_may_not_change(tmp_path):
    """Storages and tensors that were checked stay as they were: BUILD cannot set their fields."""
    path = save({"a": A}, tmp_path / "m.pt")
    honest = pickled_tensors({"a": ("FloatStorage", "0", 12, 0, (3, 4), (4, 1))})
    grow = b"}X\x06\x00\x00\x00lengthM\x00\x10sb"
    for place in (b"Q", b"R"):
        at = honest.index(place, honest.index(b"storage")) + 1
        rewritten(path, "archive/data.pkl", honest[:at] + grow + honest[at:])
        with pytest.raises(UserError, match=r"a pickle that is damaged or not of tensors only"):
            read(path)


@pytest.mark.parametrize(
    "claim", [b"r\xff\xff\xff\x7f", b"X\xff\xff\xff\x7f", b"\x8b\xff\xff\xff\x7f", b"p9999999999\n"]
)
def test_a_pickle_that_claims_more_than_it_holds(tmp_path, claim):
    path = save({"a": A}, tmp_path / "m.pt")
    rewritten(path, "archive/data.pkl", b"\x80\x02}" + claim + b".")
    with pytest.raises(UserError, match=r"a pickle that is damaged or not of tensors only"):
        read(path)


def test_compressed_members_are_refused(tmp_path):
    path = save({"a": A}, tmp_path / "m.pt")
    with zipfile.ZipFile(path) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    for compressed, message in (("data/0", "is compressed"), ("data.pkl", "is compressed or has")):
        with zipfile.ZipFile(path, "w") as archive:
            for member, content in members.items():
                kind = zipfile.ZIP_DEFLATED if member.endswith(compressed) else zipfile.ZIP_STORED
                archive.writestr(member, content, kind)
        with pytest.raises(UserError, match=rf"{compressed} {message}"):
            read(path)


def test_fp8_is_named(tmp_path):
    path = save({"a": A}, tmp_path / "m.pt")
    rewritten(path, "archive/data.pkl", b"\x80\x02ctorch._utils\n_rebuild_tensor_v3\n.")
    with pytest.raises(UserError, match=r"holds tensors of 8-bit floats \(fp8\)"):
        read(path)


def test_what_is_saved_is_what_torch_saves(tmp_path):
    """Read by a reader of its own, and by ours."""
    content = {
        "model_state": {"a": A, "b": A.T, "scalar": np.array(2, np.float32), "none": A[:0]},
        "config": {"model": {"name": "é", "on": True, "rate": 0.25, "eps": None}},
        "step": -3,
        "tokens": 1 << 40,
    }
    path = tmp_path / "last.pt"
    torch_saving.save(path, content)
    found = load(path)
    for name, expected in content["model_state"].items():
        np.testing.assert_array_equal(found["model_state"][name], expected)
        assert found["model_state"][name].shape == expected.shape
    assert found | {"model_state": 0} == content | {"model_state": 0}
    opened = torch_files.read(path, usual_entry="model_state")
    np.testing.assert_array_equal(opened.tensors["b"].read(), A.T)
    assert opened.beside == {name: content[name] for name in ("config", "step", "tokens")}


def test_other_zip_files(tmp_path):
    path = tmp_path / "m.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme", "hello")
    with pytest.raises(UserError, match=r"not one of torch.save: no data.pkl in it"):
        read(path)
