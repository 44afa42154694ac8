"""Hugging Face Trainer: the optimiser is the plan's; the Trainer's own scheduler scales all groups alike."""

from __future__ import annotations

from tempfile import TemporaryDirectory

import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

import evenstep as es
from evenstep.integrations.huggingface import PlannedTrainer


def main(steps: int = 8) -> tuple[PlannedTrainer, list[float]]:
    """Train a tiny BERT of random weights; return the trainer and the logged losses."""
    torch.manual_seed(0)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=50,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=16,
        )
    )
    tokens = torch.randint(1, 50, (64, 8), generator=torch.Generator().manual_seed(0))
    examples = [{"input_ids": row, "labels": (row[0] > 25).long()} for row in tokens]
    plan = es.plan(model, {"input_ids": tokens[:2]}, base=0.002, optimizer="adam")
    es.initialize_(model, plan)
    with TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=16,
            warmup_steps=2,
            weight_decay=0.01,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
        )
        trainer = PlannedTrainer(plan=plan, model=model, args=arguments, train_dataset=examples)
        trainer.train()
    return trainer, [log["loss"] for log in trainer.state.log_history if "loss" in log]


if __name__ == "__main__":
    print(main()[1])
