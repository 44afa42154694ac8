"""The demo: four kinds of networks at three depths, trained at one rate for all and by their plans."""

from evenstep.demo.drawing import draw
from evenstep.demo.measuring import Demo, DemoProgress, Measured, measure
from evenstep.demo.words import MARKS, sentences, table

__all__ = ["MARKS", "Demo", "DemoProgress", "Measured", "draw", "measure", "sentences", "table"]
