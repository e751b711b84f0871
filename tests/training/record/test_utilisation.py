import pytest

from looped_jax.training.record.utilisation import device_memory, peak_flops, utilisation


@pytest.mark.parametrize(
    ("kind", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L40S", 362e12),
        ("TPU v5 lite", 197e12),
        ("TPU v5", None),
        ("cpu", None),
    ],
)
def test_the_peak_of_a_device(kind, peak):
    assert peak_flops(kind) == peak


def test_the_share_counts_all_devices_and_is_left_out_where_no_peak_is_known():
    used = utilisation(989e12, "NVIDIA H200", 2)
    assert used == {"flops_per_second": 989e12, "share_of_peak": 0.5}
    assert utilisation(1e9, "cpu", 2) == {"flops_per_second": 1e9}


def test_memory_is_what_the_fullest_device_had_in_use(monkeypatch):
    assert device_memory() == {}  # CPUs do not tell

    class Device:
        def __init__(self, stats):
            self.memory_stats = lambda: stats

    devices = [Device({"peak_bytes_in_use": 5}), Device({"peak_bytes_in_use": 7}), Device(None)]
    monkeypatch.setattr("jax.local_devices", lambda: devices)
    assert device_memory() == {"peak_memory_bytes": 7.0}
