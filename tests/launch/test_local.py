import pytest

from launch.local import LocalBackend, WorkersBroken, last_lines
from launch.study import load_study
from tests.launch.sweeps import PLANNED


def test_workers_that_cannot_start_stop_the_sweep(tmp_path):
    runs = load_study(PLANNED, tmp_path).runs
    with LocalBackend([{"PYTHONHOME": "/no/such/folder"}], tmp_path / "workers") as backend:
        backend.submit([runs])
        assert backend.active() == [runs[0]]
        with pytest.raises(WorkersBroken, match=r"cannot start worker 1: .*worker-1.log ends .+"):
            backend.poll(60.0)


def test_last_lines(tmp_path):
    path = tmp_path / "log"
    assert last_lines(path) == ""
    path.write_bytes(b"1\n2\n3 \xff\n\n")
    assert last_lines(path, 2) == "3 \ufffd"
