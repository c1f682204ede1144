"""Shared by all tests: what must be set before torch or numpy is loaded, and where the helpers (tests/support) are."""

import os
import sys
from contextlib import suppress
from pathlib import Path

# Some virtual machines announce AMX and forbid it: there, oneDNN's bfloat16 kernels end the process with "Illegal
# instruction". This is the highest level below AMX; a processor that has less is not affected. Workers of xdist and
# processes that tests start inherit it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
# One thread for each worker: there are as many workers as cores, and the tests' matrices are small.
os.environ.setdefault("OMP_NUM_THREADS", "1")

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]  # the packages support and studies

# Hypothesis takes some of its examples from the constants in all modules of this project that happen to be loaded.
# Which they are depends on the order of the tests; without them, derandomize gives the same examples on every machine.
with suppress(ImportError, AttributeError):  # no part of its interface
    from hypothesis.internal.conjecture import providers

    none = providers._local_constants
    if hasattr(providers, "_get_local_constants"):
        providers._get_local_constants = lambda: none
