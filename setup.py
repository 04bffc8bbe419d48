"""Packaging. Requires only what the code imports; heavy or optional packages are extras, imported where they are used.

The suite passes with constraints.txt, which the commands install. With all lower bounds at once (except torch, whose
bound is the first version with the functions used) a policy is trained, measured and loaded: `./runtests -m pythons`.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent

EXTRAS = {
    "zarr": ["zarr>=3.1"],  # replay buffers, v2 and v3
    "lerobot": ["pyarrow>=15"],  # LeRobot data sets
    "lance": ["pylance>=4", "pyarrow>=15"],  # LeRobot data sets in Lance tables
    "hdf5": ["h5py>=3.11"],  # robomimic data sets
    "ros": ["mcap>=1.6", "mcap-ros2-support>=0.6"],  # ROS 2 bags; mcap brings lz4 and zstandard
    "clip": ["transformers>=5"],  # text towers and vit encoders
    "image": ["diffusers>=0.36", "pillow>=10.1", "scikit-learn>=1.5"],  # UNet of images, image files, the digits
    "gym": ["gymnasium>=1.0"],
    "pusht": ["gym-pusht>=0.1.8"],
    "metaworld": ['metaworld>=3.1.1; python_version < "3.14"'],  # it needs mujoco 3.3.0, which later Pythons lack
    # The pins are the physics: recorded commands miss their grasp in mujoco 3.5 and later. dm-control is gym-aloha's;
    # it requires labmaze, which has no wheels for Python 3.13.
    "aloha": [
        'gym-aloha==0.1.5; python_version < "3.13"',
        'mujoco==3.3.0; python_version < "3.13"',
        'dm-control==1.0.28; python_version < "3.13"',
    ],
    "video": ["av>=15"],  # films of rollouts, and camera frames in videos; LeRobot asks for less than 16
    "plots": ["matplotlib>=3.8", "pillow>=10"],
    "tensorboard": ["tensorboard>=2.21"],
    "onnx": ["onnx>=1.23", "onnxscript>=0.7", "onnxruntime>=1.31"],  # export, and running what was exported
    "trackio": ["trackio>=0.43"],
    "serve": ["websockets>=15", "msgpack>=1.0.5"],  # the policy server and its client
    "ruckig": ["ruckig>=0.12"],  # commands planned within limits of jerk
    "mlflow": ["mlflow-skinny>=3.17", "sqlalchemy>=2", "alembic>=1.10"],  # with the local SQLite store
}
APART = {  # not in `all`
    # Streamed data sets and checkpoints behind s3:// and gs://; each requires fsspec of its own version alone.
    "s3": ["s3fs>=2024.2"],
    "gs": ["gcsfs>=2024.2"],
    "robosuite": [  # its evdev has no wheels, so Linux needs a C compiler
        'robosuite==1.4.1; python_version < "3.14"',  # 1.5 needs numpy below 2; with both installed it works, too
        'mujoco==3.3.0; python_version < "3.14"',
        "gymnasium>=1.0",
    ],
}
TEST = [
    *("pytest>=9", "pytest-xdist>=3.5", "pytest-timeout>=2.2", "hypothesis>=6.100"),
    *("diffusers>=0.36", "scipy>=1.14"),  # compared with
]
DOCS = ["sphinx>=9", "myst-parser>=5", "furo>=2025.12"]  # docs as a site

ENTRY_POINTS = {
    "console_scripts": ["dp-prior = dp_prior.__main__:main"],
    "dp_prior.commands": [
        "translate = dp_prior_foreign.cli:translate",
        "convert = dp_prior_foreign.cli:convert",
        "embed = dp_prior_foreign.embed_command:embed",
        "import = dp_prior_foreign.cli:import_published",
        "cache = dp_prior_studio.cache_command:cache",
        "inspect = dp_prior_studio.cli:inspect",
        "try = dp_prior_studio.try_command:try_data",
        "report = dp_prior_studio.cli:report",
        "watch = dp_prior_studio.cli:watch",
        "sample = dp_prior_lab.sample_command:sample",
        "sweep = dp_prior_lab.cli:sweep",
        "compare = dp_prior_lab.cli:compare",
        "improve = dp_prior_lab.cli:improve",
        "trial = dp_prior_lab.trial_command:trial",
        "checkpoints = dp_prior_lab.checkpoints_command:checkpoints",
        "average = dp_prior_lab.checkpoints_command:average_alone",  # spellings of earlier versions, not listed
        "likelihood = dp_prior_lab.checkpoints_command:likelihood_alone",
        "make-demonstrations = dp_prior_worlds.cli:make_demonstrations",
        "serve = dp_prior_robot.serve_command:serve",
        "export = dp_prior_robot.export_command:export",
    ],
    "dp_prior.data_sets": ["mapped = dp_prior_streams.mapped_trajectories:MappedTrajectories"],
    "dp_prior.hints": ["foreign = dp_prior_foreign.translation.hints"],
    "dp_prior.reports": ["page = dp_prior_studio.pages.report:write_last_page"],
    "dp_prior.rollouts": ["lerobot = dp_prior_robot.lerobot_rollouts"],
    "dp_prior.salvagers": ["lerobot = dp_prior_foreign.lerobot_salvage:salvage"],
    "dp_prior.writers": [
        "lerobot = dp_prior_foreign.writers.lerobot_writer",
        "npz = dp_prior_foreign.writers.npz_writer",
        "robomimic = dp_prior_foreign.writers.robomimic_writer",
        "zarr = dp_prior_foreign.writers.zarr_writer",
    ],
    "dp_prior.compilers": ["network = dp_prior_robot.compiled_network:compile_network"],
    "dp_prior.runtimes": ["onnxruntime = dp_prior_robot.export.onnx_runtime:accelerate"],
    "dp_prior.envs": [
        "pusht = dp_prior_worlds.pusht:PushTConfig",
        "pusht_goals = dp_prior_worlds.pusht_goals:PushTGoalsConfig",
        "metaworld = dp_prior_worlds.metaworld:MetaWorldConfig",
        "aloha = dp_prior_worlds.aloha:AlohaConfig",
        "robosuite = dp_prior_worlds.robosuite:RobosuiteConfig",
        "libero = dp_prior_worlds.libero:LiberoConfig",
    ],
    "dp_prior.tasks": [
        "bodies = dp_prior_bodies.network:BodiesPolicyConfig",
        "body_policy = dp_prior_bodies.body_policy:BodyPolicyConfig",
    ],
    "dp_prior.data": ["bodies = dp_prior_bodies.recorded:BodiesConfig"],
    "dp_prior.evaluators": [
        "replay = dp_prior_worlds.replay:ReplayConfig",
        "body_error = dp_prior_bodies.body_error:BodyErrorConfig",
        "body_rollouts = dp_prior_bodies.body_rollouts:BodyRolloutsConfig",
    ],
    "dp_prior.renderers": [
        "aloha = dp_prior_worlds.renderers.aloha:AlohaRendererConfig",
        "metaworld = dp_prior_worlds.renderers.metaworld:MetaWorldRendererConfig",
        "pusht = dp_prior_worlds.renderers.pusht:PushTRendererConfig",
        "pusht_without_goal = dp_prior_worlds.renderers.pusht:PushTWithoutGoalRendererConfig",
    ],
    "dp_prior.episodes": [
        "annotated_lerobot = dp_prior_foreign.annotated_lerobot:AnnotatedLeRobotConfig",
        "ros2_bags = dp_prior_robot.ros2.ros2_bags:Ros2BagsConfig",
        "lance = dp_prior_streams.lance_record:LanceConfig",
        "libero = dp_prior_worlds.libero_files:LiberoStoreConfig",
        "lerobot_stream = dp_prior_streams.record:StreamedLeRobotConfig",
    ],
}
"""How the packages under plugins/ join dp_prior, which imports none of them; packages of others join as these do."""

PLUGINS = find_packages("plugins", include=["dp_prior_*"])

setup(
    name="dp_prior",
    version=re.search(r'^__version__ = "(.+)"$', (HERE / "dp_prior/__init__.py").read_text(), re.MULTILINE).group(1),
    description="A trainer for diffusion policies",
    long_description=(HERE / "README.md").read_text(encoding="utf-8") if (HERE / "README.md").exists() else "",
    long_description_content_type="text/markdown",
    license="MIT",
    packages=[
        *find_packages(include=["dp_prior", "dp_prior.*", "dp_prior_client", "dp_prior_client.*"]),
        *PLUGINS,
        "dp_prior.configs",
    ],
    package_dir={
        **{name: f"plugins/{name.replace('.', '/')}" for name in PLUGINS},
        "dp_prior.configs": "configs",  # a clone has them beside the package
    },
    package_data={
        "dp_prior": ["py.typed"],
        "dp_prior_client": ["py.typed"],
        "dp_prior.configs": ["*.json", "*.yaml", "*/*.json", "clusters/*"],
        "dp_prior.places": ["card.md"],
        "dp_prior_studio.pages": ["page.html", "style.css"],
        "dp_prior_studio.watching": ["*.html", "watch.css", "watch.js"],
    },
    python_requires=">=3.11",
    install_requires=[
        "torch>=2.7",
        "accelerate>=1.2",  # the first that takes a dynamo_plugin, see make_accelerator
        "embedding-reader>=1.8.1",
        "pydantic>=2.10",
        "numpy>=1.26",
        "safetensors>=0.4.5",
        "huggingface_hub>=1.22",  # the first that never takes the part of an interrupted download for the whole
        "fsspec>=2024.2",
        "click>=8.4.2",  # as huggingface_hub
        "rich>=13.7",
        "wandb>=0.27",
        "jinja2>=3.1",
        "pyyaml>=6.0",
        "psutil>=5.9.5",  # as accelerate
    ],
    extras_require={
        **EXTRAS,
        **APART,
        "all": sorted({requirement for extra in EXTRAS.values() for requirement in extra}),
        "test": TEST,
        "docs": DOCS,
        "dev": [*TEST, *DOCS, "ruff>=0.9"],
    },
    entry_points=ENTRY_POINTS,
    classifiers=[f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)],
)
