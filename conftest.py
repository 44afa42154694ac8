"""Settings for all tests, of the product and of research."""

import os
import signal

import torch
from hypothesis import settings

pytest_plugins = ["tests.cli.command"]  # the fixture `run`

# Shared cores make single examples slow now and then; how long a test takes is not what it checks.
settings.register_profile("evenstep", deadline=None)
settings.load_profile("evenstep")

# Without a GPU Triton's kernels run by its interpreter, which it decides when it is first imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# A shell starts what it runs in the background deaf to interrupts, and processes hand that on to those they start:
# tests that interrupt a command would wait for one that cannot hear.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
