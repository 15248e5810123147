"""Mistakes that an engine may make, each as the model that has it: see Effect in tiny_model.py."""

import inspect
from collections.abc import Callable
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from tiny_model import TinyModel, new_model

Mistake = Callable[[TinyModel], PreTrainedModel]


def config_change(change: Callable[[PreTrainedConfig], None]) -> Mistake:
    """Builds the model with its text configuration changed."""

    def build(tiny: TinyModel) -> PreTrainedModel:
        config = deepcopy(tiny.config)
        change(config.get_text_config())
        return new_model(tiny, config)

    return build


def setting_change(**settings: object) -> Mistake:
    """Changes settings of the configuration."""

    @config_change
    def change(config: PreTrainedConfig) -> None:
        for key, value in settings.items():
            setattr(config, key, value)

    return change


def rope_change(**settings: object) -> Mistake:
    """Changes settings of RoPE."""

    @config_change
    def change(config: PreTrainedConfig) -> None:
        config.rope_parameters.update(settings)

    return change


def model_change(change: Callable[[PreTrainedModel], None]) -> Mistake:
    """Builds the model, then changes it."""

    def build(tiny: TinyModel) -> PreTrainedModel:
        model = new_model(tiny)
        change(model)
        return model

    return build


def mixture_of(layer: nn.Module) -> nn.Module:
    """The part of a layer that may be a mixture of experts."""
    parts = (getattr(layer, name, None) for name in ("mlp", "feed_forward", "mixer"))
    return next(part for part in parts if part is not None)


def mixture_change(change: Callable[[nn.Module], None]) -> Mistake:
    """Changes every mixture of experts."""

    @model_change
    def build(model: PreTrainedModel) -> None:
        for layer in model.model.layers:
            block = mixture_of(layer)
            if hasattr(block, "experts"):
                change(block)

    return build


def norm_change(norm: Callable[[nn.LayerNorm, Tensor], Tensor]) -> Mistake:
    """Replaces every LayerNorm."""

    @model_change
    def build(model: PreTrainedModel) -> None:
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.forward = partial(norm, module)

    return build


def weight_change(suffixes: str | tuple[str, ...], change: Callable[[Tensor], Tensor]) -> Mistake:
    """Changes the weights and buffers whose names end with one of the suffixes."""

    @model_change
    def build(model: PreTrainedModel) -> None:
        for name, weight in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith(suffixes):
                weight.copy_(change(weight))

    return build


drop_biases = weight_change((".bias", "_bias"), torch.zeros_like)
drop_shared_expert = weight_change(("shared_expert.down_proj.weight", "shared_experts.down_proj.weight"), torch.zeros_like)
# Each expert in the place of the next, which the router does not know.
move_experts = weight_change(("experts.gate_up_proj", "experts.down_proj"), lambda w: w.roll(1, dims=0))


def swap_gate_and_up(axis: int) -> Mistake:
    """Exchanges gate and up projections, the halves of one weight along `axis`."""
    return weight_change(("gate_up_proj", "gate_up_proj.weight"), lambda w: w.roll(w.shape[axis] // 2, dims=axis))


@config_change
def drop_rope_scaling(config: PreTrainedConfig) -> None:
    """RoPE without its scaling."""
    config.rope_parameters = {"rope_type": "default", "rope_theta": config.rope_parameters["rope_theta"]}


def exchanged(one: str, other: str) -> Mistake:
    """The model with two modules of each layer exchanged."""

    @model_change
    def build(model: PreTrainedModel) -> None:
        for module in model.modules():
            if hasattr(module, one) and hasattr(module, other):
                first, second = getattr(module, one), getattr(module, other)
                setattr(module, one, second)
                setattr(module, other, first)

    return build


@mixture_change
def drop_shared_weight(mixture: nn.Module) -> None:
    """The shared expert without its weight: a gate whose sigmoid is 1."""
    mixture.shared_expert_gate.forward = lambda x: x.new_full((*x.shape[:-1], 1), 1e4)


@mixture_change
def weigh_by_all(mixture: nn.Module) -> None:
    """Softmax over all experts, of which the chosen are not divided by their sum."""
    router = mixture.gate if hasattr(mixture, "gate") else mixture.router

    def forward(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = nn.functional.linear(x.reshape(-1, x.shape[-1]), router.weight, getattr(router, "bias", None))
        weights, chosen = logits.float().softmax(-1).topk(router.top_k, dim=-1)
        return logits, weights, chosen

    router.forward = forward


def route(mixture: nn.Module, config: PreTrainedConfig, wrong: dict[str, object], x: Tensor, *_: Tensor) -> tuple:
    """A router with a correction bias, with some of its steps replaced: see `misroute`."""
    gate, step = mixture.gate, {"scores": torch.sigmoid, "biased": True, "weighs_bias": False, "summed": 2, **wrong}
    logits = nn.functional.linear(x.reshape(-1, x.shape[-1]).float(), gate.weight.float())
    scores = step["scores"](logits)
    statics = getattr(gate, "moe_statics", gate)
    bias = getattr(statics, "e_score_correction_bias", None)
    beside = getattr(mixture, "expert_bias", getattr(mixture, "e_score_correction_bias", torch.zeros(1)))
    bias = beside if bias is None else bias.flatten()
    biased = scores + bias if step["biased"] else scores
    allowed = biased
    if (count := getattr(config, "n_group", None) or 1) > 1 and step["summed"]:
        groups = biased.unflatten(-1, (count, -1))
        best = groups.topk(step["summed"], dim=-1).values.sum(-1).topk(config.topk_group, dim=-1).indices
        mask = torch.zeros(groups.shape[:-1]).scatter(1, best, 1.0).bool()
        allowed = groups.masked_fill(~mask[..., None], float("-inf")).flatten(-2)
    chosen = allowed.topk(gate.top_k, dim=-1).indices
    weights = (biased if step["weighs_bias"] else scores).gather(1, chosen)
    if step.get("divided", getattr(config, "norm_topk_prob", True)):
        weights = weights / weights.sum(-1, keepdim=True)
    return logits, weights * step.get("scale", getattr(config, "routed_scaling_factor", 1.0)), chosen


def softmax(logits: Tensor) -> Tensor:
    """Softmax over all experts."""
    return logits.softmax(-1)


def misroute(**wrong: object) -> Mistake:
    """The model whose routers have other scores, another bias, other groups or another factor."""

    @model_change
    def build(model: PreTrainedModel) -> None:
        for layer in model.model.layers:
            mixture = mixture_of(layer)
            if hasattr(mixture, "experts"):
                mixture.gate.forward = partial(route, mixture, model.config, wrong)

    return build


@mixture_change
def weigh_outputs(mixture: nn.Module) -> None:
    """Weights that multiply the experts' outputs instead of their inputs."""

    def forward(hidden: Tensor) -> tuple[Tensor, Tensor]:
        rows = hidden.reshape(-1, hidden.shape[-1])
        scores, logits = mixture.router(rows)
        out = mixture.experts(rows.repeat(scores.shape[1], 1)).unflatten(0, (scores.shape[1], -1))
        return mixture.shared_expert(rows) + (out * scores.T[..., None]).sum(0), logits

    mixture.forward = forward


@mixture_change
def weigh_by_softmax(mixture: nn.Module) -> None:
    """Softmax over all experts in place of sigmoids."""

    def forward(hidden: Tensor) -> tuple[Tensor, Tensor]:
        logits = nn.functional.linear(hidden, mixture.router.weight)
        best, chosen = logits.softmax(-1).topk(mixture.top_k, dim=-1)
        return torch.zeros_like(logits).scatter(1, chosen, best), logits

    mixture.router.forward = forward


def with_attributes(suffix: str, **values: object) -> Mistake:
    """Gives every module of this name other attributes."""

    @model_change
    def build(model: PreTrainedModel) -> None:
        for name, module in model.named_modules():
            if name.split(".")[-1] == suffix:
                for attribute, value in values.items():
                    setattr(module, attribute, value)

    return build


@model_change
def swap_streams(model: PreTrainedModel) -> None:
    """AltUp's predictions with transposed coefficients."""
    streams = model.config.altup_num_inputs
    for layer in model.model.layers:
        weight = layer.altup.prediction_coefs.weight
        weight.copy_(weight.unflatten(0, (streams, streams)).transpose(0, 1).flatten(0, 1).clone())


@model_change
def copy_embeddings(model: PreTrainedModel) -> None:
    """Copies of the embeddings in all of AltUp's streams."""
    for projection in model.model.altup_projections:
        projection.forward = lambda x: x


@model_change
def use_sample_deviation(model: PreTrainedModel) -> None:
    """Sparse gates by the standard deviation of a sample."""

    def topk(mlp: nn.Module, gate: Tensor) -> Tensor:
        quantile = torch.distributions.normal.Normal(0, 1).icdf(torch.tensor(mlp.activation_sparsity))
        return nn.functional.relu(gate - gate.mean(-1, keepdim=True) - gate.std(-1, keepdim=True) * quantile)

    for layer in model.model.layers:
        layer.mlp._gaussian_topk = partial(topk, layer.mlp)


@model_change
def enlarge_router_inputs(model: PreTrainedModel) -> None:
    """Routers of Gemma 4 whose inputs are not divided by the root of the hidden size."""
    for layer in model.model.layers:
        layer.router.scalar_root_size = 1.0


@config_change
def rotate_whole_heads(config: PreTrainedConfig) -> None:
    """Full layers that rotate all pairs of a head."""
    config.rope_parameters["full_attention"]["partial_rotary_factor"] = 1.0


def scale_scores(factor: Callable[[nn.Module], float]) -> Mistake:
    """The model with another factor of q·k, in terms of its own."""

    @model_change
    def build(model: PreTrainedModel) -> None:
        for layer in model.model.layers:
            layer.self_attn.scaling *= factor(layer.self_attn)

    return build


def scale_of_latents(attention: nn.Module) -> float:
    """The factor that follows from the width of cached latents, not from that of a head, over the right one."""
    return (attention.qk_head_dim / (attention.kv_lora_rank + attention.qk_rope_head_dim)) ** 0.5


@model_change
def norm_each_head(model: PreTrainedModel) -> None:
    """Queries and keys normalised by the statistics of each head, not of all."""

    def of_heads(norm: nn.Module, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (-1, model.model.layers[0].self_attn.head_dim))
        normed = heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + norm.variance_epsilon)
        return normed.flatten(-2) * norm.weight

    for layer in model.model.layers:
        for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
            norm.forward = partial(of_heads, norm)


@config_change
def use_short_factors(config: PreTrainedConfig) -> None:
    """LongRoPE's factors of short texts for all."""
    config.rope_parameters["long_factor"] = config.rope_parameters["short_factor"]


@config_change
def rotate_all(config: PreTrainedConfig) -> None:
    """All values of a head turned, the second half by angles of the first."""
    rope = config.rope_parameters
    rope["partial_rotary_factor"] = 1.0
    rope["short_factor"], rope["long_factor"] = rope["short_factor"] * 2, rope["long_factor"] * 2


@config_change
def drop_window(config: PreTrainedConfig) -> None:
    """Local layers that see every position."""
    config.sliding_window = config.max_position_embeddings


@config_change
def widen_window(config: PreTrainedConfig) -> None:
    """A window that is one position too wide."""
    config.sliding_window += 1


@config_change
def swap_rope_bases(config: PreTrainedConfig) -> None:
    """Local layers with the global layers' RoPE, and the other way round."""
    rope = config.rope_parameters
    config.rope_parameters = {
        "full_attention": rope["sliding_attention"],
        "sliding_attention": rope["full_attention"],
    }


@config_change
def drop_global_scaling(config: PreTrainedConfig) -> None:
    """Global layers without RoPE's scaling."""
    config.rope_parameters["full_attention"] = {"rope_type": "default", "rope_theta": 1e6}


@config_change
def scale_local_layers(config: PreTrainedConfig) -> None:
    """Local layers with the scaling of the global ones."""
    config.rope_parameters["sliding_attention"] = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e4}


@norm_change
def norm_keeping_mean(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    """RMSNorm where LayerNorm belongs."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps) * norm.weight + norm.bias


@norm_change
def norm_of_sample_variance(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    """LayerNorm that divides the squares' sum by n - 1."""
    variance, mean = torch.var_mean(x, dim=-1, correction=1, keepdim=True)
    return (x - mean) * torch.rsqrt(variance + norm.eps) * norm.weight + norm.bias


def without_modules(*names: str) -> Mistake:
    """The model without the modules that have one of these names: their inputs pass through."""

    @model_change
    def build(model: PreTrainedModel) -> None:
        for name, module in model.named_modules():
            if name.split(".")[-1] in names:
                module.forward = lambda x: x

    return build


def swap_pairing(rotated: float = 1.0) -> Mistake:
    """RoPE of neighbours where halves belong, or the other way round, in the `rotated` part of each head."""

    @model_change
    def build(model: PreTrainedModel) -> None:
        config = model.config.get_text_config()
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        width = int(size * rotated)
        order = [*torch.arange(width).view(2, -1).T.flatten().tolist(), *range(width, size)]
        for name, parameter in model.named_parameters():
            if name.split(".")[-2] in ("q_proj", "k_proj"):
                heads = parameter.unflatten(0, (-1, size))
                parameter.copy_(heads[:, order].flatten(0, 1))

    return build


@model_change
def read_first_group(model: PreTrainedModel) -> None:
    """Mamba-2 whose heads all read B and C of the first group."""
    for module in model.modules():
        if hasattr(module, "ssm_state_size"):
            inner, size, groups = module.intermediate_size, module.ssm_state_size, module.n_groups
            rows = [*range(inner), *(inner + part * groups * size + row % size for part in (0, 1) for row in range(groups * size))]
            for weight in (module.conv1d.weight, module.conv1d.bias):
                weight.copy_(weight[rows])
            projection = module.in_proj.weight
            projection[inner : inner + len(rows)] = projection[inner : inner + len(rows)][rows]


@model_change
def drop_norm_offset(model: PreTrainedModel) -> None:
    """Norms that multiply by their weight, not by 1 + weight."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1 and name.endswith("weight") and not name.endswith("linear_attn.norm.weight"):
            parameter.sub_(1)


def replaced(**functions: Callable[[Callable], Callable]) -> Mistake:
    """The model that calls other functions of its file: each is made of the function that it replaces."""

    @model_change
    def build(model: PreTrainedModel) -> None:
        code, forward = inspect.getmodule(type(model)), model.forward

        def run(*args: object, **settings: object) -> object:
            own = {name: getattr(code, name) for name in functions}
            try:
                for name, change in functions.items():
                    setattr(code, name, change(own[name]))
                return forward(*args, **settings)
            finally:
                for name, function in own.items():
                    setattr(code, name, function)

        model.forward = run

    return build


def given(**changes: Callable[[Tensor], Tensor]) -> Callable[[Callable], Callable]:
    """A function that gets other values of these arguments."""

    def change(own: Callable) -> Callable:
        def call(*args: Tensor, **settings: object) -> object:
            return own(*args, **settings | {name: of(settings[name]) for name, of in changes.items()})

        return call

    return change


@model_change
def drop_attention_gate(model: PreTrainedModel) -> None:
    """Removes the output gate of attention: 1 instead of the sigmoid."""
    for layer in model.model.layers:
        if hasattr(layer, "self_attn"):
            project, width = layer.self_attn.q_proj.forward, layer.self_attn.head_dim

            def without_gate(x: Tensor, project: Callable = project, width: int = width) -> Tensor:
                heads = project(x).unflatten(-1, (-1, 2 * width)).clone()
                heads[..., width:] = float("inf")
                return heads.flatten(-2)

            layer.self_attn.q_proj.forward = without_gate


@model_change
def cut_gates_at_middle(model: PreTrainedModel) -> None:
    """Splits `in_proj_ba` into beta and decay in the middle instead of per key head."""
    for layer in model.model.layers:
        if hasattr(layer, "linear_attn"):
            weight = layer.linear_attn.in_proj_ba.weight
            heads = weight.unflatten(0, (2, layer.linear_attn.num_k_heads, -1))
            weight.copy_(heads.swapaxes(0, 1).flatten(0, 2))


@model_change
def drop_embedding_scale(model: PreTrainedModel) -> None:
    """Embeddings that are not multiplied."""
    embeddings = model.get_input_embeddings()
    embeddings.forward = lambda ids: nn.functional.embedding(ids, embeddings.weight)


@model_change
def rotate_full_layers(model: PreTrainedModel) -> None:
    """Layers with full attention that rotate, as those with a window do."""
    for layer in model.model.layers:
        attention = layer.self_attn
        if attention.sliding_window is None or not getattr(attention, "is_sliding", True):
            attention.is_sliding, attention.sliding_window = True, model.config.max_position_embeddings
