"""Tasks: which variable is diffused, under which conditions.

A record's `kind` decides which evaluators can measure its model and that `load_<kind>` loads it.
"""

from dp_prior.config import family
from dp_prior.tasks.distilled import DistilledPolicyConfig
from dp_prior.tasks.image import ImageTaskConfig
from dp_prior.tasks.inpainting import InpaintingPolicyConfig
from dp_prior.tasks.policy_config import PolicyConfig
from dp_prior.tasks.pretrained import Pretrained
from dp_prior.tasks.prior import PriorConfig

TaskConfig = family(
    "tasks",
    *(PolicyConfig, InpaintingPolicyConfig, DistilledPolicyConfig, PriorConfig, ImageTaskConfig),
    needs=("create", "data_types", "kind", "open", "resolve"),
)
Pretrained.tasks = TaskConfig  # whose members import that file
