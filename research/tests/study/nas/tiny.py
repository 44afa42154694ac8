"""Tiny settings for tests: digits, four channels, one cell a stage, so that a run takes a fraction of a second."""

from __future__ import annotations

from dataclasses import replace

import torch

from evenstep_research.study.nas.ledger import SweepSetting
from evenstep_research.study.nas.options import SMOKE
from evenstep_research.study.nas.protocols import NetworkShape
from evenstep_research.study.nas.sweep import images_at
from evenstep_research.study.nas.training import Images, SweepTraining

torch.set_num_threads(1)
SHAPE = NetworkShape(channels=4, cells=1, side=8)
TRAINING = SweepTraining(epochs=1, batch_size=256, padding=1)
SETTING: SweepSetting = replace(SMOKE, shape=SHAPE, training=TRAINING)
LIGHT, DEAD = "000300", "333000"


def images(training: SweepTraining = TRAINING) -> Images:
    return images_at(None, "cpu", training.padding)
