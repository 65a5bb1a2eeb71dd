"""ModelSpec: what planning knows of a transformer: the sizes of its tensors and the element types they are served in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OPERATOR_DTYPE: Mapping[str, str] = {"mxfp4": "int4_wo", "nf4": "int4_wo", "int4_wo": "int4_wo"}
"""Weight types that the operator models know under another name: 4-bit weights expanded for 16-bit tensor cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """One kind of decoder layer, and how many of it the model has. Sizes are of the whole layer, before any sharding.

    attention: "gqa" (also multi-head and multi-query), "mla" (latent) or "linear" (a recurrent state of fixed size: gated delta rule).
    mlp: "dense" or "moe"; "none" where the layer has no MLP.
    """

    count: int
    attention: str
    mlp: str
    q_heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    v_head_dim: int = 0  # equals head_dim but for latent attention
    window: int = 0  # keys a query sees, 0: all
    q_lora_rank: int = 0  # 0: the query projection is one matrix
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False
    output_gate: bool = False  # the query projection also makes a gate of the same width (Qwen3-Next)
    linear_key_heads: int = 0
    linear_value_heads: int = 0
    linear_key_head_dim: int = 0
    linear_value_head_dim: int = 0
    linear_conv: int = 0  # width of the causal convolution before a linear-attention layer's state
    inter: int = 0  # of a dense MLP
    num_experts: int = 0
    top_k: int = 0
    moe_inter: int = 0  # of one routed expert
    shared_inter: int = 0  # of all shared experts together, 0: none
    gated: bool = True  # gate and up projections (SwiGLU); False: one up projection
    mlp_bias: bool = False
    norms: int = 2  # of hidden width, in the layer
    attention_dtype: str = "bf16"  # weights of the attention projections
    mlp_dtype: str = "bf16"  # weights of the dense MLP or the routed experts
    shared_dtype: str = "bf16"  # weights of the shared experts


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder-only transformer as it is served.

    `layers` holds each distinct kind of layer once; `order` gives, from the first layer to the last, which of them stands there.
    `weight_dtype` is the main one ("bf16" where nothing is quantised); each LayerSpec says what its parts really are, and `unquantised`
    names the parts that a quantised model keeps at 16 bits. `group_size` is the block that shares one scale (0: a row, or the tensor).
    """

    name: str
    hidden: int
    vocab: int
    layers: tuple[LayerSpec, ...]
    order: tuple[int, ...]
    tied_embeddings: bool
    max_context: int
    weight_dtype: str = "bf16"
    activation_dtype: str = "bf16"  # what activations and unquantised weights are kept in
    lm_head_dtype: str = "bf16"
    group_size: int = 0
    zero_points: bool = False  # asymmetric 4-bit weights keep one zero point a group
    unquantised: tuple[str, ...] = ()
    other_params: int = 0  # parameters beside the language model, such as a vision tower, at 16 bits
    published_params: float = 0.0  # as the vendor states, 0: not known
    model_type: str = ""
    source: str = ""
    licence: str = ""

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return len(self.order)


def load_model(model: str | Path | Mapping[str, Any] | ModelSpec, quantization: str | None = None, assume_dense: bool = False) -> ModelSpec:
    """The model of a name or a config.

    Parameters
    ----------
    model : str, Path, mapping or ModelSpec
        A bundled name or alias, a Hugging Face config (file, folder, dict, or hub id in the local cache), or a ModelSpec.
    quantization : str, optional
        Quantise anew: bf16, fp16, fp8, fp8_block, int8, int8_wo, int4_wo (AWQ, GPTQ), nvfp4, mxfp4 or a usual alias; None: as the
        config says.
    assume_dense : bool
        Read an unknown architecture as a plain dense transformer.

    Returns
    -------
    ModelSpec
        Layers, widths, vocabulary and element types.

    Raises
    ------
    InputError
        For an unknown name (with the nearest), a field that is missing or impossible, and an unknown architecture.

    Examples
    --------
    >>> import perfmodel as pm
    >>> len(pm.load_model("llama-3.1-8b").layers) > 0
    True
    """
    from perfmodel.plan.catalogue import find

    return find(model, quantization, assume_dense)
