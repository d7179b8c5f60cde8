"""Annotation files: all three shapes read the same, and an error names file and record."""

from __future__ import annotations

import io
import json
import tracemalloc

import pytest
from tiny_official import write_json, write_lines

from mcit.data import records
from mcit.data.problems import DataProblems, list_problems
from mcit.data.records import Record, read_json, read_records, shorten
from mcit.errors import DataError

ITEMS = [{"n": 0, "text": 'é{["]}'}, {"n": -12.5e3, "nested": {"a": [1, {"b": None}]}}, {"n": 2}]


def fields_of(path, key=None):
    return [(record.number, record.fields) for record in read_records(path, key)]


def test_lines_arrays_and_keyed_arrays_read_the_same(tmp_path):
    expected = list(enumerate(ITEMS, 1))
    assert fields_of(write_lines(tmp_path / "a.jsonl", ITEMS)) == expected
    assert fields_of(write_json(tmp_path / "b.json", ITEMS)) == expected
    keyed = write_json(
        tmp_path / "c.json", {"info": {"items": [9]}, "count": 3, "items": ITEMS, "license": "x"}
    )
    assert fields_of(keyed, "items") == expected


@pytest.mark.parametrize("longest", [60, 61, 75, 128])
def test_records_that_straddle_two_pieces_of_a_file_are_whole(tmp_path, monkeypatch, longest):
    monkeypatch.setattr(records, "_LONGEST", longest)
    path = tmp_path / "a.json"
    items = ITEMS * 20
    text = json.dumps({"first": 1234567, "items": items}).replace(", ", ",   ")
    path.write_text(text, encoding="utf-8")
    assert fields_of(path, "items") == list(enumerate(items, 1))


def test_white_space_may_be_longer_than_any_record(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "_LONGEST", 16)
    path = tmp_path / "a.json"
    path.write_text(" " * 100 + '[{"n": 1},' + "\n" * 100 + '{"n": 2}' + "\t" * 100 + "]")
    assert fields_of(path) == [(1, {"n": 1}), (2, {"n": 2})]


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


class CountedFile(io.BytesIO):
    """Counts the bytes that are read."""

    def read(self, *size):
        content = super().read(*size)
        self.taken = getattr(self, "taken", 0) + len(content)
        return content

    read1 = read


def test_a_malformed_record_is_found_without_reading_the_rest(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "_LONGEST", 64)
    text = '[{"n": 1}, {"n" 2}, ' + '{"n": 3}, ' * 100_000 + "{}]"
    file = CountedFile(text.encode())
    monkeypatch.setattr(records, "open_regular", lambda path: file)
    with pytest.raises(DataError, match=r"record 2: not valid JSON \(Expecting ':' delimiter\)"):
        fields_of(tmp_path / "a.json")
    assert file.taken < len(text) / 10


@pytest.mark.parametrize("shape", ["lines", "array", "keyed"])
def test_a_value_that_is_nested_very_deeply_is_refused_in_little_memory(tmp_path, shape):
    deep = '{"n": ' + "[" * 1_000_000
    text = {"lines": deep + "\n", "array": f"[{deep}", "keyed": '{"items": [' + deep}[shape]
    path = tmp_path / "a.json"
    path.write_text(text)
    tracemalloc.start()
    with pytest.raises(DataError, match=r"record 1: not valid JSON \(nested too deeply\)"):
        fields_of(path, "items" if shape == "keyed" else None)
    assert tracemalloc.get_traced_memory()[1] < 1 << 26
    tracemalloc.stop()


@pytest.mark.parametrize("shape", ["lines", "array"])
def test_a_record_without_end_is_refused_in_little_memory(tmp_path, monkeypatch, shape):
    monkeypatch.setattr(records, "_LONGEST", 1 << 16)
    path = tmp_path / "a.json"
    with path.open("w") as file:
        file.write("[" * (shape == "array") + '{"n": "')
        for _ in range(1000):
            file.write("a" * (1 << 14))
    tracemalloc.start()
    with pytest.raises(DataError, match="record 1: "):
        fields_of(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 21
    tracemalloc.stop()


def test_a_record_with_numbers_that_json_does_not_have_does_not_spoil_its_neighbors(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"items": [{"n": 1}, {"n": NaN}, {"n": Infinity}, {"n": 4}]}')
    assert [number for number, _ in fields_of(path, "items")] == [1, 2, 3, 4]


def test_half_a_character_is_not_replaced_by_another(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"items": [{"text": "\\ud800"}]}')
    (record,) = read_records(path, "items")
    with pytest.raises(DataError, match="half a character"):
        record.get("text", kind=str)


def test_a_value_of_any_depth_and_length_reads_short_in_a_message():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert shorten(deep) == "[[[[[[[...]]]]]]]"
    assert len(shorten("x" * 10_000)) <= 60


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
    assert len(list_problems(error)) == 50
    assert list_problems(DataError("one")) == ["one"]
