"""Check the text of Python's standard library against its own files."""

import sysconfig
from pathlib import Path

import torch

from evenstep.data.text import standard_library


def test_the_text_is_the_library_s_own_source() -> None:
    text = standard_library(limit=200_000)
    assert text.dtype == torch.uint8
    assert text.shape == (200_000,)
    root = Path(sysconfig.get_paths()["stdlib"])
    first = next(path for path in sorted(root.rglob("*.py")) if "site-packages" not in path.parts)
    content = first.read_bytes()
    assert bytes(text[: len(content)].tolist()) == content[: len(text)]


def test_the_text_is_the_same_at_any_length() -> None:
    assert torch.equal(standard_library(limit=5_000), standard_library(limit=50_000)[:5_000])


def test_the_library_s_own_tests_and_packages_are_left_out() -> None:
    text = bytes(standard_library(limit=3_000_000).tolist())
    assert b"import pytest" not in text
