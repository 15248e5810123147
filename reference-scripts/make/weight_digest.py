"""Digests of decoded weights, for decoded.json."""

import hashlib

import torch


def digest(weight):
    """The type and the SHA-256 of a decoded weight's bytes."""
    weight = weight.detach().contiguous()
    data = weight.view(torch.uint8).numpy().tobytes()
    return {"dtype": str(weight.dtype).removeprefix("torch."), "sha256": hashlib.sha256(data).hexdigest()}
