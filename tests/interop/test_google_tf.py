"""Checkpoints written here come back equal; damaged and hostile ones give one clear error."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from albertkit.errors import AlbertkitError
from albertkit.interop import google_tf
from albertkit.interop.google_tf import find_bundle, list_bundle

from . import bundle_writer as writer
from .bundle_writer import read_bundle

CHECKPOINTS = Path(os.environ.get("ALBERTKIT_CHECKPOINTS", Path(__file__).parents[2] / ".cache" / "checkpoints"))
REAL = CHECKPOINTS / "bert-tf" / "bert_model.ckpt"

SMALL = {
    "bert/embeddings/LayerNorm/beta": np.arange(3, dtype=np.float32),
    "bert/embeddings/LayerNorm/gamma": np.ones((2, 1), np.float64),
    "bert/pooler/dense/bias": np.array([1, -2], np.float16),
    "global_step": np.array(7, np.int64),
}
DTYPES = ["float32", "float16", "int32", "int64"]
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40).filter(lambda n: n[0] != "\0")
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
)


def read_all(prefix: Path) -> dict[str, np.ndarray]:
    return read_bundle(prefix, list_bundle(prefix))


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(
        one[n].shape == other[n].shape and one[n].tobytes() == other[n].astype(np.float32).tobytes() for n in one
    )


def bundle_with(prefix: Path, entry: bytes, data: bytes = bytes(16), head: bytes | None = None) -> Path:
    """A bundle with one hand-made entry, `x`, whose checksums are right."""
    records = [(b"", writer.header() if head is None else head), (b"x", entry)]
    Path(f"{prefix}.index").write_bytes(writer.table(records))
    Path(f"{prefix}.data-00000-of-00001").write_bytes(data)
    return prefix


def fails(call, *parts: str) -> None:
    with pytest.raises(AlbertkitError) as caught:
        call()
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


# Round trips


@settings(max_examples=120)
@given(
    tensors=st.dictionaries(NAMES, ARRAYS, max_size=12),
    shards=st.integers(1, 4),
    block_bytes=st.integers(1, 300),
    restart_every=st.integers(1, 5),
)
def test_what_is_written_is_read(tensors, shards, block_bytes, restart_every) -> None:
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder) / "model.ckpt"
        writer.write_bundle(prefix, tensors, shards, block_bytes=block_bytes, restart_every=restart_every)
        assert same(read_all(prefix), tensors)
        listed = list_bundle(prefix)
        assert list(listed) == sorted(tensors, key=str.encode)
        for name, values in tensors.items():
            assert (listed[name].dtype, listed[name].shape) == (str(values.dtype), values.shape)
            assert same(read_bundle(prefix, [name]), {name: values})


def test_many_entries_over_many_blocks(tmp_path: Path) -> None:
    tensors = {f"layer_{i:04d}/kernel": np.full((2, 3), i, np.float32) for i in range(1500)}
    writer.write_bundle(tmp_path / "m", tensors, shards=3, block_bytes=512)
    assert same(read_all(tmp_path / "m"), tensors)


def test_a_tensor_longer_than_one_chunk(tmp_path: Path) -> None:
    tensors = {"a": np.arange(700_001, dtype=np.float32), "b": np.arange(3, dtype=np.int32)}
    writer.write_bundle(tmp_path / "m", tensors)
    got = read_all(tmp_path / "m")
    assert same(got, tensors)
    assert got["a"].flags.writeable


@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_bfloat16_becomes_float32(tmp_path: Path, shape: tuple[int, ...]) -> None:
    values = np.full(shape, 1.5, np.float32)
    writer.write_bundle(tmp_path / "m", {"x": values}, bfloat16=frozenset("x"))
    assert list_bundle(tmp_path / "m")["x"].dtype == "bfloat16"
    assert same(read_all(tmp_path / "m"), {"x": values})


def test_checksum_known_values() -> None:
    assert (
        google_tf._masked_crc(b"123456789")
        == writer.masked(b"123456789")
        == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) % 2**32
    )
    assert google_tf._masked_crc(b"") == 0xA282EAD8


def test_big_endian_checkpoints_are_refused(tmp_path: Path) -> None:
    fails(
        lambda: list_bundle(bundle_with(tmp_path / "m", writer.entry(1, ()), head=writer.header(big=True))),
        "big-endian",
    )


def test_strings_are_listed_and_not_read(tmp_path: Path) -> None:
    extra = {b"_OBJECT_GRAPH": writer.entry(7, (), size=99), b"odd": writer.entry(4242, (2,), size=1)}
    writer.write_bundle(tmp_path / "m", SMALL, extra=extra)
    listed = list_bundle(tmp_path / "m")
    assert (listed["_OBJECT_GRAPH"].dtype, listed["odd"].dtype) == ("of type 7", "of type 4242")
    assert same(read_bundle(tmp_path / "m", list(SMALL)), SMALL)
    fails(lambda: read_bundle(tmp_path / "m", ["_OBJECT_GRAPH"]), "_OBJECT_GRAPH", "only numbers")


def test_partitioned_tensors_are_named(tmp_path: Path) -> None:
    part = writer.bytes_field(1, writer.number_field(2, 2))
    whole = writer.entry(1, (4,)) + writer.bytes_field(7, part)
    extra = {b"embed/table": whole, b"\0embed/table\0\1\x01\x01\x80\x82": writer.entry(1, (2,), size=8)}
    writer.write_bundle(tmp_path / "m", SMALL, extra=extra)
    assert list_bundle(tmp_path / "m")["embed/table"].shard == -1
    assert len(list_bundle(tmp_path / "m")) == 5
    fails(lambda: read_all(tmp_path / "m"), "embed/table", "partitioned")
    assert same(read_bundle(tmp_path / "m", list(SMALL)), SMALL)


def test_names_choose_and_a_wrong_name_is_explained(tmp_path: Path) -> None:
    writer.write_bundle(tmp_path / "m{0}%s", SMALL, shards=2)
    got = read_bundle(tmp_path / "m{0}%s", ["global_step", "global_step"])
    assert list(got) == ["global_step"]
    assert read_bundle(tmp_path / "m{0}%s", []) == {}
    fails(lambda: read_bundle(tmp_path / "m{0}%s", ["global_stop"]), "'global_stop'", "'global_step'")


# Damage


def test_every_truncation_of_the_index(tmp_path: Path) -> None:
    writer.write_bundle(tmp_path / "m", SMALL, block_bytes=60)
    index = tmp_path / "m.index"
    whole = index.read_bytes()
    for length in range(len(whole)):
        index.write_bytes(whole[:length])
        fails(lambda: read_all(tmp_path / "m"), str(index))


def test_every_flip_of_the_index(tmp_path: Path) -> None:
    writer.write_bundle(tmp_path / "m", SMALL, block_bytes=60)
    index = tmp_path / "m.index"
    whole = index.read_bytes()
    for place in range(len(whole)):
        for bits in (0x01, 0x80, 0xFF):
            index.write_bytes(whole[:place] + bytes([whole[place] ^ bits]) + whole[place + 1 :])
            try:
                assert same(read_all(tmp_path / "m"), SMALL)
            except AlbertkitError:
                continue


@pytest.mark.parametrize("bits", [0x01, 0x7F, 0x80, 0xFF])
def test_every_flip_of_the_index_with_valid_checksums(tmp_path: Path, bits: int) -> None:
    """The checksum does not protect against a person, so the parser must stand on its own."""
    sizes: dict[int, int] = {}

    def measure(number: int, content: bytes) -> bytes:
        sizes[number] = max(len(content), sizes.get(number, 0))
        return content

    writer.write_bundle(tmp_path / "m", SMALL, block_bytes=60, spoil=measure)
    for number, size in sizes.items():
        for place in range(size):

            def spoil(at: int, content: bytes, number: int = number, place: int = place) -> bytes:
                if at != number or place >= len(content):
                    return content
                return content[:place] + bytes([content[place] ^ bits]) + content[place + 1 :]

            writer.write_bundle(tmp_path / "m", SMALL, block_bytes=60, spoil=spoil)
            try:
                got = read_all(tmp_path / "m")
                assert all(isinstance(values, np.ndarray) for values in got.values())
            except AlbertkitError:
                continue


@settings(max_examples=150)
@given(records=st.dictionaries(st.binary(max_size=6), st.binary(max_size=24), max_size=4), plain=st.booleans())
def test_random_records_with_valid_checksums(records: dict[bytes, bytes], plain: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        prefix = bundle_with(Path(folder) / "m", b"")
        records = records | ({} if plain else {b"": writer.header()})
        Path(f"{prefix}.index").write_bytes(writer.table(sorted(records.items())))
        try:
            list_bundle(prefix)
            read_all(prefix)
        except AlbertkitError:
            pass


@settings(max_examples=150)
@given(content=st.binary(max_size=80), tail=st.booleans())
def test_random_files(content: bytes, tail: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        magic = (0xDB4775248B80FB57).to_bytes(8, "little") if tail else b""
        (Path(folder) / "m.index").write_bytes(content + magic)
        fails(lambda: list_bundle(Path(folder) / "m"))


def test_every_flip_and_truncation_of_the_data(tmp_path: Path) -> None:
    writer.write_bundle(tmp_path / "m", SMALL)
    data = tmp_path / "m.data-00000-of-00001"
    whole = data.read_bytes()
    for place in range(len(whole)):
        data.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        fails(lambda: read_all(tmp_path / "m"), data.name, "checksum")
        data.write_bytes(whole[:place])
        fails(lambda: read_all(tmp_path / "m"), data.name, f"{place} bytes")


def test_missing_files_are_named(tmp_path: Path) -> None:
    fails(lambda: read_all(tmp_path / "m"), "m.index")
    writer.write_bundle(tmp_path / "m", SMALL, shards=2)
    (tmp_path / "m.data-00001-of-00002").unlink()
    fails(lambda: read_all(tmp_path / "m"), "m.data-00001-of-00002", "missing")
    assert len(list_bundle(tmp_path / "m")) == 4
    (tmp_path / "m.data-00001-of-00002").mkdir()
    fails(lambda: read_all(tmp_path / "m"), "m.data-00001-of-00002")
    fails(lambda: list_bundle(tmp_path / ("n" * 300)))


# Hostile numbers


HUGE = 2**62
ENTRIES = {
    "size_differs": (writer.entry(1, (3,), size=8), "takes 12 bytes, and 8"),
    "negative_dim": (writer.entry(1, (-1,), size=4), "over the limit"),
    "huge_dims": (writer.entry(1, (HUGE, HUGE), size=4), "over the limit"),
    "zero_times_huge": (writer.entry(1, (0, HUGE)), "over the limit"),
    "over_8_gb": (writer.entry(1, (2**31 + 1,), size=2**33 + 4), "over the limit"),
    "past_the_end": (writer.entry(1, (4,), offset=8, size=16), "ends at byte 24"),
    "offset_huge": (writer.entry(1, (4,), offset=-1, size=16), "ends at byte"),
    "promises_much": (writer.entry(1, (2**31,), size=2**33), "it has 16 bytes"),
    "no_such_shard": (writer.entry(1, (4,), shard=1, size=16), "there must be 2 to"),
    "shard_huge": (writer.entry(1, (4,), shard=-1, size=16), "header gives 1 shards"),
    "many_axes": (writer.entry(4, (1,) * 33, size=1), "over 32"),
    "unknown_rank": (writer.bytes_field(2, writer.number_field(3, 1)), "unknown number of axes"),
    "wire_group": (b"\x0b", "wire type 3"),
    "cut_varint": (b"\x08\xff", "variable-length"),
    "long_varint": (b"\x08" + b"\xff" * 11, "variable-length"),
    "cut_bytes": (b"\x12\x7f\x00", "bytes left"),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_hostile_entries(tmp_path: Path, name: str) -> None:
    entry, text = ENTRIES[name]
    fails(lambda: read_all(bundle_with(tmp_path / "m", entry)), text)


@pytest.mark.parametrize("head", [b"", writer.header(0), writer.header(-1), writer.header(100_000)])
def test_hostile_headers(tmp_path: Path, head: bytes) -> None:
    fails(lambda: list_bundle(bundle_with(tmp_path / "m", writer.entry(1, ()), head=head)))


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    head = writer.header(min_consumer=2)
    prefix = bundle_with(tmp_path / "m", writer.entry(4, (), size=1), head=head)
    fails(lambda: list_bundle(prefix), "newer reader")


def test_hostile_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index, first = tmp_path / "m.index", (b"", writer.header())
    value, often = writer.entry(4, (), size=1), writer.block([(b"k", b"\0\x08")] * 999)
    cases = {
        "in order": writer.table([first, (b"b", value), (b"a", value)]),
        "'x' follows": writer.table([first, (b"x", value), (b"x", value)]),
        "do not fit": writer.table([first, (b"k" * 4097, value)]),
        "not UTF-8": writer.table([first, (b"\xff\xfe", value)]),
        "compressed": writer.table([first, (b"a", value)], compression=1),
        "restart points": writer.table([first], spoil=lambda i, content: b"\xff" * 4 if i == 0 else content),
        "header gives 0": writer.table([(b"a", value)]),
        # the list of blocks gives the same empty block many times
        "overlap": writer.table([first], spoil=lambda i, content: [writer.block([]), content, often][i]),
    }
    for text, content in cases.items():
        index.write_bytes(content)
        fails(lambda: list_bundle(tmp_path / "m"), str(index), text)
    index.write_bytes(writer.table([first, *((b"%03d" % i, value) for i in range(50))]))
    assert len(list_bundle(tmp_path / "m")) == 50
    monkeypatch.setattr(google_tf, "MAX_ENTRIES", 50)
    fails(lambda: list_bundle(tmp_path / "m"), "over 50 entries")
    monkeypatch.setattr(google_tf, "MAX_INDEX_BYTES", 100)
    fails(lambda: list_bundle(tmp_path / "m"), "at most 100 are read")


def test_the_total_is_bounded_and_memory_errors_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer.write_bundle(tmp_path / "m", SMALL)
    monkeypatch.setattr(google_tf, "MAX_TOTAL_BYTES", 39)
    fails(lambda: read_all(tmp_path / "m"), "40 bytes", "limit of 39")
    monkeypatch.setattr(google_tf, "MAX_TOTAL_BYTES", 40)
    assert same(read_all(tmp_path / "m"), SMALL)

    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(google_tf.np, "empty", full)
    fails(lambda: read_all(tmp_path / "m"), "memory")


# Finding


def test_find_by_prefix_file_and_folder(tmp_path: Path) -> None:
    assert find_bundle(tmp_path) is None
    assert find_bundle(tmp_path / "absent" / "m") is None
    prefix = tmp_path / "model.ckpt-best"
    writer.write_bundle(prefix, SMALL)
    (tmp_path / "._model.ckpt-best.index").write_bytes(b"left by an archive")
    for name in ("", ".index", ".data-00000-of-00001", ".meta"):
        assert find_bundle(Path(f"{prefix}{name}")) == prefix
    assert find_bundle(tmp_path / "model") == prefix
    assert find_bundle(tmp_path) == prefix
    assert find_bundle(tmp_path / "other") is None
    assert find_bundle(Path("m\0")) is None


def test_symbolic_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    writer.write_bundle(tmp_path / "store" / "m", SMALL)
    for suffix in (".index", ".data-00000-of-00001"):
        (tmp_path / f"link{suffix}").symlink_to(tmp_path / "store" / f"m{suffix}")
    found = find_bundle(tmp_path)
    assert found == tmp_path / "link"
    assert same(read_all(found), SMALL)


def test_several_checkpoints_are_named(tmp_path: Path) -> None:
    for name in ("a.ckpt", "b.ckpt"):
        writer.write_bundle(tmp_path / name, SMALL)
    fails(lambda: find_bundle(tmp_path), "a.ckpt, b.ckpt", "give the path of one")
    assert find_bundle(tmp_path / "b.ckpt") == tmp_path / "b.ckpt"


# A checkpoint that TensorFlow wrote


@pytest.mark.skipif(not Path(f"{REAL}.index").exists(), reason="the checkpoint is not on this machine")
def test_a_real_checkpoint() -> None:
    assert find_bundle(REAL.parent) == REAL
    listed = list_bundle(REAL)
    tensors = read_all(REAL)
    assert list(tensors) == list(listed)
    assert all(np.isfinite(values).all() for values in tensors.values())
    assert sum(values.size for values in tensors.values()) == 6_698_373
    words = tensors["bert/embeddings/word_embeddings"]
    assert words.shape == (13685, 128)
    assert 0.02 < words.std() < 0.2
    assert abs(float(tensors["bert/encoder/layer_0/output/LayerNorm/gamma"].mean()) - 1) < 0.5
