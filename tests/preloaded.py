"""What every fork of `tests.forks` begins with: libraries, and what a first run of a process makes ready."""

import json
import tempfile
from pathlib import Path

import accelerate  # noqa: F401
import fsspec  # noqa: F401  (with the next three, what a run reads, measures and draws with)
import numpy.ma  # noqa: F401
import PIL.GifImagePlugin  # noqa: F401
import PIL.JpegImagePlugin  # noqa: F401
import torch._dynamo  # noqa: F401  (with the next, what a first step and a first meeting of ranks import)
import torch.distributed.tensor  # noqa: F401

import dp_prior.cli
import dp_prior.job.slurm  # noqa: F401
import dp_prior.run.check  # noqa: F401
import dp_prior.run.run  # noqa: F401
from dp_prior.run.config import TrainConfig
from tests.quick_disk import quicken_disk
from tests.quick_pictures import quicken
from tests.tiny import tiny

with tempfile.TemporaryDirectory() as place:
    TrainConfig.from_json(json.dumps(tiny(Path(place))))  # the first check of a record builds its validator
quicken()
quicken_disk()
