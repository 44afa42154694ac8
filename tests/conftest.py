"""Settings for all tests."""

import os

import torch
from hypothesis import settings

# Shared cores make single examples slow now and then; how long a test takes is not what it checks.
settings.register_profile("evenstep", deadline=None)
settings.load_profile("evenstep")

# Without a GPU Triton's kernels run by its interpreter, which it decides when it is first imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
