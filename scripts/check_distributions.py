"""Checks the wheels and source archives in a folder: names, versions, metadata, and the files that have to be inside.

python scripts/check_distributions.py dist
"""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

INSIDE = {
    "dp_prior": (
        "dp_prior/py.typed",
        "dp_prior/configs/train_config.schema.json",
        "dp_prior/configs/wandb_sweep.yaml",
        "dp_prior/configs/policy/pusht_state.json",
        "dp_prior/configs/image/digits.json",
        "dp_prior/configs/prior/clip_embeddings.json",
        "dp_prior/places/card.md",
        "dp_prior_client/client.py",
        "dp_prior_studio/pages/style.css",
        "dp_prior_studio/watching/watch.js",
    ),
    "dp_prior_client": ("dp_prior_client/py.typed", "dp_prior_client/client.py", "dp_prior_client/onboard/tick_log.py"),
    "lerobot_policy_dp_prior": ("lerobot_policy_dp_prior/modeling_dp_prior.py",),
}
"""Distributions, and files of their wheels."""

OUTSIDE = re.compile(r"(^|/)(tests|benchmarks|demonstrations|runs|build|\.venv)/|\.egg-info/.*\.py$|\.pyc$")
"""Files that no wheel has."""

PYTHONS = {"dp_prior": ">=3.11", "dp_prior_client": ">=3.8", "lerobot_policy_dp_prior": ">=3.12"}


def faults_of(folder: Path) -> list[str]:
    """What is wrong with the distributions in a folder; an empty list if all are as they have to be."""
    faults, versions = [], set()
    for name, files in INSIDE.items():
        wheels, archives = sorted(folder.glob(f"{name}-*.whl")), sorted(folder.glob(f"{name}-*.tar.gz"))
        if len(wheels) != 1 or len(archives) != 1:
            faults.append(f"{name}: {len(wheels)} wheels and {len(archives)} source archives; expected one of each")
            continue
        with zipfile.ZipFile(wheels[0]) as wheel:
            contents = set(wheel.namelist())
            (place,) = (path for path in contents if path.endswith(".dist-info/METADATA"))
            metadata = Parser().parsestr(wheel.read(place).decode())
        versions.add(metadata["Version"])
        faults += [f"{wheels[0].name} lacks {path}" for path in files if path not in contents]
        faults += [f"{wheels[0].name} holds {path}" for path in sorted(contents) if OUTSIDE.search(path)]
        if metadata["Requires-Python"] != PYTHONS[name]:
            faults.append(f"{name} requires Python {metadata['Requires-Python']}; expected {PYTHONS[name]}")
        if not metadata.get_payload().strip():
            faults.append(f"{name} has no description")
        needed = [line for line in metadata.get_all("Requires-Dist") or [] if "extra ==" not in line]
        if name == "dp_prior_client" and {re.match(r"[\w-]+", line)[0] for line in needed} != {
            "numpy",
            "msgpack",
            "websockets",
        }:
            faults.append(f"{name} requires {needed}; expected numpy, msgpack and websockets alone")
        if name.startswith("lerobot") and not any(re.match(r"lerobot.*<0\.7", line) for line in needed):
            faults.append(f"{name} requires {needed}; expected a bound of lerobot")
        with tarfile.open(archives[0]) as archive:
            members = {member.partition("/")[2] for member in archive.getnames()}
        faults += [f"{archives[0].name} lacks {path}" for path in ("PKG-INFO", "README.md") if path not in members]
    if len(versions) > 1:
        faults.append(f"the versions are {sorted(versions)}; expected one")
    return faults


if __name__ == "__main__":
    problems = faults_of(Path(sys.argv[1]))
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(INSIDE)} distributions: {len(problems)} faults")
    sys.exit(bool(problems))
