"""Shared by all tests: what must be set before torch or numpy is loaded, and where the helpers (tests/support) are."""

import os
import sys
from pathlib import Path

# Some virtual machines announce AMX and forbid it: there, oneDNN's bfloat16 kernels end the process with "Illegal
# instruction". This is the highest level below AMX; a processor that has less is not affected. Workers of xdist and
# processes that tests start inherit it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
# One thread for each worker: there are as many workers as cores, and the tests' matrices are small.
os.environ.setdefault("OMP_NUM_THREADS", "1")

sys.path.insert(0, str(Path(__file__).parent))  # the package support
