"""Shape files: read whole, or refused line by line before anything starts."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.device.replay import Recording
from tuner.errors import ShapeFileError
from tuner.shape import MAX_EXTENT, GemmShape
from tuner.shape_files import (
    MAX_FILE_BYTES,
    MAX_REPORTED,
    ShapeFile,
    format_shapes,
    parse_shapes,
    read_shape_files,
)

MALFORMED = Path(__file__).parent / "data" / "malformed"
LISTS = Path(__file__).parent.parent / "benchmarks" / "shapes"
EXAMPLE = Path(__file__).parent.parent / "examples" / "shapes.txt"


def parse(content: str | bytes) -> ShapeFile:
    return parse_shapes(content.encode() if isinstance(content, str) else content, "list.txt")


def shapes(content: str | bytes) -> list[tuple[int, int, int]]:
    return [(s.m, s.n, s.k) for s in parse(content).shapes]


def refusal(content: str | bytes) -> str:
    with pytest.raises(ShapeFileError) as caught:
        parse(content)
    return str(caught.value)


def file_refusal(name: str) -> list[str]:
    """Lines of the refusal of one real malformed file, its folder left out."""
    with pytest.raises(ShapeFileError) as caught:
        read_shape_files([MALFORMED / name])
    return str(caught.value).replace(f"{MALFORMED}/", "").splitlines()


def read(name: str) -> list[tuple[int, int, int]]:
    return [(s.m, s.n, s.k) for s in read_shape_files([MALFORMED / name]).shapes]


# Real files of people who do this job.


def test_csv_with_trailing_blanks_empty_rows_and_no_last_newline_is_read_to_its_last_row() -> None:
    assert read("aiter-style.csv") == [
        (1, 1280, 8192),
        (288, 1280, 8192),
        (640, 2560, 8192),
        (1, 2560, 8192),
        (16, 8192, 1024),
    ]


def test_two_numbers_on_a_line_are_refused_and_not_skipped() -> None:
    assert file_refusal("two-columns.txt") == [
        "two-columns.txt:1: 2 fields where three are expected: M N K",
        "two-columns.txt: 1 line refused, 1 accepted. Correct the file.",
    ]


def test_unknown_separators_are_refused_on_each_line_that_uses_them() -> None:
    assert file_refusal("separators.txt") == [
        "separators.txt:2: '128_7168_2048' is not a whole number; use the digits 0 to 9 only",
        "separators.txt:5: '512;' is not a whole number; use the digits 0 to 9 only",
        "separators.txt: 2 lines refused, 3 accepted. Correct the file.",
    ]


def test_words_floats_exponents_and_hexadecimal_are_all_reported_together() -> None:
    assert file_refusal("words.txt") == [
        "words.txt:1: 'K' is not a whole number; use the digits 0 to 9 only",
        "words.txt:2: '1e3' is not a whole number; use the digits 0 to 9 only",
        "words.txt:3: '4096.0' is not a whole number; use the digits 0 to 9 only",
        "words.txt:4: '0x1000' is not a decimal number; use the digits 0 to 9 only",
        "words.txt: 4 lines refused, 1 accepted. Correct the file.",
    ]


def test_comment_after_a_shape_ends_the_line() -> None:
    assert read("inline-comment.txt") == [(4096, 4096, 4096), (64, 64, 64)]


def test_byte_order_mark_is_not_part_of_the_first_number() -> None:
    assert read("bom.txt") == [(4096, 4096, 4096), (128, 7168, 2048)]


def test_comment_behind_a_byte_order_mark_is_still_a_comment() -> None:
    assert read("bom-comment.txt") == [(4096, 4096, 4096)]


def test_utf16_is_refused_by_name() -> None:
    assert file_refusal("utf16.txt") == ["utf16.txt:1: the file is UTF-16. Save it as UTF-8."]


def test_bytes_that_are_not_utf8_are_refused_with_their_line_and_likely_encoding() -> None:
    assert file_refusal("not-utf8.txt") == [
        "not-utf8.txt:1: byte 0xf6 is not UTF-8; the file may be Latin-1 or Windows-1252. "
        "Save it as UTF-8."
    ]


def test_nul_bytes_are_refused_with_their_line() -> None:
    assert file_refusal("nul.txt") == [
        "nul.txt:2: a NUL byte, so the file is not text. Save it as UTF-8."
    ]


@pytest.mark.parametrize("name", ["header-only.csv", "comments-only.txt", "empty.txt"])
def test_file_without_a_shape_is_one_plain_sentence(name: str) -> None:
    assert file_refusal(name) == [f"{name}: no shapes. Write one `M N K` a line."]


def test_missing_file_is_one_plain_sentence(tmp_path: Path) -> None:
    with pytest.raises(ShapeFileError, match=r"absent\.txt: there is no such file\."):
        read_shape_files([tmp_path / "absent.txt"])


def test_directory_as_a_file_is_one_plain_sentence(tmp_path: Path) -> None:
    with pytest.raises(ShapeFileError, match=r"is a directory\. Name the shape files in it\."):
        read_shape_files([tmp_path])


def test_columns_named_k_and_n_alone_are_refused_for_lack_of_m() -> None:
    assert file_refusal("kn-order.csv")[0] == (
        "kn-order.csv:1: no column M. A header names M, N and K, each once"
    )


def test_batch_column_is_refused_and_not_read_as_m() -> None:
    assert file_refusal("batched-first.csv")[0] == (
        "batched-first.csv:1: unknown column 'B'. A header names M, N and K, each once"
    )


def test_fourth_bare_number_is_refused_on_each_line() -> None:
    assert file_refusal("extra-column.txt") == [
        "extra-column.txt:1: 4 fields where three are expected: M N K",
        "extra-column.txt:2: 4 fields where three are expected: M N K",
        "extra-column.txt: 2 lines refused, 0 accepted. Correct the file.",
    ]


def test_numbers_past_31_bits_are_refused_whatever_their_length() -> None:
    assert file_refusal("huge.txt") == [
        "huge.txt:2: '2147483648' is outside 1..2147483647",
        "huge.txt:3: '9223372036854775808' is outside 1..2147483647",
        "huge.txt:4: '18446744073709551616' is outside 1..2147483647",
        f"huge.txt:5: '{'9' * 24}'... (5000 characters) is outside 1..2147483647",
        "huge.txt: 4 lines refused, 2 accepted. Correct the file.",
    ]


def test_zero_and_negative_extents_are_refused() -> None:
    assert file_refusal("zero-negative.txt") == [
        "zero-negative.txt:1: '0' is outside 1..2147483647",
        "zero-negative.txt:2: '0' is outside 1..2147483647",
        "zero-negative.txt:3: '0' is outside 1..2147483647",
        "zero-negative.txt:4: '-1' is outside 1..2147483647",
        "zero-negative.txt: 4 lines refused, 1 accepted. Correct the file.",
    ]


def test_list_cut_off_in_its_last_line_is_refused() -> None:
    assert file_refusal("cut-off.txt")[0] == (
        "cut-off.txt:3: 2 fields where three are expected: M N K"
    )


def test_shapes_whose_bytes_pass_32_bits_are_well_formed() -> None:
    assert shapes("65536 65536 64\n16777216 128 64\n") == [(65536, 65536, 64), (16777216, 128, 64)]
    assert GemmShape(65536, 65536, 64).operand_bytes == 2 * (2**32 + 2 * 2**22)


def test_ks_off_the_tile_and_tiny_shapes_are_well_formed() -> None:
    text = "128 128 133\n256 256 192\n7168 2048 103\n4096 7168 576\n8 1 4096\n1 128 1\n1 1 1\n"
    assert len(shapes(text)) == 7


@pytest.mark.parametrize(
    ("name", "distinct", "repeated"),
    [
        ("aiter-dsv3-untuned.txt", 736, 0),
        ("aiter-llama70b-bf16.txt", 156, 0),
        ("cuda-l2-1000.txt", 1000, 0),
        ("deepbench.txt", 166, 0),
        ("deepgemm.txt", 74, 0),
        ("llm-inference.txt", 127, 0),
        ("rocblas-bf16-dlrm.txt", 74, 0),
        ("squares-and-odd.txt", 229, 0),
    ],
)
def test_public_lists_are_read_whole(name: str, distinct: int, repeated: int) -> None:
    found = read_shape_files([LISTS / name])
    assert (len(found.shapes), found.repeated) == (distinct, repeated)


def test_example_holds_what_the_shipped_recording_can_play() -> None:
    found = read_shape_files([EXAMPLE])
    recorded = {problem.shape for problem in Recording.load("h200").problems()}
    assert len(found.shapes) >= 6
    assert set(found.shapes) <= recorded


# Other inputs of each kind.


@pytest.mark.parametrize(
    "line",
    [
        "1 2 3",
        "  1\t2 \t 3  ",
        "1,2,3",
        "1 , 2,3",
        "1x2x3",
        "1X2 x 3",
        "1, 2 3",
        "001 2 3",
        "1 2 3# note",
        "1 2 3\r",
    ],
)
def test_blanks_tabs_commas_and_x_separate(line: str) -> None:
    assert shapes(line) == [(1, 2, 3)]


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_lines_of_any_system_are_counted_alike(ending: str) -> None:
    text = ending.join(["# list", "1 2 3", "", "4 5"])
    assert refusal(text).startswith("list.txt:4: 2 fields")


@pytest.mark.parametrize(
    "header",
    ["K,M,N", "k m n", "K\tM\tN", "K , m, N", "KxMxN", "k x m x n", "\ufeffK,M,N", "# hi\n\nK M N"],
)
def test_header_in_any_order_and_case_says_which_column_is_which(header: str) -> None:
    assert shapes(f"{header}\n3,1,2\n") == [(1, 2, 3)]


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ("M,N,K,batch", "unknown column 'batch'."),
        (",M,N,K", "unknown column ''."),
        ("M,N,N", "repeated column N; no column K."),
        ("M,M,N,K", "repeated column M."),
        ("M", "no column N, K."),
        ("cuM,N,K", "unknown column 'cuM'; no column M."),
    ],
)
def test_header_that_does_not_name_each_column_once_is_the_only_fault(
    header: str, reason: str
) -> None:
    found = refusal(f"{header}\n1,2,3,4\n5,6\n").splitlines()
    assert found[0] == f"list.txt:1: {reason} A header names M, N and K, each once"
    assert found[1] == "list.txt: 1 line refused, 0 accepted. Correct the file."


def test_header_after_a_shape_is_refused() -> None:
    assert refusal("1 2 3\nM N K\n").startswith("list.txt:2: 'M' is not a whole number")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1", "1 fields"),
        ("1,2,3,", "4 fields"),
        ("1 2 3 4 5 6", "more than four fields"),
        ("1,,3", "an empty field"),
        (",1,2,3", "an empty field"),
        ("+1 2 3", "'+1' is not a whole number"),
        ("-0 2 3", "'-0' is outside 1..2147483647"),
        ("1_0 2 3", "'1_0' is not a whole number"),
        ("0x4096x1", "'0' is outside"),
        ("exp 1 2", "'exp' is not a whole number"),
        ('"1","2","3"', "'\"1\"' is not a whole number"),
        ("\uff11 2 3", r"'\uff11' is not a whole number"),
        ("\u0661 2 3", r"'\u0661' is not a whole number"),
        ("\u00b2 2 3", r"'\xb2' is not a whole number"),
        ("1\u00a02\u00a03", r"'1\xa02\xa03' is not a whole number"),
        ("1\f2 3", r"'1\x0c2' is not a whole number"),
        ("1\u20282 3", r"'1\u20282' is not a whole number"),
        ("\x1b[31m 2 3", r"'\x1b[31m' is not a whole number"),
    ],
)
def test_what_is_not_three_runs_of_ascii_digits_is_refused_and_shown_escaped(
    line: str, reason: str
) -> None:
    assert refusal(line).startswith(f"list.txt:1: {reason}")


@pytest.mark.parametrize(
    ("encoding", "name"),
    [
        ("utf-16", "the file is UTF-16"),
        ("utf-16-le", "the file is UTF-16 or UTF-32"),
        ("utf-16-be", "the file is UTF-16 or UTF-32"),
        ("utf-32", "the file is UTF-32"),
        ("utf-32-le", "the file is UTF-16 or UTF-32"),
    ],
)
def test_wide_encodings_are_refused_by_name_with_and_without_a_mark(
    encoding: str, name: str
) -> None:
    assert refusal("4096 4096 4096\n".encode(encoding)) == f"list.txt:1: {name}. Save it as UTF-8."


def test_byte_that_is_not_utf8_is_found_on_its_line_behind_a_mark() -> None:
    content = b"\xef\xbb\xbf1 2 3\r\n4 5 6\r\n# \xff\r\n"
    assert refusal(content).startswith("list.txt:3: byte 0xff is not UTF-8")


def test_largest_extent_is_accepted_and_the_next_is_not() -> None:
    assert shapes(f"{MAX_EXTENT} 1 {MAX_EXTENT}") == [(MAX_EXTENT, 1, MAX_EXTENT)]
    assert "'2147483648' is outside" in refusal("1 2147483648 1")


def test_number_of_a_million_digits_is_refused_with_a_short_message() -> None:
    # int() of so many digits raises, and would take minutes if it did not.
    assert len(refusal("9" * 1_000_000 + " 1 1")) < 300


def test_line_of_a_million_fields_is_refused() -> None:
    assert "more than four fields" in refusal("1 " * 1_000_000)
    assert "an empty field" in refusal("," * 1_000_000)


def test_repeated_shapes_are_kept_once_in_their_order_and_counted() -> None:
    found = parse("8 8 8\n4 4 4\n8 8 8\n")
    assert (shapes("8 8 8\n4 4 4\n8 8 8\n"), found.repeated) == ([(8, 8, 8), (4, 4, 4)], 1)
    assert str(found) == "list.txt: 2 shapes, 1 line repeated"


def test_refusal_counts_refused_accepted_and_repeated_lines() -> None:
    assert refusal("8 8 8\n8 8 8\n8\n").splitlines()[-1] == (
        "list.txt: 1 line refused, 2 accepted, 1 of them repeated. Correct the file."
    )


def test_file_given_by_mistake_is_refused_without_flooding_the_screen() -> None:
    found = refusal("{}\n" * 5000).splitlines()
    assert len(found) == MAX_REPORTED + 2
    assert found[-2:] == [
        "list.txt: and 4000 lines more",
        "list.txt: 5000 lines refused, 0 accepted. Correct the file.",
    ]


def test_shapes_shared_by_two_files_are_kept_once(tmp_path: Path) -> None:
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("8 8 8\n4 4 4\n4 4 4\n")
    second.write_text("4 4 4\n2 2 2\n")
    found = read_shape_files([first, second])
    assert found.shapes == (GemmShape(8, 8, 8), GemmShape(4, 4, 4), GemmShape(2, 2, 2))
    assert str(found) == "3 shapes, 2 lines repeated"


def test_faults_of_all_files_are_reported_together(tmp_path: Path) -> None:
    paths = [MALFORMED / "two-columns.txt", tmp_path / "absent.txt", MALFORMED / "utf16.txt"]
    with pytest.raises(ShapeFileError) as caught:
        read_shape_files(paths)
    found = str(caught.value)
    assert [name for name in ("two-columns.txt:1:", "absent.txt:", "utf16.txt:1:") if name in found]
    assert found.count("\n") == 3


def test_empty_file_beside_one_with_shapes_is_said_and_not_refused() -> None:
    found = read_shape_files([MALFORMED / "empty.txt", MALFORMED / "bom.txt"])
    assert [str(file).rpartition("/")[2] for file in found.files] == [
        "empty.txt: no shapes",
        "bom.txt: 2 shapes",
    ]


def test_file_without_end_is_refused() -> None:
    with pytest.raises(ShapeFileError, match=f"longer than {MAX_FILE_BYTES // 2**20} MiB"):
        read_shape_files([Path("/dev/zero")])


@pytest.mark.parametrize("name", ["line\nbreak", "nul\0", "\udcff", "n" * 5000])
def test_path_that_no_file_can_have_is_one_printable_line(name: str) -> None:
    with pytest.raises(ShapeFileError) as caught:
        read_shape_files([Path("absent") / name])
    assert str(caught.value).isprintable()


EXTENT = st.integers(1, MAX_EXTENT)


@given(st.lists(st.builds(GemmShape, EXTENT, EXTENT, EXTENT), min_size=1, unique=True))
def test_written_list_reads_back_the_same(written: list[GemmShape]) -> None:
    text = format_shapes(written, "missed look-ups\n\nM N K follow")
    assert list(parse(text).shapes) == written


@given(
    st.permutations("MNK"),
    st.lists(st.tuples(EXTENT, EXTENT, EXTENT), min_size=1, unique=True),
    st.sampled_from([",", " ", "\t", " x ", "x"]),
    st.sampled_from(["\n", "\r\n", "\r", "\n\n", " # note\n"]),
)
def test_named_columns_are_obeyed_for_every_order_separator_and_line_end(
    order: list[str], rows: list[tuple[int, int, int]], separator: str, ending: str
) -> None:
    lines = [order, *([str(row["MNK".index(c)]) for c in order] for row in rows)]
    assert shapes(ending.join(separator.join(line) for line in lines)) == rows


def understood(content: bytes) -> tuple[ShapeFile | None, str]:
    """The list or the refusal; any other exception fails the test."""
    try:
        return parse(content), ""
    except ShapeFileError as refused:
        return None, str(refused)


@given(st.binary())
def test_any_bytes_are_a_list_or_a_refusal_that_can_be_printed(content: bytes) -> None:
    found, refused = understood(content)
    assert (found is None) == bool(refused)
    assert all(line.isprintable() for line in refused.splitlines())


@given(st.text(alphabet="0123456789xXMNKmnk ,\t\n\r#-+._\ufeff\u00a0"))
def test_any_text_close_to_a_list_is_a_list_in_range_or_a_refusal_naming_the_file(
    text: str,
) -> None:
    found, refused = understood(text.encode())
    assert found is not None or refused.startswith("list.txt:")
    for shape in found.shapes if found else ():
        assert all(1 <= extent <= MAX_EXTENT for extent in (shape.m, shape.n, shape.k))
