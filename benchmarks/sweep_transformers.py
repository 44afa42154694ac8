"""Plan every kind of model in transformers at a tiny size, and see whether it starts well.

    python benchmarks/sweep_transformers.py --out results/sweep

Every kind of `transformers` that has a head with a loss is built from its own configuration, with sizes shrunk by
name, and run once on made-up inputs; kinds that cannot be built or run this way are not counted. Each is then planned
in train mode (`planned`), initialised and run: `healthy` if all that it returns is finite, 95% of its layers put out a
root mean square between 0.1 and 10, and cross-entropy on random labels is within one nat of guessing. Layers are
modules with parameters of their own, at least one of which the plan draws: tables that keep the module's own values
say nothing about the plan. Where the table of tokens is tied to the readout, 0.1 is taken in units of the stream that
starts there; `healthy_unscaled` says what comes out without that.

Every kind runs in a process of its own under a time limit. A line is written as each ends to `lines.jsonl`, and a sweep
that was stopped continues from there; at the end `record.json` holds all of them with counts, versions and commits.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import math
import multiprocessing
import os
import resource
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import torch
import transformers
from torch import Tensor, nn
from transformers.models.auto import configuration_auto, modeling_auto

import evenstep as es
from evenstep.search.provenance import commit
from evenstep_research.study import jsonl

LIMIT = 60  # seconds of a core for one kind; five times that by the clock
BATCH, LENGTH, IMAGE, VOCABULARY, CLASSES = 2, 12, 32, 96, 10
# Heads, the most telling first: those with a loss of their own before bare networks.
HEADS = (
    "CAUSAL_LM",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "IMAGE_CLASSIFICATION",
    "MASKED_LM",
    "SEQUENCE_CLASSIFICATION",
    "IMAGE_TEXT_TO_TEXT",
    "MULTIMODAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "CTC",
    "AUDIO_CLASSIFICATION",
    "VIDEO_CLASSIFICATION",
    "SEMANTIC_SEGMENTATION",
    "UNIVERSAL_SEGMENTATION",
    "OBJECT_DETECTION",
    "DEPTH_ESTIMATION",
    "TOKEN_CLASSIFICATION",
    "QUESTION_ANSWERING",
    "TIME_SERIES_PREDICTION",
    "PRETRAINING",
)
# Sizes by the end of a field's name, the first that fits; what fits none stays.
SIZES: tuple[tuple[int, tuple[str, ...]], ...] = (
    (16, ("qk_head_dim",)),
    (8, ("head_dim", "head_size", "d_kv", "dim_head", "dim_per_head", "mamba_d_head")),
    (4, ("linear_num_value_heads", "mamba_n_heads", "mamba_num_heads", "n_mamba_heads")),
    (2, ("key_value_heads", "kv_heads", "num_query_groups", "multi_query_group_num", "linear_num_key_heads")),
    (4, ("_heads", "n_head", "nhead", "encoder_heads", "decoder_heads")),
    (2, ("hidden_layers", "_layers", "n_layer", "depth", "num_blocks", "layers")),
    (VOCABULARY, ("vocab_size", "vocab_size_per_layer_input", "num_embeds")),
    (64, ("codebook_size",)),
    (8, ("num_groups",)),
    (IMAGE, ("image_size", "img_size", "pretrain_image_size")),
    (8, ("patch_size",)),
    (4, ("window_size",)),
    (4, ("num_local_experts", "num_experts", "n_routed_experts")),
    (2, ("num_experts_per_tok", "experts_per_token", "moe_topk", "moe_k", "moe_top_k", "top_k_experts")),
    (1, ("n_group", "topk_group")),
    (16, ("lora_rank", "index_topk", "time_step_rank")),
    (8, ("state_size", "d_state", "chunk_size")),
    (64, ("intermediate_size", "ffn_dim", "inner_dim", "d_ff", "n_inner", "mlp_dim", "feedforward_dim")),
    (64, ("ffn_hidden_size", "intermediate_dim", "feed_forward_hidden_size", "feedforward_size")),
    (32, ("hidden_size", "d_model", "n_embd", "embed_dim", "emb_dim", "embedding_size", "hidden_dim", "embedding_dim")),
    (32, ("proj_dim", "projection_dim", "projection_size", "project_dim", "output_dim", "output_channels", "width")),
    (32, ("hidden_channels", "output_size", "hidden_size_per_layer_input", "hidden_size_global", "decoder_dim")),
    (64, ("max_position_embeddings", "n_positions", "source_positions", "target_positions", "n_ctx", "max_seq_len")),
    (8, ("num_queries", "num_latents", "num_query_tokens", "n_latents", "query_length")),
    (CLASSES, ("num_labels", "num_classes")),
    (4, ("num_frames", "num_codebooks", "n_codebooks", "num_quantizers")),
    (16, ("num_mel_bins", "mel_bins", "feature_size")),
)
LARGEST_MODEL = 2**24  # entries of all parameters; what is larger was not made tiny


# Building


def shrunk(config: Any) -> dict[str, Any]:
    """Return the fields of a configuration with every size in it made tiny."""
    fields: dict[str, Any] = {}
    held = vars(config)
    kinds = [held[name] for name in ("layer_types", "layers_block_type") if isinstance(held.get(name), list)]
    layers = max([2, *(len(set(kind)) for kind in kinds)])
    latent = "kv_lora_rank" in held  # every head then has keys and values of its own
    for name, value in held.items():
        if name.startswith("_") or name in ("torch_dtype", "dtype", "transformers_version", "model_type"):
            continue
        if hasattr(value, "to_dict"):
            fields[name] = {**shrunk(value), "model_type": getattr(value, "model_type", "")}
        elif isinstance(value, bool) or value is None:
            continue
        elif isinstance(value, int):
            size = 4 if latent and name == "num_key_value_heads" else size_of(name, layers)
            if name.endswith(("token_id", "token_index")):
                fields[name] = value if value < 8 else 3 + sum(map(ord, name)) % 5
            elif size is not None and value > size:
                fields[name] = size
        elif isinstance(value, list | tuple) and value and (short := shortened(name, list(value), layers)):
            fields[name] = short
    return fields


def size_of(name: str, layers: int) -> int | None:
    """Return the tiny size for a field of this name, None if its name says nothing."""
    for size, ends in SIZES:
        if name.endswith(ends):
            return layers if name.endswith(("hidden_layers", "n_layer")) else size
    return None


def shortened(name: str, values: list[Any], layers: int) -> list[Any] | None:
    """Return a list of kinds of layers with one of each, or of widths and depths made small; None to leave it."""
    if all(isinstance(value, str) for value in values) and name.endswith(("layer_types", "block_type", "_types")):
        unique = list(dict.fromkeys(values))
        return (unique * layers)[:layers]
    if not all(isinstance(value, int) for value in values):
        return None
    if name.endswith("heads"):
        return [2] * len(values)
    if "depth" in name or "num_blocks" in name or "repeats" in name or name.endswith("blocks_per_stage"):
        return [1] * len(values)
    if name.endswith(("indices", "indexes", "idxs", "_layers", "_idx")) and max(values) >= layers:
        return [layers - 1]
    if max(values) > 64 and any(word in name for word in ("hidden_size", "channels", "dim", "width", "conv_dim")):
        factor = max(values) // 64
        return [max(value // factor // 8 * 8, 8) for value in values]
    return None


def built(kind: str) -> Iterator[nn.Module]:
    """Yield tiny models of a kind, with the most telling head first."""
    make = configuration_auto.CONFIG_MAPPING[kind]
    default = make()
    fields = shrunk(default)
    try:
        config = make(**fields)
    except Exception:
        config = default
        set_fields(config, fields)
    heads = [getattr(modeling_auto, f"MODEL_FOR_{head}_MAPPING_NAMES").get(kind) for head in HEADS]
    heads.append(modeling_auto.MODEL_MAPPING_NAMES.get(kind))
    failed: Exception | None = None
    for names in heads:
        for name in (names,) if isinstance(names, str) else names or ():
            if (architecture := getattr(transformers, name, None)) is None:
                continue
            try:
                model = architecture(config).float().train()
            except Exception as error:
                failed = error
                continue
            yield model
    if failed is not None:
        raise failed


def set_fields(config: Any, fields: Mapping[str, Any]) -> None:
    """Set the fields of a finished configuration, and those of the ones inside."""
    for name, value in fields.items():
        inner = getattr(config, name, None)
        if isinstance(value, dict) and hasattr(inner, "to_dict"):
            set_fields(inner, value)
        else:
            setattr(config, name, value)


# Inputs


def inputs_for(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Yield sets of made-up inputs that the forward of a model may take, likely ones first."""
    accepted = inspect.signature(model.forward).parameters
    config: Any = model.config
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    generator = torch.Generator().manual_seed(0)

    def tokens(rows: int = VOCABULARY) -> Tensor:
        return torch.randint(8, max(rows, 9), (BATCH, LENGTH), generator=generator)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    rows = min(VOCABULARY, int(field(text, "vocab_size", VOCABULARY) or VOCABULARY))
    decoder = {"decoder_input_ids": tokens(rows)} if "decoder_input_ids" in accepted else {}
    channels = field(config, "num_channels", 3)
    side = field(config, "image_size", IMAGE)
    height, width = (side, side) if isinstance(side, int) else tuple(side)[-2:]
    frames = field(config, "num_frames", 4)
    mels = field(config, "num_mel_bins", 16)
    positions = field(config, "max_source_positions", 64)
    length = field(config, "max_length", 64)
    boxes = {"bbox": torch.zeros(BATCH, LENGTH, 4, dtype=torch.long)} if "bbox" in accepted else {}
    candidates: list[dict[str, Tensor]] = [
        {"input_ids": tokens(rows), **decoder},
        {"pixel_values": noise(BATCH, channels, height, width), **decoder},
        {"input_ids": tokens(rows), "pixel_values": noise(BATCH, channels, height, width), **decoder},
        {"pixel_values": noise(BATCH, frames, channels, height, width)},
        {"pixel_values": noise(BATCH, channels, 2 * height, 2 * width)},
        {"pixel_values": noise(BATCH, channels, 224, 224)},
        {"pixel_values_videos": noise(BATCH, frames, channels, height, width)},
        {"input_features": noise(BATCH, mels, 2 * positions), **decoder},
        {"input_features": noise(BATCH, 64, mels), **decoder},
        {"input_features": noise(BATCH, 64, field(config, "feature_projection_input_dim", 160)), **decoder},
        {"input_values": noise(BATCH, 4000), **decoder},
        {"input_values": noise(BATCH, length, mels)},
        {"input_values": noise(BATCH, 1, 4000)},
        {"inputs_embeds": noise(BATCH, LENGTH, field(text, "hidden_size", 32)), **decoder},
        {"input_ids": tokens(rows), "input_features": noise(BATCH, mels, 2 * positions)},
        {"past_values": noise(BATCH, field(config, "context_length", 32), field(config, "num_input_channels", 1))},
        {"past_values": noise(BATCH, field(config, "context_length", 32))},
    ]
    for candidate in candidates:
        if all(name in accepted for name in candidate):
            yield {**candidate, **boxes}


def field(config: Any, name: str, default: Any) -> Any:
    """Return a field of a configuration or of one inside it, the default where none has it."""
    value = getattr(config, name, None)
    if value is not None and not callable(value):
        return value
    inner = [value for value in vars(config).values() if hasattr(value, "to_dict")]
    return next((found for found in (field(value, name, None) for value in inner) if found is not None), default)


# Health


def health_of(model: nn.Module, inputs: Mapping[str, Tensor], plan: es.Plan) -> dict[str, Any]:
    """Return what one forward pass of an initialised model shows."""
    drawn = {p.name for p in plan.parameters if not p.kept}
    sizes: dict[str, float] = {}

    def watch(name: str) -> Any:
        def see(_module: nn.Module, _inputs: Any, output: Any) -> None:
            tensor = output[0] if isinstance(output, tuple) and output else output
            if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.numel():
                sizes[name] = float(tensor.detach().float().square().mean().sqrt())

        return see

    names = {id(p): n for n, p in model.named_parameters()}
    handles = [
        module.register_forward_hook(watch(name))
        for name, module in model.named_modules()
        if any(names.get(id(p)) in drawn for p in module.parameters(recurse=False))
    ]
    torch.manual_seed(0)
    with torch.no_grad():
        output = model(**inputs)
    for handle in handles:
        handle.remove()
    finite = all(bool(t.isfinite().all()) for t in floats(output))
    scale = stream_of(model, sizes)
    out_of_range = {name: size for name, size in sizes.items() if not 0.1 * scale <= size <= 10}
    share = 1 - len(out_of_range) / max(len(sizes), 1)
    absolute = sum(0.1 <= size <= 10 for size in sizes.values()) / max(len(sizes), 1)
    excess = loss_above_guessing(output)
    ok = finite and share >= 0.95 and (excess is None or excess <= 1.0)
    # Under the bounds as they stand, whatever the stream is worth.
    strictly = ok and absolute >= 0.95
    worst = dict(sorted(out_of_range.items(), key=lambda item: -abs(math.log(item[1] + 1e-30)))[:6])
    return {
        "healthy": ok,
        "healthy_unscaled": strictly,
        "finite": finite,
        "layers": len(sizes),
        "in_range": round(share, 4),
        "in_range_unscaled": round(absolute, 4),
        "scale": float(f"{scale:.3g}"),
        "out_of_range": {name: float(f"{size:.3g}") for name, size in worst.items()},
        "loss_above_guessing": None if excess is None else float(f"{excess:.3g}"),
        "absurd": not finite or share < 0.5 or (excess or 0.0) > 10,
    }


def stream_of(model: nn.Module, sizes: Mapping[str, float]) -> float:
    """Return the size of a stream that starts at a table tied to the readout, 1 for any other network.

    Such a table is drawn for logits of size one, at a deviation of one over the root of the width, and every branch is
    drawn for the stream that it is added to.
    """
    readout = getattr(cast("Any", model).get_output_embeddings(), "weight", None)
    tied = [name for name, module in model.named_modules() if getattr(module, "weight", None) is readout is not None]
    return min(
        [1.0, *(sizes[name] for name in tied if isinstance(model.get_submodule(name), nn.Embedding) and name in sizes)]
    )


def floats(output: Any) -> Iterator[Tensor]:
    """Yield the floating-point tensors of an output but those of caches; -inf stands for what is ruled out."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from floats(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from floats(value)


def loss_above_guessing(output: Any) -> float | None:
    """Return the cross-entropy of an output's logits on random labels, less that of guessing; None without logits."""
    logits = output.get("logits") if isinstance(output, Mapping) else None
    if not isinstance(logits, Tensor) or logits.ndim not in (2, 3) or logits.shape[-1] < 2:
        return None
    rows = logits.detach().float().flatten(0, -2)
    labels = torch.randint(rows.shape[1], rows.shape[:1], generator=torch.Generator().manual_seed(0))
    return float(nn.functional.cross_entropy(rows, labels)) - math.log(rows.shape[1])


# One kind


def examined(kind: str) -> dict[str, Any]:
    """Return the line of one kind: built, run, planned, initialised and run again."""
    line: dict[str, Any] = {"kind": kind, "status": "not built", "error": ""}
    torch.manual_seed(0)
    try:
        for model in built(kind):
            if sum(p.numel() for p in model.parameters()) > LARGEST_MODEL:
                line |= {"status": "not built", "error": "larger than tiny"}
                continue
            line |= {"status": "not run", "model": type(model).__name__}
            for inputs in inputs_for(model):
                try:
                    with torch.no_grad():
                        model(**inputs)
                except Exception as error:
                    line["error"] = words(error)
                    continue
                return line | {"inputs": {n: list(t.shape) for n, t in inputs.items()}} | planned(model, inputs)
    except Exception as error:
        line["error"] = words(error)
    return line


def planned(model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return what becomes of a model that runs: its plan and its health, or the error."""
    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plan = es.plan(model, example_kwargs=dict(inputs))
    except Exception as error:
        return {"status": "failed", "error": words(error)}
    made = {"status": "planned", "error": "", "seconds": round(time.perf_counter() - start, 2)}
    es.initialize_(model, plan, generator=torch.Generator().manual_seed(0))
    return {**made, "health": health_of(model, inputs, plan), "warnings": [w[:300] for w in plan.warnings]}


def words(error: Exception) -> str:
    """Return an error as one short line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:400]


# All kinds


def sweep(kinds: list[str], out: Path, *, limit: int) -> list[dict[str, Any]]:
    """Examine every kind in a process of its own, and append a line to a file as each ends."""
    out.mkdir(parents=True, exist_ok=True)
    ledger = jsonl.Lines(out / "lines.jsonl")
    lines: list[dict[str, Any]] = list(ledger.read(dict))
    known = {line["kind"] for line in lines}
    context = multiprocessing.get_context("fork")  # what all kinds need is imported once
    es.plan(nn.Linear(2, 2), torch.zeros(1, 2))
    for kind in (kind for kind in kinds if kind not in known):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_answer, args=(kind, sender, limit))
        process.start()
        sender.close()
        line: dict[str, Any] = {"kind": kind, "status": "timeout", "error": f"took longer than {limit} s"}
        with contextlib.suppress(EOFError):
            if receiver.poll(5 * limit):
                line = receiver.recv()
        process.kill()
        process.join()
        line["commit"] = commit()
        lines.append(line)
        ledger.append(line)
    return lines


def _answer(kind: str, sender: Any, limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    sender.send(examined(kind))


def record(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return all lines with their counts, the versions and the commit."""
    counted = [line for line in lines if line["status"] in ("planned", "failed", "timeout")]
    good = [line for line in counted if line["status"] == "planned"]
    healthy = [line for line in good if line["health"]["healthy"]]
    silent = [line["kind"] for line in good if line["health"]["absurd"] and not line["warnings"]]
    return {
        "n": len(counted),
        "planned": len(good),
        "healthy": len(healthy),
        "healthy_unscaled": sum(line["health"]["healthy_unscaled"] for line in healthy),
        "absurd_without_a_warning": silent,
        "not_counted": dict(Counter(line["status"] for line in lines if line not in counted)),
        "sizes": {"batch": BATCH, "length": LENGTH, "image": IMAGE, "vocabulary": VOCABULARY, "classes": CLASSES},
        "versions": {"evenstep": es.__version__, "torch": torch.__version__, "transformers": transformers.__version__},
        "commits": dict(Counter(line["commit"] for line in lines)),
        "lines": sorted(lines, key=lambda line: str(line["kind"])),
    }


def main() -> None:
    """Sweep, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/sweep"))
    parser.add_argument("--kinds", nargs="*", help="these alone, printed and not recorded")
    parser.add_argument("--limit", type=int, default=LIMIT, help="seconds of a core for one kind")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.kinds:
        for kind in options.kinds:
            print(json.dumps(examined(kind), indent=1))
        return
    with_heads = {kind for head in HEADS for kind in getattr(modeling_auto, f"MODEL_FOR_{head}_MAPPING_NAMES")}
    kinds = sorted(with_heads & set(configuration_auto.CONFIG_MAPPING.keys()), key=lambda kind: crc32(kind.encode()))
    found = record(sweep(kinds, options.out, limit=options.limit))
    (options.out / "record.json").write_text(json.dumps(found, indent=1) + "\n")
    print({key: value for key, value in found.items() if key != "lines"})


if __name__ == "__main__":
    main()
