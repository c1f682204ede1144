"""Settings of processes that only run adelfl: commands and their workers."""

from __future__ import annotations

import ctypes
import platform


def settle(threads: int) -> None:
    """Set the number of torch's threads, and let glibc keep large blocks of memory.

    By default glibc returns large blocks to the system after every step of training, which takes as long as the step.
    """
    import torch

    torch.set_num_threads(threads)
    if platform.system() == "Linux" and platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL("libc.so.6")
        trim_threshold, mmap_threshold = -1, -3
        libc.mallopt(trim_threshold, 1 << 30)
        libc.mallopt(mmap_threshold, 1 << 30)
