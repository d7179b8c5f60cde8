"""Annotation files: all three shapes read alike, and an error names file and record."""

from __future__ import annotations

import json

import pytest
from tiny_official import write_json, write_lines

from mcit.data import records
from mcit.data.records import DataProblems, Record, problems_of, read_json, read_records
from mcit.task import DataError

ITEMS = [{"n": 0, "text": 'é{["]}'}, {"n": -12.5e3, "nested": {"a": [1, {"b": None}]}}, {"n": 2}]


def fields_of(path, key=None):
    return [(record.number, record.fields) for record in read_records(path, key)]


def test_lines_arrays_and_keyed_arrays_read_alike(tmp_path):
    expected = list(enumerate(ITEMS, 1))
    assert fields_of(write_lines(tmp_path / "a.jsonl", ITEMS)) == expected
    assert fields_of(write_json(tmp_path / "b.json", ITEMS)) == expected
    keyed = write_json(
        tmp_path / "c.json", {"info": {"items": [9]}, "count": 3, "items": ITEMS, "license": "x"}
    )
    assert fields_of(keyed, "items") == expected


@pytest.mark.parametrize("chunk", [1, 2, 7, 64])
def test_records_that_straddle_chunks_are_whole(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(records, "_CHUNK", chunk)
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"first": 1234567, "items": ITEMS}, indent=3), encoding="utf-8")
    assert fields_of(path, "items") == list(enumerate(ITEMS, 1))


def test_a_byte_order_mark_and_blank_lines_do_not_matter(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"n": 1}\r\n\r\n{"n": 2}')
    assert fields_of(path) == [(1, {"n": 1}), (3, {"n": 2})]


@pytest.mark.parametrize("shape", ["lines", "array", "keyed"])
def test_a_file_cut_short_is_reported_at_the_record_where_it_ends(tmp_path, shape):
    whole = {
        "lines": "\n".join(map(json.dumps, ITEMS)),
        "array": json.dumps(ITEMS),
        "keyed": json.dumps({"items": ITEMS}),
    }[shape]
    path = tmp_path / "cut.json"
    path.write_text(whole[: whole.index("-12")], encoding="utf-8")
    with pytest.raises(DataError, match=r"cut\.json, record 2: not valid JSON .* fetch it again"):
        fields_of(path, "items" if shape == "keyed" else None)


def test_an_array_without_its_closing_bracket_is_cut_short(tmp_path):
    path = tmp_path / "cut.json"
    path.write_text('[{"n": 1}, {"n": 2}', encoding="utf-8")
    with pytest.raises(DataError, match="record 2: not valid JSON"):
        fields_of(path)


def test_a_malformed_record_is_found_without_reading_the_rest(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "_CHUNK", 16)
    monkeypatch.setattr(records, "_LONGEST", 64)
    path = tmp_path / "a.json"
    path.write_text('[{"n": 1}, {"n" 2}, ' + '{"n": 3}, ' * 10_000 + "{}]", encoding="utf-8")
    with pytest.raises(DataError, match=r"record 2: not valid JSON \(Expecting ':' delimiter\)"):
        fields_of(path)


def test_a_file_without_the_key_says_which_it_has(tmp_path):
    path = write_json(tmp_path / "a.json", {"info": {}, "questions": []})
    with pytest.raises(DataError, match=r"has no 'annotations' \(keys: info, questions\)"):
        fields_of(path, "annotations")


def test_a_record_that_is_no_object_is_refused(tmp_path):
    with pytest.raises(DataError, match="record 2: expected an object, found 7"):
        fields_of(write_json(tmp_path / "a.json", [{}, 7]))


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"n": "\xff\xfe"}')
    with pytest.raises(DataError, match="not UTF-8 text"):
        fields_of(path)
    with pytest.raises(DataError, match="not valid JSON"):
        read_json(path)


def test_a_field_is_found_under_either_spelling_and_checked(tmp_path):
    record = Record(tmp_path / "a.json", 4, {"second": "x", "flag": True})
    assert record.get("first", "second", kind=str) == "x"
    with pytest.raises(
        DataError, match=r"record 4: has no field 'first' or 'third' \(fields: second, flag\)"
    ):
        record.get("first", "third", kind=str)
    with pytest.raises(DataError, match="'second' must be a whole number or a list, found 'x'"):
        record.get("second", kind=(int, list))
    with pytest.raises(DataError, match="'flag' must be a whole number, found True"):
        record.get("flag", kind=int)


def test_many_problems_make_one_error_that_stays_readable():
    assert str(DataProblems(["only this"])) == "only this"
    error = DataProblems(f"problem {i}" for i in range(50))
    lines = str(error).splitlines()
    assert lines[0] == "the data have 50 problems:"
    assert lines[-1].endswith("... and 30 more")
    assert len(problems_of(error)) == 50
    assert problems_of(DataError("one")) == ["one"]
