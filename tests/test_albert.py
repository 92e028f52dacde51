"""The runtime: equal to torch, the same whatever stands beside a text, bounded, and calm about bad input."""

from __future__ import annotations

import dataclasses
import os
import resource
import signal
import subprocess
import sys

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings

from albertkit.albert import Albert
from albertkit.artifact import Artifact, ArtifactMetadata, write_artifact
from albertkit.cli.entry_point import main
from albertkit.config import Options
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel, Batch, pool
from albertkit.model.albert_model import build_head
from albertkit.runtime.batching import group_by_length, token_batches
from albertkit.runtime.embed import split_tokens
from albertkit.runtime.native_embedding import NativeEmbedding
from tests.conftest import english, tiny
from tests.waiting import wait_until

TEXTS = [
    "this is a test",
    "A much longer sentence, with 1,000 words of which only some are here; and more!",
    "",
    "one",
    "In 1990, nobody knew what a transformer would be good for, except for electricians.",
]
ACTIVATIONS = ("gelu", "gelu_new", "relu", "silu", "tanh")


def make(config, heads=("mlm",), labels=2) -> Artifact:
    """An artifact with lively random weights."""
    torch.manual_seed(4)
    model = AlbertModel(config, {name: build_head(name, config, labels=labels) for name in heads})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(mean=1.0 if "norm.weight" in name else 0.0, std=0.15)
    return Artifact(config, model.weights(), english(), ArtifactMetadata())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("runtime") / "one"
    write_artifact(make(tiny(vocab_size=3000, max_position_embeddings=64)), path)
    return path


@pytest.fixture(scope="module")
def albert(folder):
    return Albert(folder, threads=1)


def torch_vectors(artifact, texts, how="mean", depth=None):
    model = AlbertModel.from_artifact(artifact)
    encodings = artifact.tokenizer.encode_batch(texts)
    with torch.no_grad():
        out = model(Batch.of([e.ids for e in encodings]), depth=depth, heads=()).encoded
    vectors = pool(out, how)
    return (vectors / vectors.norm(dim=1, keepdim=True)).numpy()


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [{}, {"num_hidden_groups": 2, "inner_group_num": 2}], ids=["plain", "groups"])
def test_equal_to_torch(shape, activation, tmp_path):
    artifact = make(tiny(vocab_size=3000, hidden_act=activation, **shape))
    write_artifact(artifact, tmp_path / "m")
    albert = Albert(tmp_path / "m", threads=1)
    for how in ("mean", "cls", "max", "pooler"):
        assert np.abs(albert.embed(TEXTS, pooling=how) - torch_vectors(artifact, TEXTS, how)).max() <= 1e-5
    for depth in (1, 2, 7):
        assert np.abs(albert.embed(TEXTS, depth=depth) - torch_vectors(artifact, TEXTS, depth=depth)).max() <= 1e-5


def test_brightmart_equal_to_torch(tmp_path):
    artifact = make(tiny(vocab_size=3000, options=Options(brightmart_layout=True)))
    write_artifact(artifact, tmp_path / "m")
    albert = Albert(tmp_path / "m", threads=1)
    assert np.abs(albert.embed(TEXTS) - torch_vectors(artifact, TEXTS)).max() <= 1e-5
    guesses = albert.fill_mask("this is a [MASK]")[0]
    assert guesses == Albert(tmp_path / "m", device="torch").fill_mask("this is a [MASK]")[0] or guesses[0].score > 0


def test_layers_tokens_and_masks_equal_torch(albert, folder):
    other = Albert(folder, device="torch")
    for layer in (0, 1, 2, 3, -1, -4):
        assert np.abs(albert.embed(TEXTS, layer=layer) - other.embed(TEXTS, layer=layer)).max() <= 1e-5
    mine, theirs = albert.token_vectors(TEXTS), other.token_vectors(TEXTS)
    for a, b, text in zip(mine, theirs, TEXTS, strict=True):
        assert a.ids == b.ids and a.offsets == b.offsets and np.abs(a.vectors - b.vectors).max() <= 1e-4
        for token, (start, end) in zip(a.tokens, a.offsets, strict=True):
            assert end <= len(text) and (token in ("[CLS]", "[SEP]") or start <= end)
    masks = "a [MASK] test with [MASK] words"
    for a, b in zip(albert.fill_mask(masks, k=9), other.fill_mask(masks, k=9), strict=True):
        assert [g.word for g in a] == [g.word for g in b] and abs(a[0].score - b[0].score) < 1e-4
        assert all(g.word and 0 < g.score < 1 for g in a)


@pytest.mark.parametrize("bits", [None, 8, 4])
def test_a_text_does_not_depend_on_its_neighbours(folder, bits):
    albert = Albert(folder, bits=bits, threads=2)
    texts = [" ".join(["word"] * n) + f" {n}" for n in (1, 30, 2, 17, 17, 5, 41, 3, 29, 30)]
    together = albert.embed(texts)
    alone = np.stack([albert.embed(text) for text in texts])
    backwards = albert.embed(texts[::-1])[::-1]
    assert np.abs(together - alone).max() <= 1e-5 and np.abs(together - backwards).max() <= 1e-5


@pytest.mark.parametrize(("bits", "least"), [(8, 0.99), (4, 0.9)])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_quantised_vectors_agree(tmp_path, bits, least, activation):
    artifact = make(tiny(vocab_size=3000, hidden_size=64, intermediate_size=128, hidden_act=activation))
    write_artifact(artifact, tmp_path / "float")
    write_artifact(artifact, tmp_path / "small", bits=bits)
    want = Albert(tmp_path / "float").embed(TEXTS)
    stored = Albert(tmp_path / "small")
    got = stored.embed(TEXTS)
    assert (want * got).sum(axis=1).min() >= least
    at_once = Albert(tmp_path / "float", bits=bits).embed(TEXTS)
    assert (want * at_once).sum(axis=1).min() >= least
    assert stored.metadata.quantization == f"int{bits}"
    with pytest.raises(AlbertkitError, match="is stored as"):
        Albert(tmp_path / "small", bits=12 - bits)


def test_shapes_of_input_and_output(albert):
    assert albert.embed("one").shape == (32,) and albert.embed(["one"]).shape == (1, 32)
    assert albert.embed([]).shape == (0, 32) and albert.embed([], dim=5).shape == (0, 5)
    want = albert.embed(TEXTS)
    for many in (tuple(TEXTS), (t for t in TEXTS), np.array(TEXTS), np.array(TEXTS, object)):
        assert np.array_equal(albert.embed(many), want)
    assert np.allclose(np.linalg.norm(want, axis=1), 1, atol=1e-6) and want.dtype == np.float32
    cut = albert.embed(TEXTS, dim=8)
    assert cut.shape == (5, 8) and np.allclose(np.linalg.norm(cut, axis=1), 1, atol=1e-6)
    plain = albert.embed(TEXTS, normalize=False)
    assert not np.allclose(np.linalg.norm(plain, axis=1), 1, atol=1e-3)
    assert np.array_equal(albert.embed(["a b"], prompt="x: "), albert.embed(["x: a b"]))
    assert isinstance(albert.similarity("a", "b"), float) and albert.similarity("a", "a") == pytest.approx(1, abs=1e-6)
    assert albert.similarity("a", TEXTS).shape == (5,) and albert.similarity(TEXTS).shape == (5, 5)


def test_table_columns(albert):
    for name in ("pandas", "polars"):
        library = pytest.importorskip(name)
        column = library.Series(TEXTS)
        assert np.array_equal(albert.embed(column), albert.embed(TEXTS))
        with pytest.raises(AlbertkitError, match="text 1 is missing"):
            albert.embed(library.Series(["a", None]))


def test_long_texts(albert):
    long = " ".join(f"word{i}" for i in range(200))
    tokens = len(albert.tokenizer.encode(long).ids)
    assert tokens > 3 * albert.max_tokens
    split, cut = albert.embed(long), albert.embed(long, long_texts="truncate")
    assert split.shape == cut.shape == (32,) and np.abs(split - cut).max() > 1e-4
    ids = albert.tokenizer.encode(long, max_length=64).ids
    first = albert.embed(albert.tokenizer.decode(ids), long_texts="truncate")
    assert np.abs(first - cut).max() < 1e-5
    with pytest.raises(AlbertkitError, match="has .* tokens, but the model supports 62"):
        albert.embed(long, long_texts="error")
    for how in ("max", "cls", "pooler"):
        assert np.isfinite(albert.embed(long, pooling=how)).all()
    with pytest.raises(AlbertkitError, match="the limit is 1,000,000"):
        albert.embed("x " * 600_000)
    room = albert.max_tokens - 2
    (windows,) = split_tokens(albert, albert.tokenizer.ids_batch([long]), "split").counts
    assert windows <= 2 * tokens / room + 1  # neighbours share at most half of their tokens
    assert albert.embed("x " * 5_000_000, long_texts="truncate").shape == (32,)  # 10 MB in one line


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: a.embed([None]), "text 0 is missing"),
        (lambda a: a.embed(["a", float("nan")]), "text 1 is missing"),
        (lambda a: a.embed(["a", 3]), "text 1 is an int"),
        (lambda a: a.embed([b"a"]), "decode it first"),
        (lambda a: a.embed(b"a"), "Decode it first"),
        (lambda a: a.embed(3), "texts is an int"),
        (lambda a: a.embed("a", pooling="mena"), "did you mean 'mean'"),
        (lambda a: a.embed("a", layer=9), "layers 0 .the embeddings. to 3"),
        (lambda a: a.embed("a", layer=1, pooling="pooler"), "uses the last layer"),
        (lambda a: a.embed("a", depth=0), "depth is 0"),
        (lambda a: a.embed("a", dim=33), "dim=33 is not"),
        (lambda a: a.embed("a", long_texts="cut"), "long_texts is 'cut'"),
        (lambda a: a.fill_mask("no mask"), r"has no \[MASK\]"),
        (lambda a: a.fill_mask("[MASK]", k=0), "k=0 is out"),
        (lambda a: a.fill_mask("x " * 100 + "[MASK]"), "must fit into 64"),
    ],
)
def test_bad_requests_are_one_sentence(albert, call, message):
    with pytest.raises(AlbertkitError, match=message) as caught:
        call(albert)
    assert "\n" not in str(caught.value)


@given(st.lists(st.text(st.characters(), max_size=60), max_size=6))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_has_a_vector(albert, texts):
    """Lone surrogates, NULs, emoji, nothing at all: a finite unit vector each, and the same one again."""
    found = albert.embed(texts)
    assert found.shape == (len(texts), 32) and np.isfinite(found).all()
    assert np.array_equal(found, albert.embed(texts))


@given(st.lists(st.integers(1, 64), max_size=200), st.integers(64, 2000))
@settings(max_examples=100)
def test_batches_hold_every_text_once_and_waste_little(lengths, budget):
    seen = []
    for batch in group_by_length(lengths, budget, waste=32):
        longest = lengths[batch[0]]
        assert len(batch) == 1 or len(batch) * longest <= budget
        assert sum(longest - lengths[i] for i in batch) <= 32
        seen += batch
    assert sorted(seen) == list(range(len(lengths)))


def test_padding_stays_small_on_real_lengths():
    lengths = np.random.default_rng(0).lognormal(3.3, 0.8, 2000).astype(int).clip(2, 512)
    total = sum(b.ids.size for b in token_batches([[1] * n for n in lengths]))
    assert total / lengths.sum() < 1.05


@pytest.mark.parametrize("model", [None, "small-zh"])
def test_first_vector_imports_only_what_it_needs(model):
    code = (
        "import sys\nfrom albertkit import Albert\n"
        f"v = Albert({model!r}).embed(['a cat', '一只猫'])\n"
        "print(*sorted({m.split('.')[0] for m in sys.modules} - set(sys.stdlib_module_names)))\n"
        "print(*{'asyncio', 'http.client', 'ssl', 'sqlite3', 'urllib.request', 'multiprocessing', 'logging'} & set(sys.modules))\n"
        "print(*[m for m in sys.modules if m.startswith('albertkit.tasks') or m == 'google.protobuf'])"
    )
    packages, slow, tasks = subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()
    needless = {
        "click",
        "google_crc32c",
        "huggingface_hub",
        "ml_dtypes",
        "onnx",
        "safetensors",
        "tokenizers",
        "torch",
        "tqdm",
    }
    if isinstance(Albert(model).engine._embedding, NativeEmbedding):
        needless.add("onnxruntime")
    assert {"albertkit", "numpy"} <= set(packages.split())
    assert not needless & set(packages.split()) and (slow, tasks) == ("", "")


def test_a_generator_of_many_texts_runs_in_bounded_memory(tmp_path):
    """60,000 texts from a generator: the peak grows by little after the first windows."""
    config = tiny(vocab_size=3000, hidden_size=16, num_attention_heads=2, intermediate_size=16, num_hidden_layers=1)
    write_artifact(make(config), tmp_path / "m")
    albert = Albert(tmp_path / "m", threads=1)

    def texts(n):
        for i in range(n):
            yield f"text number {i} of many"

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    for _ in albert.embed_iter(texts(15_000)):
        pass
    before = peak()
    count = sum(1 for _ in albert.embed_iter(texts(60_000)))
    assert count == 60_000 and peak() - before < 40_000  # kilobytes


def test_device_errors(folder):
    if not torch.cuda.is_available():
        with pytest.raises(AlbertkitError, match="torch finds no GPU"):
            Albert(folder, device="cuda")
    with pytest.raises(AlbertkitError, match="cannot use device 'nonsense'"):
        Albert(folder, device="nonsense")
    with pytest.raises(AlbertkitError, match="threads=0 is out"):
        Albert(folder, threads=0)


def test_a_model_without_head_or_pooler_says_so(tmp_path):
    artifact = make(tiny(vocab_size=3000), heads=())
    bare = {n: a for n, a in artifact.weights.items() if ".pooler." not in n}
    write_artifact(dataclasses.replace(artifact, weights=bare), tmp_path / "m")
    for device in ("cpu", "torch"):
        albert = Albert(tmp_path / "m", device=device)
        with pytest.raises(AlbertkitError, match="no masked-language-model head"):
            albert.fill_mask("a [MASK]")
        with pytest.raises(AlbertkitError, match="no pooler"):
            albert.embed("a", pooling="pooler")


# The command line -------------------------------------------------------------------------------------------------


def cli(*args, text="") -> subprocess.CompletedProcess:
    """A line as it is typed; in this process, since starting one takes longer than most verbs."""
    with CliRunner().isolation(input=text) as (output, errors, _), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["albertkit", *map(str, args)])
        with pytest.raises(SystemExit) as end:
            main()
        sys.stdout.flush()
        said = (output.getvalue().decode(), errors.getvalue().decode())
    return subprocess.CompletedProcess(args, end.value.code, *said)


def test_embed_writes_every_kind(folder, tmp_path, albert):
    lines = "\n".join(t for t in TEXTS if t)
    want = albert.embed([t for t in TEXTS if t])
    for kind in ("npy", "jsonl", "parquet"):
        if kind == "parquet":
            pytest.importorskip("pyarrow")
        out = tmp_path / f"v.{kind}"
        done = cli("embed", "-m", folder, "-o", out, text=lines)
        assert done.returncode == 0, done.stderr
        assert np.abs(read_vectors(out) - want).max() < 1e-6
        assert cli("embed", "-m", folder, "-o", out, text=lines).returncode == 2  # exists
        assert cli("embed", "-m", folder, "-o", out, "--force", text=lines).returncode == 0
    piped = cli("embed", "-m", folder, "--dim", "4", text=lines)
    assert len(piped.stdout.splitlines()) == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(f"v.{k}" for k in ("npy", "jsonl", "parquet"))


def read_vectors(path):
    import json

    if path.suffix == ".npy":
        return np.load(path)
    if path.suffix == ".jsonl":
        return np.array([json.loads(line)["vector"] for line in path.read_text(encoding="utf-8").splitlines()])
    import pyarrow.parquet

    return np.stack(pyarrow.parquet.read_table(path)["vector"].to_numpy())


def test_ctrl_c_leaves_what_is_finished(folder, tmp_path):
    out = tmp_path / "v.npy"
    child = subprocess.Popen(
        [sys.executable, "-m", "albertkit.cli.entry_point", "embed", "-m", folder, "-o", out],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # shells start background jobs deaf to it
    )
    try:
        child.stdin.write(b"some text\n" * 20_000)
        child.stdin.flush()
        part = tmp_path / "v.npy.part"
        wait_until(lambda: part.exists() and part.stat().st_size > 200_000)
        os.kill(child.pid, signal.SIGINT)
        message = child.communicate()[1].decode()
    finally:
        child.kill()
    assert child.returncode == 2 and "vectors are in" in message and "To resume" in message, message
    found = np.load(part)
    assert len(found) > 1000 and f"first {len(found)} vectors" in message and np.isfinite(found).all()
    assert not out.exists()


def test_similar_fill_and_quantize(folder, tmp_path):
    done = cli("similar", "-m", folder, "a cat", "a dog", "the law")
    assert done.returncode == 0 and done.stdout.count("1.00") == 3
    done = cli("fill", "-m", folder, "a [MASK] test", "-k", "3")
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 3
    for bits in ("8", "4"):
        done = cli("quantize", folder, tmp_path / bits, "--bits", bits)
        assert done.returncode == 0 and "cosine" in done.stdout, done.stderr
        assert cli("embed", "-m", tmp_path / bits, "hello").returncode == 0
        assert cli("info", tmp_path / bits).returncode == 0
    again = cli("quantize", tmp_path / "8", tmp_path / "x")
    assert again.returncode == 2 and "already stored as int8" in again.stderr
