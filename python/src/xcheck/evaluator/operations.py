"""ATen operations by the way they round.

An operation that is in none of these sets, and that ATen does not tag as pointwise, is refused: a rounding that nobody
counts would turn correct engines into failures.
"""

from __future__ import annotations

# Results are values of the operands, or operands in another place: nothing is rounded.
SELECTIONS = frozenset(
    [
        "cat",
        "stack",
        "index",
        "index_select",
        "gather",
        "clone",
        "contiguous",
        "repeat",
        "roll",
        "flip",
        "tril",
        "triu",
        "constant_pad_nd",
        "embedding",
        "index_put",
        "_unsafe_index",
        "scatter",
        "select_scatter",
        "slice_scatter",
        "diagonal_scatter",
        "copy",
        "diag_embed",
        "diag",
        "masked_select",
        "repeat_interleave",
        "take_along_dim",
        "im2col",
        "reflection_pad1d",
        "replication_pad1d",
        "reflection_pad2d",
        "replication_pad2d",
        "unfold_copy",
        "masked_scatter",
        "block_diag",
        "index_copy",
        "index_fill",
        "expand_copy",
        "view_copy",
        "permute_copy",
        "take",
        "as_strided_scatter",
        "pixel_shuffle",
        "pixel_unshuffle",
        "channel_shuffle",
        "fill",
        "upsample_nearest1d",
        "upsample_nearest2d",
    ]
)

# Elementwise operations whose result is exact if the operands are.
EXACT_ELEMENTWISE = frozenset(
    [
        "neg",
        "abs",
        "relu",
        "clamp",
        "clamp_min",
        "clamp_max",
        "hardtanh",
        "minimum",
        "maximum",
        "fmin",
        "fmax",
        "where",
        "masked_fill",
        "sign",
        "floor",
        "ceil",
        "round",
        "trunc",
        "frac",
        "nan_to_num",
        "sgn",
        "heaviside",
        "threshold",
        "copysign",
        "positive",
        "real",
        "imag",
        "conj",
        "_conj_physical",
        "conj_physical",
        "leaky_relu_exact",
    ]
)

# Elementwise operations that round their result once.
ELEMENTWISE = frozenset(
    [
        "add",
        "sub",
        "rsub",
        "mul",
        "div",
        "true_divide",
        "reciprocal",
        "sqrt",
        "square",
        "remainder",
        "fmod",
        "addcmul",
        "addcdiv",
        "lerp",
        "leaky_relu",
        "hardswish",
        "hardsigmoid",
        "floor_divide",
        "hypot",
        "complex",
        "polar",
    ]
)

# Library functions: (units in the last place of the result, units of the operand's size that cancel).
LIBRARY = {
    name: (1.0, 0.0)
    for name in (
        [
            "exp",
            "exp2",
            "expm1",
            "log",
            "log2",
            "log10",
            "log1p",
            "sin",
            "cos",
            "tan",
            "tanh",
            "sigmoid",
            "logit",
            "atan",
            "atan2",
            "sinh",
            "cosh",
            "asinh",
            "acosh",
            "atanh",
            "erf",
            "erfinv",
            "erfc",
            "softplus",
            "pow",
            "silu",
            "mish",
            "elu",
            "celu",
            "selu",
            "log_sigmoid_forward",
            "xlogy",
            "sinc",
            "lgamma",
            "digamma",
            "asin",
            "acos",
            "special_expit",
            "special_erf",
        ]
    )
}
LIBRARY["rsqrt"] = (0.5, 0.0)
LIBRARY["silu"] = (1.75, 0.0)
LIBRARY["gelu"] = (1.0, 0.5)
LIBRARY["mish"] = (2.0, 0.0)
LIBRARY["softplus"] = (1.5, 0.0)

# Results that are integers, truth values or Python numbers: computed from the exact values.
DECISIONS = frozenset(
    [
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "isnan",
        "isinf",
        "isfinite",
        "logical_and",
        "logical_or",
        "logical_not",
        "logical_xor",
        "any",
        "all",
        "nonzero",
        "isin",
        "searchsorted",
        "bucketize",
        "equal",
        "is_nonzero",
        "_local_scalar_dense",
        "signbit",
        "count_nonzero",
        "is_same_size",
        "_assert_async",
        "_assert_scalar",
        "sym_size",
        "unique",
        "_unique2",
        "histc",
        "bincount",
        "one_hot",
        "nonzero_numpy",
    ]
)

# Tensors from nothing.
CREATIONS = frozenset(
    [
        "zeros",
        "ones",
        "full",
        "empty",
        "arange",
        "linspace",
        "logspace",
        "eye",
        "scalar_tensor",
        "zeros_like",
        "ones_like",
        "full_like",
        "empty_like",
        "new_zeros",
        "new_ones",
        "new_full",
        "new_empty",
        "empty_strided",
        "new_empty_strided",
        "tril_indices",
        "triu_indices",
        "empty_permuted",
    ]
)

CHOICES = frozenset(
    [
        "topk",
        "sort",
        "max",
        "min",
        "argmax",
        "argmin",
        "argsort",
        "kthvalue",
        "amax",
        "amin",
        "mode",
        "median",
        "aminmax",
        "cummax",
    ]
)

REDUCTIONS = frozenset(["sum", "mean", "nansum"])

PRODUCTS = frozenset(
    ["mm", "bmm", "addmm", "baddbmm", "mv", "dot", "addmv", "addbmm", "vdot", "linear", "matmul", "ger"]
)

CONVOLUTIONS = frozenset(["convolution", "_convolution", "mkldnn_convolution", "convolution_overrideable"])

ACCUMULATIONS = frozenset(["index_add", "scatter_add", "scatter_reduce", "col2im"])

PRODUCT_CHAINS = frozenset(["cumsum", "cumprod"])

# In-place operations without a functional operation of the same name.
FUNCTIONAL = {
    "zero_": None,
    "copy_": None,
    "fill_": None,
    "_index_put_impl_": "index_put",
    "detach_": None,
}

# Operations that make a view, where ATen's schema does not say so.
VIEWS = frozenset(
    [
        "_unsafe_view",
        "detach",
        "alias",
        "lift_fresh",
        "lift",
        "_reshape_alias",
        "view_as_complex",
        "view_as_real",
        "view",
        "_conj",
    ]
)

# Numbers among the arguments that the engine rounds to f32 first.
SCALAR_OPERANDS = frozenset(["add", "sub", "rsub", "mul", "div", "true_divide", "pow", "addcmul", "addcdiv"])


def documented() -> dict[str, list[str]]:
    """Returns all operations by class, for the reference page."""
    classes: dict[str, list[str]] = {
        "selections": sorted(SELECTIONS),
        "exact elementwise": sorted(EXACT_ELEMENTWISE),
        "elementwise": sorted(ELEMENTWISE),
        "library functions": sorted(LIBRARY),
        "decisions": sorted(DECISIONS),
        "creations": sorted(CREATIONS),
        "choices": sorted(CHOICES),
        "reductions": sorted(REDUCTIONS | PRODUCT_CHAINS),
        "products": sorted(PRODUCTS),
        "convolutions": sorted(CONVOLUTIONS),
        "accumulations": sorted(ACCUMULATIONS),
    }
    return classes
