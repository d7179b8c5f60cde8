"""The worked examples of docs/scaling.md are those that the script prints, by the page's formulas."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def worked():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import work_out_scaling
    finally:
        sys.path.pop(0)
    return work_out_scaling


def find(rows, what: str):
    (row,) = [row for row in rows if row.what == what]
    return list(row.values)


def test_the_page_shows_what_the_script_prints(worked, capsys):
    page = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    worked.main([])
    for table in capsys.readouterr().out.strip().split("\n\n"):
        assert table in page


def test_vilt_follows_the_formulas(worked):
    rows = worked.work_out_vilt()
    weights = 111_595_776
    operations = 6 * weights * 281 * 64
    assert find(rows, "steps")[0] == f"{10 * -(-443_757 // 64):,}"
    assert find(rows, "a step's products")[0] == f"{operations / (8 * 0.4 * 312e9):.1f} ms"
    assert find(rows, "sent per step and GPU")[0] == f"{7 * weights / 1e6:,.0f} MB"
    assert find(rows, "the rest per GPU")[0] == f"{24 * weights / 1e9:.2f} GB"


def test_llava_follows_the_formulas(worked):
    rows = worked.work_out_llava()
    # 32 layers: four attention matrices of 4096, three of 4096 x 11008; q, k, v, o and the others
    adapters = 32 * 16 * (4 * 2 * 4096 + 3 * (4096 + 11008))
    frozen = int(find(rows, "frozen weights")[0].replace(",", ""))
    assert find(rows, "weights of LoRA, T = P") == [f"{adapters:,}"] * 2
    assert find(rows, "frozen, per GPU") == [f"{2 * frozen / 1e9:.2f} GB", f"{frozen / 4e9:.2f} GB"]
    sent = 7 * adapters
    gathered = find(rows, "importance of 4,096, gathered")
    assert gathered == ["–", f"{4096 / 8 * 3.5 * frozen / 1e12:.1f} TB"]
    assert find(rows, "sent per step and GPU") == [
        f"{sent / 1e9:.2f} GB",
        f"{(sent + 3.5 * frozen) / 1e9:.2f} GB",
    ]
