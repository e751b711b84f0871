"""Reading .pt files: what torch.save writes, and nothing that runs."""

import os
import pickle
import zipfile

import ml_dtypes
import numpy as np
import pytest

from looped_jax.errors import UserError
from looped_jax.interchange import torch_files
from tests.interchange.torch_zip import View, save, state_dict

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
    read = torch_files.read(path)
    assert list(read) == ["a", "b.c"]
    assert read["a"].dtype == dtype
    np.testing.assert_array_equal(read["a"], A.astype(dtype))
    np.testing.assert_array_equal(read["b.c"], A[0].astype(dtype))


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
    read = torch_files.read(save(content, tmp_path / "m.pt"))
    np.testing.assert_array_equal(read["transposed"], A.T)
    np.testing.assert_array_equal(read["row"], A[2])
    assert read["scalar"] == 5
    assert read["scalar"].shape == ()
    assert read["empty"].shape == (0, 4)
    np.testing.assert_array_equal(read["expanded"], np.stack([A[0, :3]] * 2))


def test_a_state_dict_within_a_checkpoint(tmp_path):
    path = save({"model": {"a": A}, "step": 3, "optimizer": {"a": A}}, tmp_path / "m.pt")
    np.testing.assert_array_equal(torch_files.read(path, "model")["a"], A)
    hint = r"holds 'model', a dict; allowed: tensors by name \(choose the model's with --entry=NA"
    with pytest.raises(UserError, match=hint):
        torch_files.read(path)
    with pytest.raises(UserError, match=r"has no entry 'modle'; allowed: 'model', 'step', 'optim"):
        torch_files.read(path, "modle")
    with pytest.raises(UserError, match=r"holds 'step', a int; allowed: tensors by name"):
        torch_files.read(save({"a": A, "step": 3}, tmp_path / "m.pt"))
    with pytest.raises(UserError, match=r"holds a list; allowed: tensors by name"):
        torch_files.read(save([A], tmp_path / "m.pt"))


class Runs:
    """A pickle that makes a folder when it is read by Python's own pickle."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def test_nothing_is_run(tmp_path):
    path = save({"a": A, "b": Runs(tmp_path / "made")}, tmp_path / "m.pt")
    with pytest.raises(UserError, match=r"holds the Python object posix\.mkdir; allowed: tensors"):
        torch_files.read(path)
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
        torch_files.read(path)


def test_damage(tmp_path):
    path = save({"a": A}, tmp_path / "m.pt")
    whole = path.read_bytes()
    for size in (len(whole) // 2, len(whole) - 3, 10, 0):
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match=r"is no whole zip file of torch.save"):
            torch_files.read(path)
    at = whole.index(A.tobytes()) + 5
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(UserError, match=r"Bad CRC-32"):
        torch_files.read(path)
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(UserError, match=r"written before PyTorch 1.6"):
        torch_files.read(path)
    with pytest.raises(UserError, match=r"cannot read .*none.pt: No such file"):
        torch_files.read(tmp_path / "none.pt")


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
        torch_files.read(path)


@pytest.mark.parametrize("view", [View(A.reshape(-1), (3, 5)), View(A.reshape(-1), (2,), (1,), 11)])
def test_a_tensor_beyond_its_storage(tmp_path, view):
    with pytest.raises(UserError, match=r"reaches beyond its storage"):
        torch_files.read(save({"a": view}, tmp_path / "m.pt"))


def test_a_tensor_of_negative_stride(tmp_path):
    path = save({"a": View(A.reshape(-1), (3,), (-1,), 5)}, tmp_path / "m.pt")
    with pytest.raises(UserError, match=r"a tensor of size .* that is none"):
        torch_files.read(path)


def test_other_zip_files(tmp_path):
    path = tmp_path / "m.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme", "hello")
    with pytest.raises(UserError, match=r"not one of torch.save: no data.pkl in it"):
        torch_files.read(path)
