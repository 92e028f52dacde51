"""PyTorch files are read without torch: equal to torch.load, or one clear error."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from albertkit.errors import AlbertkitError
from albertkit.interop.pickle_file import open_pickle
from albertkit.interop.pickle_interpreter import run_pickle
from albertkit.tensor_file import StoredTensor, check_separate

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def compare(found, expected):
    """Tensors have the numbers that torch reads; floats become float32."""
    for name, value in expected.items():
        if isinstance(value, dict):
            compare(found[str(name)], value)
        elif isinstance(value, torch.Tensor):
            wanted = value.detach().float() if value.is_floating_point() else value.detach()
            read = found[name].read()
            assert read.dtype == wanted.numpy().dtype and read.shape == tuple(wanted.shape), name
            assert (read == wanted.numpy()).all(), name
        elif isinstance(value, int | float | str | list | None):
            assert found[str(name)] == value
        else:
            assert str(name) in found


def check_equal(path, data, **options):
    torch.save(data, path, **options)
    expected = torch.load(path, weights_only=False)  # the other loader does not know protocol 4
    with open_pickle(path) as found:
        compare(found, expected)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_equal_to_torch(tmp_path, legacy, protocol):
    table = torch.arange(60.0).reshape(6, 10)
    base = torch.arange(24.0)
    module = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    data = {
        **{str(dtype): torch.arange(6).to(dtype).reshape(2, 3) for dtype in (*FLOATS, *INTEGERS)},
        "transposed": table.T,
        "columns": table[:, 2:5],
        "first": base[:10],
        "second": base[10:],
        "scalar": torch.tensor(3.0),
        "empty": torch.zeros(0, 4),
        "parameter": nn.Parameter(torch.ones(2)),
        "state": module.state_dict(),
        "optimizer": optimizer.state_dict(),
        "plain": {"size": table.shape, "step": 7, "loss": 0.5, "none": None, "long": 2**70, "list": [1, 2]},
        "ordered": OrderedDict([("a", torch.ones(1))]),
    }
    options = {"pickle_protocol": protocol, "_use_new_zipfile_serialization": not legacy}
    check_equal(tmp_path / "x.pth", data, **options)


@settings(max_examples=40)
@given(
    shape=st.lists(st.integers(0, 5), max_size=4),
    order=st.randoms(),
    dtype=st.sampled_from([*FLOATS, *INTEGERS]),
    legacy=st.booleans(),
)
def test_any_tensor_equals_torch(tmp_path_factory, shape, order, dtype, legacy):
    axes = list(range(len(shape)))
    order.shuffle(axes)
    tensor = torch.arange(int(np.prod(shape)) or 0).to(dtype).reshape(shape).permute(axes)
    cut = tensor[1:] if tensor.ndim else tensor
    path = tmp_path_factory.mktemp("any") / "x.pth"
    check_equal(path, {"a": tensor, "b": cut.clone(), "c": cut}, _use_new_zipfile_serialization=not legacy)


def test_tensors_that_share_bytes_are_found(tmp_path):
    table = torch.zeros(4, 4)
    torch.save({"a": table, "b": table[1:], "c": table.clone()}, tmp_path / "x.pth")
    with open_pickle(tmp_path / "x.pth") as found, pytest.raises(AlbertkitError, match="'a' and 'b' share bytes"):
        check_separate(found)
    with open_pickle(tmp_path / "x.pth") as found:
        check_separate({name: found[name] for name in ("a", "c")})


def test_a_flipped_bit_in_a_tensor_is_an_error(tmp_path):
    torch.save({"a": torch.arange(100.0)}, tmp_path / "x.pth")
    data = bytearray((tmp_path / "x.pth").read_bytes())
    data[data.index(np.arange(100.0, dtype="<f4").tobytes()) + 40] ^= 1
    (tmp_path / "x.pth").write_bytes(data)
    with open_pickle(tmp_path / "x.pth") as found, pytest.raises(AlbertkitError, match="checksum"):
        found["a"].read()


def write_pickle(path, data: bytes):
    """A file in the old format whose content is this pickle."""
    head = b"".join(pickle.dumps(v, 2) for v in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}))
    path.write_bytes(head + data + pickle.dumps([], 2))


@pytest.mark.parametrize("name", ["os system", "builtins eval", "torch load", "torch._utils _rebuild_sparse_tensor"])
def test_other_functions_are_refused(tmp_path, name):
    write_pickle(tmp_path / "x.pth", b"\x80\x02c" + name.replace(" ", "\n").encode() + b"\n)R.")
    match = f"could run code \\({name.replace(' ', '.')}\\)"
    with pytest.raises(AlbertkitError, match=match), open_pickle(tmp_path / "x.pth"):
        pass


def dict_in_itself() -> bytes:
    return b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s."


def nested_triples() -> bytes:
    """A dict of three dicts of three dicts …: 14 levels of the same objects, five million values."""
    data = b"\x80\x02}q\x00"
    for level in range(1, 15):
        items = b"".join(b"X\x01\x00\x00\x00" + key + b"h" + bytes([level - 1]) for key in (b"a", b"b", b"c"))
        data += b"}q" + bytes([level]) + b"(" + items + b"u"
    return data + b"."


@pytest.mark.parametrize("make", [dict_in_itself, nested_triples])
def test_nested_dicts_are_bounded(tmp_path, make):
    write_pickle(tmp_path / "x.pth", make())
    match = "nested over 16 deep or have over 100,000 values"
    with pytest.raises(AlbertkitError, match=match), open_pickle(tmp_path / "x.pth"):
        pass


TUPLES = b")q\x00" + b"".join(b"h" + bytes([i]) + b"h" + bytes([i]) + b"\x86q" + bytes([i + 1]) for i in range(24))
REBUILD = b"ctorch._utils\n_rebuild_tensor\n"
STORAGE = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\n"
TAIL = b"X\x03\x00\x00\x00cpuK\x01t"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"}" + TUPLES + b"K\x01s.", "keys that are no names"),
        (b"}" + STORAGE + TUPLES + TAIL + b"Q.", "a storage is described"),
        (
            b"}" + REBUILD + b"(" + STORAGE + b"K\x00" + TAIL + b"QK\x00" + TUPLES + TUPLES + b"tR.",
            "a tensor is described",
        ),
    ],
    ids=["key", "storage", "shape"],
)
def test_tuples_of_tuples_are_neither_hashed_nor_shown(tmp_path, data, words):
    """Each contains the one before it twice: as text they would have 16 million parts."""
    write_pickle(tmp_path / "x.pth", b"\x80\x02" + data)
    with pytest.raises(AlbertkitError, match=words), open_pickle(tmp_path / "x.pth"):
        pass


def test_a_list_is_not_copied_into_many_dicts(tmp_path):
    items = pickle.dumps([(str(i), i) for i in range(1000)], 2)[2:-1]
    call = b"ccollections\nOrderedDict\nr\xff\xff\x00\x00" + items + b"\x85r\xfe\xff\x00\x00"
    data = b"\x80\x02" + call + b"j\xff\xff\x00\x00j\xfe\xff\x00\x00R" * 1000 + b"."
    write_pickle(tmp_path / "x.pth", data)
    with pytest.raises(AlbertkitError, match="over 100,000 items"), open_pickle(tmp_path / "x.pth"):
        pass
    one = b"\x80\x02ccollections\nOrderedDict\n" + items + b"\x85R."
    write_pickle(tmp_path / "x.pth", one)
    with open_pickle(tmp_path / "x.pth") as found:
        assert found["999"] == 999


@settings(max_examples=300)
@given(st.binary(max_size=60), st.sampled_from([b"", b"\x80\x02", b"\x80\x02}(", b"\x80\x02]"]))
def test_any_bytes_are_a_value_or_an_error(tmp_path_factory, data, start):
    path = tmp_path_factory.getbasetemp() / "any.pth"
    write_pickle(path, start + data + b".")
    try:
        with open_pickle(path) as found:
            assert isinstance(found, dict)
    except AlbertkitError as error:
        assert "\n" not in str(error)


def test_the_interpreter_reads_what_pickle_writes():
    data = {"a": [1, 2.5, "x", None, True, (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)], "b": {"c": -5, "d": 10**30}}
    for protocol in (2, 3, 4):
        assert run_pickle(io.BytesIO(pickle.dumps(data, protocol))) == data


def test_no_torch_is_needed(tmp_path):
    torch.save({"a": torch.ones(3)}, tmp_path / "x.pth")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path; from albertkit.interop.pickle_file import open_pickle\n"
        "with open_pickle(Path(sys.argv[1])) as found: print(found['a'].read().sum())"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "x.pth"], capture_output=True, text=True)
    assert done.stdout.strip() == "3.0", done.stderr


def test_what_is_no_pytorch_file_is_refused(tmp_path):
    for data in (b"", b"PK\3\4", b"PK\5\6" + bytes(18), pickle.dumps({"a": 1}), b"\x80\x02."):
        (tmp_path / "x.pth").write_bytes(data)
        with pytest.raises(AlbertkitError, match="not a complete PyTorch file"), open_pickle(tmp_path / "x.pth"):
            pass
    torch.save([torch.ones(1)], tmp_path / "x.pth")
    with pytest.raises(AlbertkitError, match="a state dict of tensors is needed"), open_pickle(tmp_path / "x.pth"):
        pass
    torch.save({"a": torch.ones(1)}, tmp_path / "x.pth")
    with open_pickle(tmp_path / "x.pth") as found:
        assert isinstance(found["a"], StoredTensor)
