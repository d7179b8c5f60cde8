"""The cache of parsed annotations: parsed once, edits are seen, a table is there whole or not at
all."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from mcit.data.tables import fingerprint, keep_text, load_table, read_about
from mcit.errors import DataError
from mcit.files import FolderError, cache_folder

COLUMNS = {"n": "int64"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MCIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source.json"
    path.write_text("1234")
    return path


def load(source, calls, options=None, noted=None):
    def parse(about):
        calls.append(1)
        for digit in source.read_text():
            yield {"n": int(digit)}
        about.update(noted or {})

    return load_table("digits", [source], options or {}, COLUMNS, parse)


def test_a_source_is_parsed_once(source):
    calls = []
    assert [row["n"] for row in load(source, calls)] == [1, 2, 3, 4]
    assert [row["n"] for row in load(source, calls)] == [1, 2, 3, 4]
    assert len(calls) == 1


def test_an_edit_is_seen_even_if_the_size_stays(source):
    calls = []
    load(source, calls)
    source.write_text("4321")
    status = source.stat()
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns + 10_000_000))
    assert [row["n"] for row in load(source, calls)] == [4, 3, 2, 1]


def test_what_decides_is_the_content_and_the_options(source, tmp_path):
    other = tmp_path / "elsewhere" / "source.json"
    other.parent.mkdir()
    other.write_text("1234")
    assert fingerprint([source], {"a": 1}) == fingerprint([other], {"a": 1})
    assert fingerprint([source], {"a": 1}) != fingerprint([source], {"a": 2})
    calls = []
    load(source, calls, {"a": 1})
    load(other, calls, {"a": 1})
    load(other, calls, {"a": 2})
    assert len(calls) == 2


def test_a_parse_that_fails_leaves_nothing_behind(source, cache):
    def parse(about):
        yield {"n": 1}
        raise DataError("record 2 is wrong")

    with pytest.raises(DataError, match="record 2"):
        load_table("digits", [source], {}, COLUMNS, parse)
    assert list((cache / "tables").iterdir()) == []
    assert len(load(source, [])) == 4


def test_many_may_write_the_same_table_at_once(source, cache):
    with ThreadPoolExecutor(8) as pool:
        tables = list(pool.map(lambda _: load(source, []), range(16)))
    assert all([row["n"] for row in table] == [1, 2, 3, 4] for table in tables)
    assert len(list((cache / "tables").iterdir())) == 1


def test_the_table_is_memory_mapped_and_knows_its_origin(source):
    table = load(source, [], {"a": 1}, {"dropped": 3})
    assert table.cache_files
    about = read_about(table)
    assert about["sources"] == [str(source)]
    assert (about["options"], about["dropped"], about["rows"]) == ({"a": 1}, 3, 4)


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("MCIT_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "mcit"


def test_a_cache_that_cannot_be_made_names_the_remedy(source, monkeypatch):
    monkeypatch.setenv("MCIT_CACHE", str(source / "below-a-file"))
    with pytest.raises(FolderError, match="choose another MCIT_CACHE"):
        load(source, [])


def test_a_text_that_is_there_is_not_written_again(cache):
    cache.mkdir()
    path = cache / "a.json"
    keep_text(path, "one")
    before = path.stat().st_ino
    keep_text(path, "one")
    assert path.stat().st_ino == before
    keep_text(path, "two")
    assert path.read_text() == "two"


def test_many_may_write_the_same_text_at_once(cache):
    cache.mkdir()
    path = cache / "a.json"
    text = "one two three " * 10_000
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: keep_text(path, text), range(40)))
    assert path.read_text() == text
    assert not list(cache.glob("*.tmp"))
