"""What memory a machine has left, as its computer and its container say."""

from __future__ import annotations

from pathlib import Path

from tidegate.fleet.applications import InstanceMemory, free_memory_bytes, instance_memory

MEBIBYTE = 1024 * 1024


def test_the_container_counts_when_it_has_less_than_the_computer(tmp_path: Path) -> None:
    assert free_memory_bytes(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    5130 kB\n")
    assert free_memory_bytes(tmp_path) == 5 * MEBIBYTE
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text(f"{7 * MEBIBYTE}\n")
    (group / "memory.stat").write_text(f"anon 4\ninactive_file {MEBIBYTE}\n")
    assert free_memory_bytes(tmp_path) == 5 * MEBIBYTE, "it has no bound"
    (group / "memory.max").write_text(f"{8 * MEBIBYTE}\n")
    assert free_memory_bytes(tmp_path) == 2 * MEBIBYTE


def test_an_instance_may_take_what_the_tightest_of_its_bounds_leaves(tmp_path: Path) -> None:
    # Given a process in a group of a group, of which only the outer one has a bound
    own = tmp_path / "proc/7"
    own.mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(f"MemAvailable:    {900 * 1024} kB\n")
    (own / "cgroup").write_text("0::/machine/shop\n")
    (own / "status").write_text(
        f"Name:\tpython\nVmSize:\t{300 * 1024} kB\nVmRSS:\t{50 * 1024 + 7} kB\n"
        f"VmData:\t{100 * 1024} kB\n"
    )
    limits = own / "limits"
    limits.write_text("Max address space         unlimited            unlimited            bytes\n")
    groups = tmp_path / "sys/fs/cgroup"
    for name in ("", "machine", "machine/shop"):
        (groups / name).mkdir(parents=True, exist_ok=True)
        (groups / name / "memory.max").write_text("max\n")
        (groups / name / "memory.current").write_text(f"{200 * MEBIBYTE}\n")
        (groups / name / "memory.stat").write_text("anon 4\n")

    def found() -> InstanceMemory:
        return instance_memory(7, tmp_path)

    assert found() == InstanceMemory(900 * MEBIBYTE, 50 * MEBIBYTE)
    (groups / "machine/memory.max").write_text(f"{800 * MEBIBYTE}\n")
    assert found().free_bytes == 600 * MEBIBYTE
    (groups / "machine/shop/memory.max").write_text(f"{500 * MEBIBYTE}\n")
    assert found().free_bytes == 300 * MEBIBYTE
    limits.write_text(f"Max data size             {180 * MEBIBYTE}      unlimited      bytes\n")
    assert found().free_bytes == 80 * MEBIBYTE
    # And one that is gone has nothing.
    assert instance_memory(8, tmp_path).resident_bytes is None
