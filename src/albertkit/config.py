"""The shape of a model: `AlbertConfig`, and the table of presets. The defaults are canonical ALBERT.

In: a `config.json` with the public ALBERT names, or a preset name. Out: one frozen, validated `AlbertConfig`.
Extensions of ALBERT are in `options.py`. `weights.py` lists the tensors of a config.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from albertkit.errors import AlbertkitError, check_choice, check_keys, nearest, type_with_article
from albertkit.options import Options, read_options

__all__ = ["PRESETS", "AlbertConfig", "Options", "preset"]

# Public name of an activation → our name. The original code calls the tanh form `gelu`. transformers calls it
# `gelu_new`, and uses `gelu` for the erf form. `config.json` follows transformers.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "gelu_fast": "gelu_new",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}

# Largest value of each size. With the two limits below, they bound the memory that a malicious config.json can take.
LIMITS = {
    "vocab_size": 4_000_000,
    "embedding_size": 65_536,
    "hidden_size": 65_536,
    "num_hidden_layers": 1_024,
    "num_hidden_groups": 1_024,
    "num_attention_heads": 4_096,
    "intermediate_size": 262_144,
    "inner_group_num": 64,
    "max_position_embeddings": 1_048_576,
    "type_vocab_size": 1_024,
}
TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id")
MAX_LAYERS = 1_024  # layers times layers inside a group
MAX_PARAMETERS = 4_000_000_000  # 16 GB; xxlarge without sharing has 2.4 billion


@dataclass(frozen=True)
class AlbertConfig:
    """The content of `config.json`, validated. The defaults are `base`, version 2.

    >>> from albertkit import AlbertConfig
    >>> config = AlbertConfig(hidden_size=384, num_attention_heads=6, intermediate_size=1536)
    >>> config.replace(num_hidden_layers=6).num_hidden_layers
    6
    """

    vocab_size: int = 30_000
    """Number of tokens in the vocabulary, V."""
    embedding_size: int = 128
    """Embedding size, E."""
    hidden_size: int = 768
    """Hidden size, H."""
    num_hidden_layers: int = 12
    """Number of layers, L: how often the shared layer is applied."""
    num_hidden_groups: int = 1
    """Groups of layer weights, m; layer i uses group i·m // L."""
    num_attention_heads: int = 12
    """Number of attention heads; it divides H, unless the option `head_size` is set."""
    intermediate_size: int = 3_072
    """Size of the feed-forward part, F."""
    inner_group_num: int = 1
    """Layers inside one group, applied in turn."""
    hidden_act: str = "gelu_new"
    """Activation of the feed-forward part and of the MLM head."""
    hidden_dropout_prob: float = 0.0
    """Dropout after the embeddings, the attention output and the feed-forward output."""
    attention_probs_dropout_prob: float = 0.0
    """Dropout on the attention weights."""
    classifier_dropout_prob: float = 0.1
    """Dropout before a task head."""
    max_position_embeddings: int = 512
    """Maximum length in tokens."""
    type_vocab_size: int = 2
    """Number of segments."""
    initializer_range: float = 0.02
    """Standard deviation of new weights."""
    layer_norm_eps: float = 1e-12
    """ε inside the square root of LayerNorm."""
    pad_token_id: int = 0
    bos_token_id: int = 2
    eos_token_id: int = 3
    options: Options = field(default_factory=Options)
    """Extensions of ALBERT, under the key `albertkit`."""

    def __post_init__(self) -> None:
        for name, limit in LIMITS.items():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= limit:
                raise AlbertkitError(f"{name} is {value!r}; it must be a whole number from 1 to {limit:,}")
        if not isinstance(self.options, Options):
            raise AlbertkitError(f"options is {type(self.options).__name__}; it must be an Options")
        if self.hidden_size % self.num_attention_heads and not self.options.head_size:
            heads = self.num_attention_heads
            raise AlbertkitError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {heads}; change one of them"
            )
        if self.options.low_rank >= self.head_size:
            rank = self.options.low_rank
            raise AlbertkitError(f"option low_rank is {rank}; it must be below the head size {self.head_size}")
        self._check_values_and_output()
        if self.options.norm == "document" and min(self.embedding_size, self.hidden_size) < 2:
            raise AlbertkitError("option norm is 'document', which needs embedding_size and hidden_size of 2 or more")
        self._check_groups()
        if (layers := self.num_hidden_layers * self.inner_group_num) > MAX_LAYERS:
            raise AlbertkitError(
                f"num_hidden_layers {self.num_hidden_layers} with inner_group_num {self.inner_group_num} is a model of "
                f"{layers:,} layers; the limit is {MAX_LAYERS:,}: lower one of them"
            )
        check_choice("hidden_act", self.hidden_act, ACTIVATIONS)
        object.__setattr__(self, "hidden_act", ACTIVATIONS[self.hidden_act])
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob"):
            self._number(name, 0.0, 1.0, "from 0 up to, not including, 1")
        self._number("layer_norm_eps", 1e-20, 1.0, "between 1e-20 and 1")
        self._number("initializer_range", 0.0, 10.0, "from 0 to 10")
        for name in TOKEN_IDS:
            if type(getattr(self, name)) is not int or getattr(self, name) < 0:
                raise AlbertkitError(f"{name} is {getattr(self, name)!r}; it must be a token id, 0 or above")
        heads = 2 * (self.head_size + self.value_size) * self.num_attention_heads  # queries, keys, values, output
        wide = max(self.intermediate_size, self.options.outer_intermediate_size)
        layer = self.hidden_size * (heads + self.ffn_matrices * wide * self.ffns_per_group)
        tables = self.embedding_size * (self.vocab_size + self.max_position_embeddings)
        tables += 6 * self.hidden_size**2 * (self.options.gru_layers if self.options.gru else 0)
        total = tables + layer * self.layer_groups * self.inner_group_num
        if total > MAX_PARAMETERS:
            raise AlbertkitError(f"this shape has {total:,} parameters; the limit is {MAX_PARAMETERS:,}: lower a size")

    def _check_groups(self) -> None:
        """Each group is used, and so is each layer of the prelude and the coda."""
        options, layers, groups = self.options, self.num_hidden_layers, self.num_hidden_groups
        if options.outer_intermediate_size == self.intermediate_size:
            raise AlbertkitError(
                f"option outer_intermediate_size is {self.intermediate_size}, which is the intermediate_size. Omit it."
            )
        if self.layer_groups > groups and self.layer_groups > layers:
            raise AlbertkitError(
                f"num_hidden_layers is {layers}; with prelude_layers {options.prelude_layers}, coda_layers "
                f"{options.coda_layers} and num_hidden_groups {groups}, it must be {self.layer_groups} or more"
            )
        if groups > layers:
            raise AlbertkitError(f"num_hidden_groups {groups} exceeds num_hidden_layers {layers}; lower it")
        ffns, core = options.ffn_groups, layers - self.layer_groups + groups
        if ffns and (ffns % groups or not groups < ffns <= core):
            raise AlbertkitError(
                f"option ffn_groups is {ffns}; it must be a multiple of num_hidden_groups above {groups}, and up to "
                f"{core}, the layers that share attention"
            )

    def _check_values_and_output(self) -> None:
        """The options `value_size` and `output_rank`, which depend on the shape."""
        options = self.options
        if options.value_size == self.head_size:
            raise AlbertkitError(f"option value_size is {options.value_size}, which is the head size. Omit it.")
        if options.value_size and options.low_rank >= options.value_size:
            raise AlbertkitError(
                f"option low_rank is {options.low_rank}; it must be below the size of values, {options.value_size}"
            )
        if options.output_rank >= self.hidden_size:
            raise AlbertkitError(
                f"option output_rank is {options.output_rank}; it must be below hidden_size {self.hidden_size}"
            )

    def _number(self, name: str, low: float, high: float, rule: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value < high:
            raise AlbertkitError(f"{name} is {value!r}; it must be a number {rule}")
        object.__setattr__(self, name, float(value))

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.options.head_size or self.hidden_size // self.num_attention_heads

    @property
    def attention_size(self) -> int:
        """Width of all heads together, A: equal to H unless heads were pruned."""
        return self.head_size * self.num_attention_heads

    @property
    def score_size(self) -> int:
        """Width of a head's queries and keys: the head size, or the rank of low-rank attention."""
        return self.options.low_rank or self.head_size

    @property
    def value_size(self) -> int:
        """Width of a head's values, d_v: the head size, unless the option `value_size` is set."""
        return self.options.value_size or self.head_size

    @property
    def context_size(self) -> int:
        """Width of a head's context: that of its values, or the rank of low-rank attention."""
        return self.options.low_rank or self.value_size

    @property
    def key_heads(self) -> int:
        """Number of key and value heads."""
        return 1 if self.options.shared_heads else self.num_attention_heads

    @property
    def ffn_matrices(self) -> int:
        """Number of matrices in the feed-forward part: up and down, and with the option `gated_ffn` a gate."""
        return 3 if self.options.gated_ffn else 2

    @property
    def layer_groups(self) -> int:
        """Number of sets of layer weights: one per prelude layer, the groups of the core, one per coda layer."""
        return self.options.prelude_layers + self.num_hidden_groups + self.options.coda_layers

    def ffn_size(self, group: int) -> int:
        """Size of the feed-forward part of a group: F, unless prelude and coda have another one."""
        outer = 0 if self.is_core(group) else self.options.outer_intermediate_size
        return outer or self.intermediate_size

    @property
    def ffns_per_group(self) -> int:
        """Number of feed-forward parts of each group of the core: 1, unless the option `ffn_groups` is set."""
        return max(1, self.options.ffn_groups // self.num_hidden_groups)

    def ffn_count(self, group: int) -> int:
        """Number of feed-forward parts of a group."""
        return self.ffns_per_group if self.is_core(group) else 1

    def is_core(self, group: int) -> bool:
        """Whether a group belongs to the core, and not to prelude or coda."""
        return 0 <= group - self.options.prelude_layers < self.num_hidden_groups

    def coda_start(self, depth: int) -> int:
        """Number of layers before the coda, if `depth` layers are applied."""
        return max(min(depth, self.options.prelude_layers), depth - self.options.coda_layers)

    def group_of(self, layer: int, depth: int | None = None) -> int:
        """The group whose weights layer `layer` uses, if `depth` layers are applied (default: all of the model).

        Prelude layers have the first groups, coda layers the last, and layers beyond the core its last group. The
        published rule is int(i / L · m). Integer division gives the same group for every public checkpoint. It
        also avoids rounding errors that would leave a group unused in rare shapes (22 groups of 22 layers).
        """
        before = self.options.prelude_layers
        coda = self.coda_start(max(layer + 1, self.num_hidden_layers) if depth is None else depth)
        if layer < before:
            return layer
        if layer >= coda:
            return before + self.num_hidden_groups + layer - coda
        return before + self._core_part(layer, self.num_hidden_groups)

    def ffn_of(self, layer: int, depth: int | None = None) -> int:
        """The feed-forward part of its group that layer `layer` uses, if `depth` layers are applied."""
        if not self.is_core(self.group_of(layer, depth)):
            return 0
        return self._core_part(layer, self.num_hidden_groups * self.ffns_per_group) % self.ffns_per_group

    def _core_part(self, layer: int, parts: int) -> int:
        """The part of the core that a layer of the core is in, if the core has `parts` parts."""
        before = self.options.prelude_layers
        core = self.num_hidden_layers - before - self.options.coda_layers
        return min(layer - before, core - 1) * parts // core

    def replace(self, **changes: int | float | str | Options) -> AlbertConfig:
        """A validated copy with some fields changed."""
        field_names = {f.name for f in dataclasses.fields(self)}
        check_keys("config field", changes, field_names)
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Any]:
        """The content of `config.json`, under the public names."""
        public = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "options"}
        # Our own model type prevents transformers from opening a model with options and computing something else.
        public["model_type"] = "albertkit" if self.options.active() else "albert"
        if self.options.active():
            public["albertkit"] = {name: getattr(self.options, name) for name in self.options.active()}
        return public

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AlbertConfig:
        """Read a `config.json`. Unknown keys are errors; known extra keys of other projects are ignored."""
        if not isinstance(data, Mapping):
            raise AlbertkitError(f"config.json contains {type_with_article(data)}; it must be a JSON object")
        field_names = {f.name for f in dataclasses.fields(cls)} - {"options"}
        check_keys("key", data, {"albertkit", *field_names, *REQUIRED_VALUES, *FOREIGN_KEYS}, " in config.json")
        values: dict[str, Any] = {}
        for key, value in data.items():
            if key in field_names:
                values[key] = value
            elif key == "albertkit":
                values["options"] = read_options(value)
            elif key in REQUIRED_VALUES and value not in REQUIRED_VALUES[key]:
                allowed = " or ".join(map(repr, REQUIRED_VALUES[key]))
                raise AlbertkitError(f"{key} is {value!r} in config.json; in an ALBERT it must be {allowed}")
        missing = [name for name in SHAPE_KEYS if name not in values]
        if missing:
            raise AlbertkitError(f"config.json lacks {', '.join(missing)}, which define the model's shape. Add them.")
        return cls(**{name: value for name, value in values.items() if name not in TOKEN_IDS or value is not None})


# Required keys: different programs have different defaults for them.
SHAPE_KEYS = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")

# Keys of other projects that change the computation. Only these values are supported.
REQUIRED_VALUES: dict[str, tuple[Any, ...]] = {
    "model_type": ("albert", "albertkit"),
    "position_embedding_type": ("absolute",),
    "down_scale_factor": (1,),
    "net_structure_type": (0,),
    "num_memory_blocks": (0,),
    "gap_size": (0,),
    "ln_type": ("postln",),
    "is_decoder": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
    "pruned_heads": ({},),
}

# sentence-transformers writes one of these, by its version, for a classifier of pairs.
CROSS_ENCODER_KEYS = ("sbert_ce_default_activation_function", "sentence_transformers")

# Keys of other projects that do not change the encoder's output.
FOREIGN_KEYS = frozenset([
    "_name_or_path", "_attn_implementation", "_attn_implementation_autoset", "architectures", "auto_map",
    "bad_words_ids", "begin_suppress_tokens", "chunk_size_feed_forward", "cross_attention_hidden_size",
    "custom_pipelines", "decoder_start_token_id", "directionality", "diversity_penalty", "do_sample", "dtype",
    "early_stopping", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "finetuning_task",
    "forced_bos_token_id", "forced_eos_token_id", "id2label", "label2id", "language", "layers_to_keep",
    "length_penalty", "max_length", "min_length", "model_max_length", "no_repeat_ngram_size", "num_beam_groups",
    "num_beams", "num_labels", "num_return_sequences", "output_attentions", "output_hidden_states", "output_past",
    "output_scores", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head",
    "pooler_type", "prefix", "problem_type", "remove_invalid_values", "repetition_penalty", "return_dict",
    "return_dict_in_generate", "sep_token_id", "suppress_tokens", "task_specific_params", "temperature",
    "tf_legacy_loss", "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript", "transformers_version",
    "typical_p", "use_bfloat16", "use_cache", "xla_device", *CROSS_ENCODER_KEYS,
])  # fmt: skip


def _shape(layers: int, hidden: int, heads: int, **others: Any) -> dict[str, Any]:
    """The fields of a shape whose feed-forward size is four times its hidden size."""
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
    return {**sizes, "intermediate_size": 4 * hidden, **others}


# Name → fields that differ from the defaults. The head size 26 of tiny-zh is that of the public checkpoint.
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": _shape(4, 128, 4, embedding_size=64, max_position_embeddings=128, initializer_range=0.05),
    "mini": _shape(6, 192, 6, embedding_size=48),
    "tiny-zh": _shape(4, 312, 12, vocab_size=21_128, hidden_act="gelu"),
    "small-zh": _shape(6, 384, 12, vocab_size=21_128, hidden_act="gelu"),
    "small": _shape(12, 384, 6),
    "base": {},
    "large": _shape(24, 1_024, 16),
    "xlarge": _shape(24, 2_048, 16),
    "xxlarge": _shape(12, 4_096, 64),
}


def preset(name: str) -> AlbertConfig:
    """The config of a published shape: `base`, or `base-v1` for the dropout of the first release.

    Version 2 (the default) trains without dropout. Version 1 uses 0.1, except xxlarge, which uses none.

    >>> from albertkit import preset
    >>> preset("base").hidden_size, preset("base-v1").hidden_dropout_prob
    (768, 0.1)
    """
    size = name.removesuffix("-v1").removesuffix("-v2")
    if size not in PRESETS:
        raise AlbertkitError(f"unknown preset {name!r}{nearest(size, PRESETS)}; choose one of {', '.join(PRESETS)}")
    dropout = 0.1 if name.endswith("-v1") and size != "xxlarge" else 0.0
    return AlbertConfig(**PRESETS[size], hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
