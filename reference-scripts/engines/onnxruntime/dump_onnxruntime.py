#!/usr/bin/env python3
"""Dumps a greedy run of ONNX Runtime on the CPU, of optimum's export of a Hugging Face directory, for xcheck.

Names of values in the exported graph are those of the modules that made them; a table says which is which tap. The graph
is optimised first, as the session that a user makes would do it, and saved; what has kept its name in the result is made an
output of it, and that graph runs as it is. So nothing that is fused is taken apart to be seen: it has no tap. Nothing is
written unless the logits of every pass are bit for bit those of the user's session, which shows no more than the export.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import optimum.version
import transformers
import xcheck
from onnxruntime.quantization import QuantType, quantize_dynamic
from optimum.exporters.onnx import main_export

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lib"))
from model_files import sha256, weight_files

LEVELS = {"off": ort.GraphOptimizationLevel.ORT_DISABLE_ALL, "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL}
PER_HEAD = {"q_rope": "head", "k_rope": "kv_head", "q": "head", "k": "kv_head", "v": "kv_head"}

# Of a layer, then of the model; {} is the layer's number, `input of` is what the node that makes this value reads first.
LLAMA = {
    "attn_norm": "/model/layers.{}/input_layernorm/Mul_1_output_0",
    "q": "/model/layers.{}/self_attn/q_proj/MatMul_output_0",
    "k": "/model/layers.{}/self_attn/k_proj/MatMul_output_0",
    "v": "/model/layers.{}/self_attn/v_proj/MatMul_output_0",
    "q_rope": "/model/layers.{}/self_attn/Add_output_0",
    "k_rope": "/model/layers.{}/self_attn/Add_1_output_0",
    "attn_scores": "/model/layers.{}/self_attn/MatMul_output_0",
    "attn_weights": "/model/layers.{}/self_attn/Softmax_output_0",
    "attn_context": "input of /model/layers.{}/self_attn/o_proj/MatMul_output_0",
    "attn_out": "/model/layers.{}/self_attn/o_proj/MatMul_output_0",
    "attn_residual": "/model/layers.{}/Add_output_0",
    "ffn_norm": "/model/layers.{}/post_attention_layernorm/Mul_1_output_0",
    "ffn_gate": "/model/layers.{}/mlp/gate_proj/MatMul_output_0",
    "ffn_up": "/model/layers.{}/mlp/up_proj/MatMul_output_0",
    "ffn_act": "/model/layers.{}/mlp/Mul_output_0",
    "ffn_out": "/model/layers.{}/mlp/down_proj/MatMul_output_0",
    "block_out": "/model/layers.{}/Add_1_output_0",
    "embed": "/model/embed_tokens/Gather_output_0",
    "final_norm": "/model/norm/Mul_1_output_0",
}
HEAD_NORMS = {
    "q_norm": "/model/layers.{}/self_attn/q_norm/Mul_1_output_0",
    "k_norm": "/model/layers.{}/self_attn/k_norm/Mul_1_output_0",
}
FAMILIES = {
    "llama": LLAMA,
    "qwen3": LLAMA | HEAD_NORMS,
    "gemma3_text": LLAMA
    | {
        "attn_post_norm": "/model/layers.{}/post_attention_layernorm/Mul_1_output_0",
        "ffn_norm": "/model/layers.{}/pre_feedforward_layernorm/Mul_1_output_0",
        "ffn_post_norm": "/model/layers.{}/post_feedforward_layernorm/Mul_1_output_0",
        "embed": "/model/embed_tokens/Mul_output_0",
    },
    "gpt2": {
        "attn_norm": "/transformer/h.{}/ln_1/LayerNormalization_output_0",
        "q": "/transformer/h.{}/attn/Split_output_0",
        "k": "/transformer/h.{}/attn/Split_output_1",
        "v": "/transformer/h.{}/attn/Split_output_2",
        "attn_scores": "/transformer/h.{}/attn/MatMul_output_0",
        "attn_weights": "/transformer/h.{}/attn/Softmax_output_0",
        "attn_context": "/transformer/h.{}/attn/Reshape_3_output_0",
        "attn_out": "/transformer/h.{}/attn/c_proj/Reshape_1_output_0",
        "attn_residual": "/transformer/h.{}/Add_output_0",
        "ffn_norm": "/transformer/h.{}/ln_2/LayerNormalization_output_0",
        "ffn_up": "/transformer/h.{}/mlp/c_fc/Reshape_1_output_0",
        "ffn_act": "/transformer/h.{}/mlp/act/Mul_3_output_0",
        "ffn_out": "/transformer/h.{}/mlp/c_proj/Reshape_1_output_0",
        "block_out": "/transformer/h.{}/Add_1_output_0",
        "embed": "/transformer/Add_1_output_0",
        "final_norm": "/transformer/ln_f/LayerNormalization_output_0",
    },
}


def axes(tap: str, rank: int) -> tuple[str, ...] | None:
    """The axes of a value in the export, where they are not the tap's own."""
    if rank == 4 and tap in PER_HEAD:
        return "batch", PER_HEAD[tap], "token", "head_dim"
    return None


class Engine:
    """One exported model, as a user's session runs it, and with its values shown."""

    def __init__(self, place: Path, arguments: argparse.Namespace, config: dict):
        options = {"do_validation": False, "no_post_process": True, "local_files_only": True}
        main_export(str(arguments.model), place, task="text-generation-with-past", **options)
        path = place / "model.onnx"
        names = self.find(path, FAMILIES[config["model_type"]], config)
        if arguments.sigmoid == "exp":
            onnx.save(with_exact_sigmoid(onnx.load(path)), path)
        if arguments.quantise:
            quantize_dynamic(path, place / "int8.onnx", weight_type=QuantType.QInt8)
            path = place / "int8.onnx"
        self.plain = session(path, arguments.optimise, place / "optimised.onnx")
        shown = onnx.load(place / "optimised.onnx")
        there = {name for node in shown.graph.node for name in node.output}
        self.taps = {key: name for key, name in names.items() if name in there}
        self.hidden = sorted({tap for tap, layer in names.keys() - self.taps.keys()})
        outputs = {value.name for value in shown.graph.output}
        shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in set(self.taps.values()) - outputs)
        onnx.save(shown, place / "shown.onnx")
        self.shown = session(place / "shown.onnx", "off")

    @staticmethod
    def find(path: Path, table: dict[str, str], config: dict) -> dict[tuple[str, int | None], str]:
        """The name of each tap's value in the exported graph; what is not there is an error."""
        made = {name: node for node in onnx.load(path).graph.node for name in node.output}
        names = {}
        for tap, pattern in table.items():
            layers = range(config.get("num_hidden_layers") or config["n_layer"]) if "{}" in pattern else [None]
            for layer in layers:
                name = pattern.removeprefix("input of ").format(layer)
                if name not in made:
                    raise ValueError(f"the export has no value {name} for {tap}: another version names it otherwise")
                names[tap, layer] = made[name].input[0] if pattern.startswith("input of ") else name
        return names

    def run(self, which: ort.InferenceSession, tokens: list[int], decode: int) -> tuple[list[dict], list[int]]:
        """Every output of every pass by its name, and the tokens chosen."""
        cache = {
            value.name: np.zeros([1 if i == 0 else 0 if i == 2 else n for i, n in enumerate(value.shape)], np.float32)
            for value in which.get_inputs()
            if value.name.startswith("past_key_values.")
        }
        inputs = {value.name for value in which.get_inputs()}
        outputs = [value.name for value in which.get_outputs()]
        passes, chosen, given, read = [], [], tokens, 0
        for _ in range(decode + 1):
            feed = {
                "input_ids": np.array([given]),
                "attention_mask": np.ones((1, read + len(given)), np.int64),
                "position_ids": np.arange(read, read + len(given))[None],
            }
            feed = {name: value for name, value in feed.items() if name in inputs}
            values = dict(zip(outputs, which.run(outputs, feed | cache), strict=True))
            passes.append(values)
            read += len(given)
            cache = {name: values[name.replace("past_key_values", "present")] for name in cache}
            given = [int(values["logits"][0, -1].argmax())]
            chosen += given
        return passes, chosen


def with_exact_sigmoid(model: onnx.ModelProto) -> onnx.ModelProto:
    """Each Sigmoid as 1 / (1 + exp(-x)), whose parts ONNX Runtime computes to one ulp."""
    nodes, one = [], onnx.helper.make_tensor("one_of_sigmoid", onnx.TensorProto.FLOAT, [], [1.0])
    for node in model.graph.node:
        if node.op_type != "Sigmoid":
            nodes.append(node)
            continue
        value = node.input[0]
        for kind, before in (("Neg", []), ("Exp", []), ("Add", [one.name]), ("Div", [one.name])):
            output = node.output[0] if kind == "Div" else f"{node.output[0]}/{kind}"
            nodes.append(onnx.helper.make_node(kind, [*before, value], [output]))
            value = output
    model.graph.ClearField("node")
    model.graph.node.extend(nodes)
    model.graph.initializer.append(one)
    return model


def session(path: Path, optimise: str, save: Path | None = None) -> ort.InferenceSession:
    """A session on the CPU with one thread."""
    options = ort.SessionOptions()
    options.graph_optimization_level = LEVELS[optimise]
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if save:
        options.optimized_model_filepath = str(save)
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def write(dump: xcheck.Dump, engine: Engine, passes: list[dict], tokens: list[int], chosen: list[int]) -> None:
    """All passes with their taps."""
    for index, values in enumerate(passes):
        with dump.forward(tokens if index == 0 else [chosen[index - 1]]):
            for (tap, layer), name in engine.taps.items():
                dump.tap(tap, values[name], layer, axes=axes(tap, values[name].ndim))
            for name in (name for name in values if name.startswith("present.")):
                _, layer, kind = name.split(".")
                dump.tap(f"{kind[0]}_cache", values[name], int(layer), axes=("batch", "kv_head", "key", "head_dim"))
            dump.tap("logits", values["logits"])
            dump.tap("argmax", values["logits"][0, -1].argmax())
    dump.generated(chosen)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="model directory")
    tokens = parser.add_argument("--tokens", required=True, help="token ids: 1,2,3")
    tokens.type = lambda text: [int(token) for token in text.split(",")]
    parser.add_argument("--decode", type=int, default=1, help="greedy passes after the prompt's (default: 1)")
    parser.add_argument("--optimise", choices=LEVELS, default="all", help="of the graph (default: all, as ORT has it)")
    parser.add_argument("--quantise", action="store_true", help="dynamic quantisation to int8, by onnxruntime")
    parser.add_argument(
        "--sigmoid", choices=("onnxruntime", "exp"), default="onnxruntime", help="exp: 1 / (1 + exp(-x)) instead"
    )
    parser.add_argument("--taps", help="write these alone, of those that are there: q_rope,logits")
    parser.add_argument("--name", help="the model's name in the manifest (default: the last part of --model)")
    parser.add_argument("--out", type=Path, required=True, help="a directory or FILE.safetensors")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    transformers.logging.set_verbosity_error()
    config = json.loads((arguments.model / "config.json").read_text())
    if config["model_type"] not in FAMILIES:
        raise ValueError(f"{arguments.model}: family {config['model_type']!r} is not one of {', '.join(FAMILIES)}")
    with tempfile.TemporaryDirectory() as place:
        engine = Engine(Path(place), arguments, config)
        plain, expected = engine.run(engine.plain, arguments.tokens, arguments.decode)
        passes, chosen = engine.run(engine.shown, arguments.tokens, arguments.decode)
    if any(a["logits"].tobytes() != b["logits"].tobytes() for a, b in zip(plain, passes, strict=True)):
        raise ValueError("the logits are not those of a session that shows nothing; nothing written")
    assert chosen == expected
    if arguments.taps:
        wanted = set(arguments.taps.split(","))
        engine.taps = {key: name for key, name in engine.taps.items() if key[0] in wanted}
        if not {"k_cache", "v_cache"} & wanted:
            passes = [{name: v for name, v in p.items() if not name.startswith("present.")} for p in passes]
    settings = {
        "dtype": "f32",
        "kv_cache": "f32",
        "weights": "int8" if arguments.quantise else "f32",
        "graph_optimisation": arguments.optimise,
        "sigmoid": arguments.sigmoid,
        "not_in_the_optimised_graph": engine.hidden,
        "exporter": f"optimum-onnx with optimum {optimum.version.__version__}, transformers {transformers.__version__}",
        "threads": 1,
    }
    with xcheck.Dump(
        arguments.out,
        producer="onnxruntime",
        version=ort.__version__,
        model=arguments.name or arguments.model.resolve().name,
        sha256=sha256(weight_files(arguments.model)),
        config=config,
        rope_pairing=None if config["model_type"] == "gpt2" else "half",
        settings=settings,
        tokens=arguments.tokens,
    ) as dump:
        write(dump, engine, passes, arguments.tokens, chosen)
    hidden = f"; fused away: {', '.join(engine.hidden)}" if engine.hidden else ""
    print(f"{arguments.out}: {len(passes)} passes, generated {chosen}{hidden}")


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, xcheck.DumpError) as error:
        sys.exit(f"error: {error}")
