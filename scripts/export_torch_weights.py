"""Write a checkpoint of improved-diffusion or DALLE2-pytorch as safetensors and JSON, for `dp-prior import`.

Run it where torch and safetensors are installed; it needs nothing of dp_prior:

    python export_torch_weights.py imagenet64_uncond_100M_1500K.pt DIRECTORY --image_size 64 --num_channels 128 ...
    python export_torch_weights.py latest.pth DIRECTORY prior_config.json [--trust]

Flags are those of the model and its diffusion, as the README of improved-diffusion names them for each checkpoint; the
JSON is the configuration that a prior was trained with, or its part `prior`. It writes DIRECTORY/model.safetensors, the
averaged weights where there are some, and beside it improved_diffusion.json or dalle2_prior.json.

Only tensors are read. A checkpoint of DALLE2-pytorch's trainer also holds objects: on one that you trust, in an
environment with DALLE2-pytorch, add --trust, which runs the code that the checkpoint holds.
"""

import hashlib
import json
import pickle
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file


def weights_of(checkpoint):
    """The network's tensors: of a state dict, or of a trainer's checkpoint, whose average comes first."""
    if not isinstance(checkpoint, dict):
        sys.exit(
            f"the checkpoint holds a {type(checkpoint).__name__}; expected a dictionary with the network's tensors"
        )
    held = next((checkpoint[key] for key in ("ema_model", "ema", "model") if key in checkpoint), checkpoint)
    tensors = {name.removeprefix("ema_model."): one for name, one in held.items() if isinstance(one, torch.Tensor)}
    network = {name: one for name, one in tensors.items() if name.startswith("net.")}
    if not tensors:
        sys.exit(f"the checkpoint holds no tensors, but {', '.join(map(str, held))}; expected those of the network")
    return network or tensors


def read(checkpoint, is_trusted):
    if not Path(checkpoint).is_file():
        sys.exit(f"{checkpoint} is no file; name a checkpoint")
    with Path(checkpoint).open("rb") as file:
        beginning = file.read(2)
    if beginning != b"PK" and beginning[:1] != b"\x80":
        sys.exit(f"{checkpoint} begins with {beginning}, so torch.save has not written it; name a checkpoint")
    try:
        return torch.load(checkpoint, map_location="cpu", weights_only=not is_trusted)
    except pickle.UnpicklingError as error:
        sys.exit(f"{checkpoint} holds more than tensors: {error}\nIf you trust it, add --trust; reading runs its code")


def main(checkpoint, directory, *settings):
    is_trusted = "--trust" in settings
    settings = [word for word in settings if word != "--trust"]
    if not settings:
        sys.exit("neither flags nor a configuration are given; see the beginning of this script")
    is_flag = settings[0].startswith("-")
    if not is_flag and not Path(settings[0]).is_file():
        sys.exit(f"{settings[0]} is no file; name the JSON configuration of the prior, or flags that begin with --")
    tensors = weights_of(read(checkpoint, is_trusted))
    found = {
        "format": 1,
        "checkpoint": Path(checkpoint).name,
        "sha256": hashlib.sha256(Path(checkpoint).read_bytes()).hexdigest(),
    }
    if is_flag:
        name, found["flags"] = "improved_diffusion.json", settings
    else:
        given = json.loads(Path(settings[0]).read_text())
        name, found["settings"] = "dalle2_prior.json", given if "prior" in given else {"prior": given}
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    save_file({key: one.contiguous().clone() for key, one in tensors.items()}, directory / "model.safetensors")
    (directory / name).write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
