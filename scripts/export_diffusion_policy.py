"""Write a checkpoint of Diffusion Policy (real-stanford) as safetensors and JSON, for `dp-prior import`.

Run it in their environment (conda activate robodiff), from their repository, on a checkpoint that you trust, because
reading a checkpoint of theirs runs code that it holds:

    python export_diffusion_policy.py data/.../checkpoints/latest.ckpt DIRECTORY

It needs torch, dill and their repository, and writes DIRECTORY/diffusion_policy.json, the arguments of the policy and
of its parts, with the defaults of their classes, and DIRECTORY/model.safetensors, the averaged weights if the training
had an average, and the normalizer. Copy it and DIRECTORY to wherever you like: it needs nothing of dp_prior.
"""

import hashlib
import inspect
import json
import pydoc
import sys
from pathlib import Path

import dill
import torch
from omegaconf import OmegaConf

DTYPES = {torch.float32: "F32", torch.float64: "F64", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64"}


def explicit(node):
    """A resolved configuration with `type`, the class's name, for `_target_`, and the defaults of its arguments."""
    if isinstance(node, list):
        return [explicit(one) for one in node]
    if not isinstance(node, dict):
        return node
    given = {key: explicit(value) for key, value in node.items()}
    if "_target_" not in given:
        return given
    target = given.pop("_target_")
    made = pydoc.locate(target)
    if made is None:
        sys.exit(f"{target} cannot be imported; run this in their environment, from their repository")
    parameters = inspect.signature(made).parameters.values()
    defaults = {one.name: one.default for one in parameters if one.default is not one.empty}
    return {"type": target.rpartition(".")[2], **json.loads(json.dumps(defaults)), **given}


def write_safetensors(path, tensors):
    """The format's head, a JSON object with dtype, shape and place of each tensor, then their bytes."""
    head, contents, end = {}, [], 0
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        contents.append(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
        place = [end, end + len(contents[-1])]
        head[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": place}
        end = place[1]
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(b"".join([len(text).to_bytes(8, "little"), text, *contents]))


def main(checkpoint, directory):
    if not Path(checkpoint).is_file():
        sys.exit(f"{checkpoint} is no file; name a checkpoint, such as data/outputs/.../checkpoints/latest.ckpt")
    OmegaConf.register_new_resolver("eval", eval, replace=True)
    payload = torch.load(checkpoint, pickle_module=dill, map_location="cpu")
    config, states = payload["cfg"], payload["state_dicts"]
    names = [name for name in ("policy", "optimizer", "dataloader", "training") if name in config]
    parts = {name: OmegaConf.to_container(config[name], resolve=True) for name in names}
    weights = "ema_model" if "ema_model" in states else "model"
    optimizer, settings = parts.get("optimizer", {}), parts.get("training", {})
    training = {
        "batch_size": parts.get("dataloader", {}).get("batch_size"),
        "epochs": settings.get("num_epochs"),
        "warmup_steps": settings.get("lr_warmup_steps"),
        "lr": optimizer.get("lr", optimizer.get("learning_rate")),
        "betas": optimizer.get("betas"),
        "weight_decay": optimizer.get("weight_decay"),
    }
    found = {
        "format": 1,
        "checkpoint": Path(checkpoint).name,
        "sha256": hashlib.sha256(Path(checkpoint).read_bytes()).hexdigest(),
        "weights": weights,
        "policy": explicit(parts["policy"]),
        "training": {name: value for name, value in training.items() if value is not None},
    }
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    write_safetensors(directory / "model.safetensors", states[weights])
    (directory / "diffusion_policy.json").write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.path.insert(0, str(Path.cwd()))
    main(*sys.argv[1:])
