"""B1–B3 and eq. (5) in plain numpy, written from the paper and not from the library."""

import numpy as np


def finished_layers(rng, draws, L, compute, upload, batch, T):
    """z, the layers each device finishes within T − B, cut at L; shape (draws, U).

    Every layer takes an exponential time of mean S/P (B1); an upload takes B (B2); a device with S = 0 or
    T ≤ B finishes nothing.
    """
    compute, upload, batch = np.broadcast_arrays(compute, upload, batch)
    times = rng.exponential(1.0, (draws, compute.size, L)) * (batch / compute)[:, None]
    in_time = np.cumsum(times, axis=-1) <= (T - upload)[:, None]
    return np.where((batch > 0) & (T > upload), in_time.sum(-1), 0)


def delivered(z, L):
    """Whether layer l arrives: z ≥ L+1−l; shape z.shape + (L,), index l − 1."""
    return z[..., None] >= L - np.arange(L)


def merge_weights(z, L, p):
    """A[u, l] = 1[z_u ≥ L+1−l] / (|U_l| (1 − p_l)), and 0 for a layer that nobody delivers; shape z.shape + (L,)."""
    arrived = delivered(z, L)
    contributors = np.maximum(arrived.sum(-2, keepdims=True), 1)
    return arrived / (contributors * (1.0 - np.asarray(p)))


def b3_batches(m, compute, upload, T):
    """S = max(1, ⌊m P (T − B)/T⌋), and 0 where T ≤ B."""
    return np.where(T > upload, np.maximum(1.0, np.floor(m * compute * (T - upload) / T)), 0.0)


def standard_error(samples):
    """Of the mean over the first axis."""
    return samples.std(axis=0, ddof=1) / np.sqrt(samples.shape[0])
