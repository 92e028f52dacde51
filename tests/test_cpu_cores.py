"""The default number of threads and processes respects the quota of a container."""

from __future__ import annotations

import math

import pytest

from albertkit import cpu_cores
from albertkit.cpu_cores import cores, cpu_quota
from albertkit.data.document_tokenizer import worker_count


def test_a_container_may_have_a_share_of_the_processors(tmp_path):
    assert cpu_quota(tmp_path) == math.inf and cores() >= 1
    for text, wanted in (("max 100000\n", math.inf), ("150000 100000\n", 1.5), ("nonsense", math.inf)):
        (tmp_path / "cpu.max").write_text(text)
        assert cpu_quota(tmp_path) == wanted
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu").mkdir()
    for quota, wanted in (("-1", math.inf), ("50000", 0.5)):
        (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
        (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
        assert cpu_quota(tmp_path) == wanted


@pytest.mark.parametrize("quota", [0.5, 1.0])
def test_a_small_share_means_one_thread_and_one_worker(monkeypatch, quota):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(64)), raising=False)
    assert cores() >= 1 and worker_count(5) == 5
    monkeypatch.setattr(cpu_cores, "cpu_quota", lambda: quota)
    assert cores() == worker_count(None) == 1
