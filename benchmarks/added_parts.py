"""Parts that benchmarks add to configurations: `--import benchmarks.added_parts`."""

from benchmarks.pusht_tool import PushTToolConfig
from dp_prior.config import member_of
from dp_prior.envs import EnvConfig

member_of(EnvConfig)(PushTToolConfig)
