"""The page about the options beyond canonical ALBERT: for `generate.py`. Every number in it is counted by
`compress/cost.py`.

In: nothing. Out: the text of docs/options.md. What the options are worth is measured by studies/ablation.py, and stands
in docs/ablation.md.
"""

from __future__ import annotations

from typing import Any

from albertkit.compress.cost import shape_cost
from albertkit.config import AlbertConfig, Options, preset

NOTE = "<!-- Written by `make docs`; do not edit. -->\n"
LENGTHS = (128, 512)
COSTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "none": ({}, {}),
    "low_rank=32": ({"low_rank": 32}, {}),
    "window=64": ({"window": 64}, {}),
    "window=64 global_every=3": ({"window": 64, "global_every": 3}, {}),
    "shared_heads=true": ({"shared_heads": True}, {}),
    "attention_bias=head": ({"attention_bias": "head"}, {}),
    "attention_bias=relative": ({"attention_bias": "relative"}, {}),
    "gru=true": ({"gru": True}, {}),
    "norm=document": ({"norm": "document"}, {}),
    "classifier=mean": ({"classifier": "mean"}, {}),
    "scale_embedding=true": ({"scale_embedding": True}, {}),
    "(shape) 4 groups": ({}, {"num_hidden_groups": 4}),
    "(shape) 12 groups: no sharing": ({}, {"num_hidden_groups": 12}),
    "(shape) k = 64": ({}, {"embedding_size": 64}),
    "(shape) k = 256": ({}, {"embedding_size": 256}),
    "(shape) k = H": ({}, {"embedding_size": 768}),
}

TEXT = """# Options beyond ALBERT

The documents this project started from describe more than ALBERT, and disagree with it and with each other. Canonical ALBERT is the default. What they add is here as options, all off by
default, each with its formula made well-defined, and each usable in pre-training, fine-tuning, the runtime, 8 and 4 bits, pruning, ONNX export, the view inside and the server. What each is
worth is [measured](ablation.md) at one budget, by `studies/ablation.py`; what the documents say besides stands [claim by claim](documents.md) on a page of its own.

```bash
albertkit pretrain shards -o run --shape small --option gru=true --option attention_bias=relative
albertkit plan base --option low_rank=32 --option window=64 --option global_every=3 --length 512
```

The size k of the embeddings and the number of groups are part of the shape: `albertkit plan base --json` shows one, and `--shape my.json` takes one of your own.

Options are stored in `config.json` under the key `albertkit`, with `model_type` `albertkit`, so that other programs refuse the folder instead of computing something else. A model keeps the
options it was begun with: fine-tuning, quantising and exporting take them from its folder. In Python: `preset("base").replace(options=Options(low_rank=32))`.

Letters: H hidden size, d width of a head, n tokens, Q, K, V of one head are (n, d).

## Low-rank attention: `low_rank` (document 000)

**Said:** ALBERT factorises attention, softmax(Q·A·Kᵀ/√d_k)·(B·V), with A (d_k, d_a) and B (d_a, d_v). ALBERT does not; and Q·A·Kᵀ multiplies (n, d_a) with (d_k, n), B·V (d_a, d_v) with (n, d_v):
neither product exists. Its steps say something else again, Q·A and K·A with √d_a, which fit, and B·V, which does not.

**Here:** softmax((Q·A)(K·B)ᵀ/√d_a)·(V·C)·D, with A, B, C (d, d_a) and D (d_a, d), stored as `attention.low.query`, `low.key`, `low.value` and `low.lift`. One set serves all heads of a layer, as
the document writes one A and one B; a set for each head could express no more than narrower heads can. Keys have a matrix of their own, which begins as a copy of A; one for both, as in the document's steps, could express as much, since Q and K have learnt matrices before it. The scale is √d_a, since a score is now a sum of d_a products. d_a is below d.

**Cost:** parameters rise by 4·d·d_a. Since (X·W)·A = X·(W·A), A is multiplied into the matrix of the queries once, and so on, in torch and in the runtime: heads are d_a wide where they are
computed, and operations fall. 8-bit matrices are rounded once more for it when the model is opened.

**Test:** `tests/model/test_options.py::test_attention_is_its_formula`

## Local and global attention: `window`, `global_every` (document 002)

**Said:** a mechanism of local perception taken from AlexNet, beside global attention: Softmax(LocalAttention(Q, K, V)), where LocalAttention is not defined; and attention without √d_k. There is no AlexNet in ALBERT.

**Here:** token i sees token j where |i − j| ≤ window, or where i or j is the first token; scores are scaled by √d. With `global_every` = g, layers g, 2g, 3g … (counted from 1) see everything; 0 means
that none does. Distances count the tokens of a text.

**Cost:** no parameters. In torch, beyond three windows, blocks of `window` queries look at three blocks of keys and the first token, so a token costs 3·window + 2 keys instead of n. Up to there,
and in the runtime and exported files at every length, a mask is used, which saves no time. The runtime has one graph with an input that says which kind of layer it is, so weights are held once.

**Test:** `tests/model/test_options.py::test_attention_is_its_formula`, `tests/model/test_options.py::test_blocks_over_padding_are_the_same_as_alone`

## Parameters shared across heads: `shared_heads` (document 002)

**Said:** parameters are shared across heads. In ALBERT they are shared across layers. With one Q, K and V for all heads, all heads would be the same head.

**Here:** queries are each head's own; one matrix of keys and one of values, (d, H) each, serve all heads: head_h = softmax(Q_h·Kᵀ/√d)·V, with the output matrix as ever. (Shazeer, arXiv 1911.02150,
found this for decoders, where it saves memory.)

**Cost:** parameters fall by 2·(H − d)·(H + 1) a layer that is stored, operations by 4·(H − d)·H a token and layer; attention over the text costs the same.

**Test:** `tests/model/test_options.py::test_attention_is_its_formula`

## A learnable bias θ: `attention_bias`, `relative_reach` (document 004)

**Said:** softmax(QKᵀ/√d_k + θ)·V with a learnable θ, which saves computing. A θ that is added to all scores of a row changes nothing under softmax, and any other one adds operations.

**Here:** `head`: one θ a head on the score of the first token, so that a head can learn how much it rests there. `relative`: one θ for each head and each distance j − i, cut off at ±`relative_reach`
(64 unless given). Both begin at 0, where they change nothing.

**Cost:** one parameter a head, or 2·`relative_reach` + 1; one addition more for each score.

**Test:** `tests/model/test_options.py::test_attention_is_its_formula`

## A GRU in front: `gru` (document 003)

**Said:** ALBERT combines a recurrent network with the transformer; H = RNN(X), Y = Transformer(H). It does not, and the document's code calls `nn.Transformer` without its second input, and raises.

**Here:** x + GRU(x), one layer of width H, from the first token to the last, between the embeddings (after their projection to H) and the first shared layer. One direction, as in the document: attention looks both
ways anyway, nothing can leak from padding behind a text, and no token learns of later ones. Added to its input, so that a fresh model begins near one without it. Stored in 8 bits, computed in float32.

**Cost:** 6·H² + 6·H parameters and 12·H² operations a token, once and not in each layer. Its tokens are computed one after the other, so it takes more time than its operations say.

**Test:** `tests/model/test_options.py::test_the_gru_is_torchs_and_knows_no_later_token`

## The document's norm: `norm=document` (document 003)

**Said:** LayerNorm is (x − μ)/(σ + ε), with torch's σ, which divides by n − 1. It is (x − μ)/√(variance + ε), where the variance divides by n.

**Here:** the document's formula wherever a LayerNorm stands, scaled and shifted as ever. With ε = 1e-12 it differs from LayerNorm by the factor √((n − 1)/n), which the scale can learn; and ε no longer keeps the gradient
of a token of equal numbers finite, so the root is cut off below.

**Cost:** none in parameters or operations; runtimes have one operator for LayerNorm, and need several for this.

**Test:** `tests/model/test_options.py::test_the_documents_norm_and_its_gradient_for_equal_numbers`

## A mean instead of the pooler: `classifier=mean` (document 001)

**Said:** the sentence vector is pooled from the last hidden states, by their mean for instance. ALBERT reads tanh of a dense layer over the first token.

**Here:** heads that judge a whole text (`classify`, `choose`, sentence order) read the mean of its tokens. There is no pooler then, and `pooling="pooler"` is refused.

**Cost:** H² + H parameters fewer, and the pooler's operations once a text; the last layer must compute all tokens, where a pooler needs the first alone.

**Test:** `tests/model/test_options.py::test_the_mean_classifier_reads_the_mean`

## Settings of training, and of shapes

| name | document | said | here | cost | test |
|---|---|---|---|---|---|
| `scale_embedding` (option) | 004 | a hyperparameter that speeds learning up | word vectors times √E before positions and segments are added | E multiplications a token | `tests/train/test_pretrain_losses.py::test_the_scale_is_the_root_of_the_embedding_size` |
| `--layer-decay` | 004 | `layer_decay_rate` multiplies the learning rate | the shared weights have one rate; each earlier use of the layer gives its gradient times the rate, the last one whole | in training only: for each use a copy of the layer's weights, and three operations a weight | `tests/train/test_pretrain_losses.py::test_layer_decay_weighs_each_use_of_the_shared_layer` |
| `--consistency-weight`, `--consistency-similarity` | 001 | L = L_MLM + λ·Σ log σ(sim(Hⁱ, Hʲ)), to be minimised | the sign turned round, so that likeness is rewarded, and a mean over pairs of layers and tokens; sim is `cosine` or `dot` | in training only: the hidden states of all layers are kept, and H multiplications a token and pair of layers | `tests/model/test_options.py::test_consistency_by_cosine_and_by_product` |
| `num_hidden_groups` (shape) | 001 | ⌊N/m⌋ layers a group | layer i uses group i·m // N; groups may be uneven | m layers are stored; operations stay | `tests/test_config.py::test_groups_follow_the_published_rule` |
| `embedding_size` (shape) | 001, 003 | reduces parameters E/k times | V·H → V·k + k·H | 2·k·H operations a token for the projection | `tests/test_config.py::test_presets_have_the_published_counts` |

## What they cost

Base shape, counted by `albertkit plan base --option …`. Operations are multiplications and additions for one token, in millions.

"""

REFUSED = """
## What is refused, and why

| combination | by | why |
|---|---|---|
| `low_rank` of a head's width or more | the config | it would be no lower rank |
| `global_every` without `window`, or 1 | the config | all layers would be global |
| `window` above 2,048 | the config | a block of queries meets three of keys, so that memory grows with its square |
| `relative_reach` without `attention_bias=relative` | the config | nothing would read it |
| `norm=document` where E or H is 1 | the config | one number has no σ |
| `static` with any other option | the config | a table has no layers |
| `prune --heads` with `shared_heads` or `attention_bias` | `prune` | their heads have one matrix or one table together; `--ffn`, `--layers` and `--vocabulary` work |
| `pretrain --option` with `--model` | `pretrain` | a model keeps the options it was begun with |
| `plan --option` with a limit | `shape_cost` | give a folder, whose options are used |
| `finetune generate` with any but `scale_embedding` | `finetune` | texts are written word by word, with graphs of their own |
| training for few bits, and students that copy a teacher's layers, with any but `scale_embedding` | their verbs | they watch canonical attention |
| `pooling="pooler"` with `classifier=mean` | `embed` | there is no pooler |
| any option in transformers or sentence-transformers | their readers, `export` | they would compute something else; export ONNX instead |

All other combinations work. `tests/runtime/test_graph.py` draws combinations at random, and each is refused by the config or gives the same vectors in torch, in the runtime and in the view inside;
`tests/model/test_options.py` compares each option with its formula written out plainly, and trains with it.
"""


def cost_table() -> list[str]:
    """Parameters and operations of each option at base."""
    base = preset("base")
    heads = ["option", "parameters", "difference", *(f"operations at {n} tokens" for n in LENGTHS), "int8"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    whole = shape_cost(base).parameters["total"]
    for name, (options, shape) in COSTS.items():
        config: AlbertConfig = base.replace(**shape, options=Options(**options))
        made = [shape_cost(config, length) for length in LENGTHS]
        total = made[0].parameters["total"]
        operations = [f"{m.operations['total'] / 1e6:,.1f}" for m in made]
        shown = [
            f"`{name}`" if "=" in name and "(" not in name else name,
            f"{total:,}",
            f"{total - whole:+,}",
            *operations,
        ]
        lines.append("| " + " | ".join([*shown, f"{made[0].bytes['int8'] / 1e6:.2f} MB"]) + " |")
    return lines


def page() -> str:
    """docs/options.md."""
    return NOTE + "\n" + TEXT + "\n".join(cost_table()) + "\n" + REFUSED
