"""Accuracy of a classifier on guided images, by guidance scale: `python -m benchmarks.guidance RUN`.

A trained model of labelled images draws the same noises at each scale. The classifier is the nearest training image,
so it needs no training of its own; `data` is its accuracy on the held-out split. The kernel distance to that split
shows the price: images of a large scale are clear, but all alike.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from dp_prior import load_image
from dp_prior.evaluation.image_quality import kernel_distance, nearest
from dp_prior.places.reference import resolve
from dp_prior.tensors.randomness import Randomness
from dp_prior_robot.stored_task import read_stored

SCALES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0)


def main() -> None:
    """Draw, classify and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="run, checkpoint or export of a model of labelled images")
    parser.add_argument("--n", type=int, default=500, help="images for each scale")
    parser.add_argument("--scales", type=float, nargs="+", default=SCALES)
    arguments = parser.parse_args()
    directory = resolve(arguments.run)
    data = read_stored(directory).open(print)
    (train, train_labels), (val, val_labels) = (_all(part) for part in (data.train, data.val))
    print(f"{'scale':<8} {'accuracy':>8} {'kernel distance':>16}")
    accuracy = _accuracy(val, val_labels, train, train_labels)
    print(f"{'data':<8} {accuracy:>8.3f} {kernel_distance(train, val):>16.4f}")
    model, ids = load_image(directory), torch.arange(arguments.n)
    labels = ids % len(model.spec.classes["label"])
    for scale in arguments.scales:
        drawn = model.predict(labels, random=Randomness.from_counts(0, "guidance", ids), guidance_scale=scale)
        features = _features(drawn)
        accuracy = _accuracy(features, labels, train, train_labels)
        print(f"{scale:<8g} {accuracy:>8.3f} {kernel_distance(features, val):>16.4f}", flush=True)


def _all(samples: object) -> tuple[Tensor, Tensor]:
    """(n, D) features and (n,) labels of all samples of a part."""
    batch = samples.fetch(torch.arange(len(samples), device=samples.device))
    return _features(batch.x.cpu()), batch.cond["label"].cpu()


def _features(images: Tensor) -> Tensor:
    return images.flatten(1).float() / 127.5 - 1


def _accuracy(features: Tensor, labels: Tensor, train: Tensor, train_labels: Tensor) -> float:
    return (train_labels[nearest(features, train, 1)[:, 0]] == labels).double().mean().item()


if __name__ == "__main__":
    main()
