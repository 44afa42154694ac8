"""Tiny models of transformers' kinds, and tiny data that each can learn."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

SPECIAL, WORDS, LENGTH, CLASSES, SIDE, SAMPLES, BATCH = 4, 16, 12, 4, 32, 400, 16
VOCABULARY = SPECIAL + WORDS
MASK = 3
Example = dict[str, Tensor]


@dataclass(frozen=True)
class Examples(Dataset[Example]):
    """Hold examples that are drawn each from the generator of its own number."""

    draw: Callable[[torch.Generator], Example]
    indices: range

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Example:
        return self.draw(torch.Generator().manual_seed(self.indices[index]))


def walk(generator: torch.Generator) -> Tensor:
    """Return tokens, each one or two on from the last: whoever knows that is left with the logarithm of 2."""
    start = torch.randint(WORDS, (1,), generator=generator)
    steps = torch.randint(1, 3, (LENGTH - 1,), generator=generator)
    return SPECIAL + torch.cat([start, start + steps.cumsum(0)]) % WORDS


def words(generator: torch.Generator) -> Example:
    tokens = walk(generator)
    return {"input_ids": tokens, "labels": tokens}


def masked_words(generator: torch.Generator) -> Example:
    """Return a walk with a fifth of its tokens hidden, and the walk."""
    tokens = walk(generator)
    hidden = torch.rand(LENGTH, generator=generator) < 0.2
    return {"input_ids": tokens.masked_fill(hidden, MASK), "labels": tokens}


def picture(generator: torch.Generator) -> Example:
    """Return noise with a patch of red, green, blue or white in one of four places; the colour is the class."""
    label = torch.randint(CLASSES, (), generator=generator)
    left, top = (SIDE // 2 * torch.randint(2, (2,), generator=generator)).tolist()
    pixels = 0.3 * torch.randn(3, SIDE, SIDE, generator=generator)
    colour = torch.cat([torch.eye(3), torch.ones(1, 3)])[label]
    pixels[:, top : top + SIDE // 2, left : left + SIDE // 2] += 2 * colour[:, None, None]
    return {"pixel_values": pixels, "labels": label}


def tone(generator: torch.Generator) -> Example:
    """Return a tone of one of four pitches in noise; the pitch is the class."""
    label = torch.randint(CLASSES, (), generator=generator)
    phase = 2 * math.pi * torch.rand((), generator=generator)
    wave = torch.sin(2 * math.pi * torch.arange(SAMPLES) * 0.02 * 2**label + phase)
    return {"input_values": wave + 0.3 * torch.randn(SAMPLES, generator=generator), "labels": label}


def spectrum(generator: torch.Generator) -> Example:
    """Return a spectrogram in which one of every four bands is louder; which of the four is the class."""
    label = torch.randint(CLASSES, (), generator=generator)
    powers = torch.randn(SIDE, SIDE, generator=generator)
    powers[:, int(label) :: CLASSES] += 1.5
    return {"input_values": powers, "labels": label}


@dataclass(frozen=True)
class Kind:
    """Name a kind of transformers, its model with a loss, the sizes that make it tiny, and its data."""

    name: str
    model: str
    draw: Callable[[torch.Generator], Example]
    options: dict[str, Any] = field(default_factory=dict)

    def build(self) -> nn.Module:
        """Return the model with random weights of its own, ready to train."""
        library: Any = importlib.import_module("transformers")
        config = library.AutoConfig.for_model(self.name, **self.options)
        model: nn.Module = getattr(library, self.model)(config)
        return model.train()

    @property
    def guessing(self) -> float:
        """Return the loss of whoever takes all answers for as likely."""
        return math.log(WORDS if self.draw in (words, masked_words) else CLASSES)

    def loader(self) -> DataLoader[Example]:
        """Return what the model is trained on."""
        order = torch.Generator().manual_seed(0)
        return DataLoader(Examples(self.draw, range(512)), batch_size=BATCH, shuffle=True, generator=order)

    def unseen(self) -> Example:
        """Return a batch that no training sees."""
        return next(iter(DataLoader(Examples(self.draw, range(10_000, 10_128)), batch_size=128)))


TOKENS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
POSITIONS = {"max_position_embeddings": 32}
DECODER = {**TOKENS, **SIZES, **POSITIONS}
GROUPED = {**DECODER, "num_key_value_heads": 1}
EXPERTS = {**DECODER, "num_key_value_heads": 2, "num_experts_per_tok": 2}
IMAGE = {"image_size": SIDE, "num_labels": CLASSES}
PATCHES = {**SIZES, **IMAGE, "patch_size": 8}
STAGES = {"num_labels": CLASSES, "hidden_sizes": [16, 32], "depths": [2, 3]}
BOTH = {"d_model": 32, "encoder_layers": 3, "decoder_layers": 3, "encoder_attention_heads": 2}
BOTH |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "decoder_start_token_id": 2}

KINDS = (
    # language models
    Kind("gpt2", "GPT2LMHeadModel", words, {**TOKENS, "n_embd": 32, "n_layer": 3, "n_head": 2, "n_positions": 32}),
    Kind("llama", "LlamaForCausalLM", words, GROUPED),
    Kind("mistral", "MistralForCausalLM", words, GROUPED),
    Kind("qwen2", "Qwen2ForCausalLM", words, GROUPED),
    Kind("qwen3", "Qwen3ForCausalLM", words, {**GROUPED, "head_dim": 16}),
    Kind("gemma", "GemmaForCausalLM", words, {**GROUPED, "head_dim": 16}),
    Kind("phi3", "Phi3ForCausalLM", words, GROUPED),
    Kind("olmo", "OlmoForCausalLM", words, GROUPED),
    Kind("opt", "OPTForCausalLM", words, {**DECODER, "ffn_dim": 64, "word_embed_proj_dim": 32}),
    Kind("gpt_neox", "GPTNeoXForCausalLM", words, DECODER),
    Kind("bloom", "BloomForCausalLM", words, {**TOKENS, "hidden_size": 32, "n_layer": 3, "n_head": 2}),
    Kind("mamba", "MambaForCausalLM", words, {**TOKENS, "hidden_size": 32, "num_hidden_layers": 3, "state_size": 8}),
    # mixtures of experts
    Kind("mixtral", "MixtralForCausalLM", words, {**EXPERTS, "num_local_experts": 4}),
    Kind(
        "qwen2_moe",
        "Qwen2MoeForCausalLM",
        words,
        {**EXPERTS, "num_experts": 4, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64},
    ),
    Kind("olmoe", "OlmoeForCausalLM", words, {**EXPERTS, "num_experts": 4}),
    # encoders
    Kind("bert", "BertForMaskedLM", masked_words, DECODER),
    Kind("roberta", "RobertaForMaskedLM", masked_words, DECODER),
    Kind(
        "distilbert",
        "DistilBertForMaskedLM",
        masked_words,
        {**TOKENS, **POSITIONS, "dim": 32, "n_layers": 3, "n_heads": 2, "hidden_dim": 64},
    ),
    Kind("electra", "ElectraForMaskedLM", masked_words, {**DECODER, "embedding_size": 32}),
    Kind("albert", "AlbertForMaskedLM", masked_words, {**DECODER, "embedding_size": 32}),
    Kind("deberta-v2", "DebertaV2ForMaskedLM", masked_words, DECODER),
    Kind("mpnet", "MPNetForMaskedLM", masked_words, DECODER),
    # from one sequence to another
    Kind(
        "t5",
        "T5ForConditionalGeneration",
        words,
        {**TOKENS, "d_model": 32, "num_layers": 3, "num_heads": 2, "d_kv": 16, "d_ff": 64, "decoder_start_token_id": 0},
    ),
    Kind("bart", "BartForConditionalGeneration", words, {**TOKENS, **POSITIONS, **BOTH}),
    # pictures
    Kind("vit", "ViTForImageClassification", picture, PATCHES),
    Kind("deit", "DeiTForImageClassification", picture, PATCHES),
    Kind("beit", "BeitForImageClassification", picture, PATCHES),
    Kind("dinov2", "Dinov2ForImageClassification", picture, {**PATCHES, "use_mask_token": False}),
    Kind("convnext", "ConvNextForImageClassification", picture, {**STAGES, "num_stages": 2}),
    Kind("resnet", "ResNetForImageClassification", picture, {**STAGES, "embedding_size": 16, "layer_type": "basic"}),
    Kind("regnet", "RegNetForImageClassification", picture, {**STAGES, "embedding_size": 16, "groups_width": 8}),
    Kind(
        "swin",
        "SwinForImageClassification",
        picture,
        {**IMAGE, "patch_size": 4, "embed_dim": 16, "depths": [2, 3], "num_heads": [2, 2], "window_size": 4},
    ),
    # sound
    Kind(
        "wav2vec2",
        "Wav2Vec2ForSequenceClassification",
        tone,
        {
            **{**SIZES, "num_labels": CLASSES, "conv_dim": [16, 32], "conv_stride": [5, 4], "conv_kernel": [10, 8]},
            **{"num_feat_extract_layers": 2, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4},
            **{"classifier_proj_size": 32, "mask_time_prob": 0.0, "layerdrop": 0.0},
        },
    ),
    Kind(
        "audio-spectrogram-transformer",
        "ASTForAudioClassification",
        spectrum,
        {
            **{**SIZES, "num_labels": CLASSES, "patch_size": 8, "frequency_stride": 8, "time_stride": 8},
            **{"max_length": SIDE, "num_mel_bins": SIDE},
        },
    ),
)
