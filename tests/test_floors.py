"""The house stands: imports point down, wings are strangers, outside libraries and side effects stay in their rooms."""

import ast
import functools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dp_prior
from tests import frame
from tests.faults import assert_none
from tests.tiny import write

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "dp_prior"
PLUGINS = {path.name: path for path in sorted((ROOT / "plugins").glob("dp_prior_*"))}
FOLDERS = {"dp_prior_client": ROOT / "dp_prior_client", **PLUGINS}
"""The packages beside dp_prior, which are rooms of the house as its own folders are."""


def files_of_the_house() -> Iterator[str]:
    """Each file, from its package on; those of dp_prior without that name in front."""
    yield from sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
    for name, folder in FOLDERS.items():
        yield from sorted(f"{name}/{path.relative_to(folder).as_posix()}" for path in folder.rglob("*.py"))


FILES = list(files_of_the_house())
FLOORS = [
    {"config", "embedders", "files", "tensors", "dp_prior_client"},
    {"diffusion", "networks", "data", "checkpoints", "job", "envs"},
    {"places"},
    {"tasks", "tracking"},
    {"training", "inference"},
    {"evaluation"},
    {"run"},
    {"cli", "__init__", "__main__"},
    {"dp_prior_foreign", "dp_prior_worlds", "dp_prior_streams", "dp_prior_bodies"},
    {"dp_prior_robot"},
    {"dp_prior_studio"},
    {"dp_prior_lab"},
]
ROOF = next(level for level, rooms in enumerate(FLOORS) if "cli" in rooms)
ROOMS = set().union(*FLOORS)
FREE_AMONG_THEMSELVES = (0, ROOF)
COMMANDS = tuple(
    file for file in FILES if file.startswith("dp_prior_") and Path(file).stem.endswith(("cli", "_command"))
)
"""The files of other packages that stand at the roof: commands."""

EVERYWHERE = {"torch", "numpy", "pydantic", "pydantic_core"}
AT_THE_TOP = {  # imported with the module: where
    "accelerate": ["job/accelerator.py", "job/ranks.py"],
    "click": [
        "cli/",
        "dp_prior_lab/options.py",
        "dp_prior_lab/model_commands.py",
        "dp_prior_foreign/usage.py",
        *COMMANDS,
    ],
    "libero": ["dp_prior_worlds/libero_program.py"],  # a program of another Python
    "robosuite": ["dp_prior_worlds/libero_program.py"],
}
IN_A_FUNCTION = {  # heavy or optional, imported when used: where
    **AT_THE_TOP,
    "yaml": ["dp_prior_foreign/translation/foreign_settings.py", "dp_prior_robot/ros2/bags.py"],
    "mcap": ["dp_prior_robot/ros2/bags.py"],
    "mcap_ros2": ["dp_prior_robot/ros2/"],
    "lz4": ["dp_prior_robot/ros2/bags.py"],  # these two come with mcap
    "zstandard": ["dp_prior_robot/ros2/bags.py"],
    "zarr": ["data/formats/zarr/", "dp_prior_foreign/writers/zarr_writer.py"],
    "numcodecs": ["data/formats/zarr/groups.py", "dp_prior_foreign/writers/zarr_writer.py"],
    "rich": ["tracking/console.py"],
    "pyarrow": [
        "data/formats/lerobot/",
        "data/formats/table_file.py",
        "data/embeddings/",
        "data/pictures/parquet.py",
        "dp_prior_foreign/writers/",
        "dp_prior_worlds/pusht_pictures.py",
        "dp_prior_foreign/annotated_lerobot.py",
        "dp_prior_streams/record.py",
        "dp_prior_streams/lance_",
    ],
    "lance": ["dp_prior_streams/lance_tables.py"],
    "gymnasium": ["envs/gym.py", "dp_prior_worlds/"],
    "metaworld": ["dp_prior_worlds/metaworld", "dp_prior_worlds/renderers/metaworld.py"],
    "gym_aloha": ["dp_prior_worlds/aloha_world.py", "dp_prior_worlds/renderers/aloha.py"],
    "mujoco": [
        "dp_prior_worlds/aloha_kinematics.py",
        "dp_prior_worlds/aloha_world.py",
        "dp_prior_worlds/opengl.py",
        "dp_prior_worlds/renderers/aloha.py",
        "dp_prior_worlds/renderers/metaworld.py",
        "dp_prior_worlds/renderers/robosuite.py",
    ],
    "robosuite": ["dp_prior_worlds/renderers/robosuite.py"],
    "glfw": ["dp_prior_worlds/opengl.py"],  # MuJoCo brings it
    "gym_pusht": ["dp_prior_worlds/pusht", "dp_prior_worlds/renderers/pusht.py"],
    "pygame": ["dp_prior_worlds/renderers/pusht.py"],  # these three come with gym_pusht
    "pymunk": ["dp_prior_worlds/renderers/pusht.py"],
    "cv2": ["dp_prior_worlds/renderers/pusht.py"],
    "matplotlib": [
        "evaluation/picture.py",
        "dp_prior_studio/pages/charts.py",
        "tracking/accelerate.py",
    ],  # trackio looks in
    "h5py": ["data/hdf5.py", "data/formats/robomimic.py"],
    "PIL": ["tensors/pixels/picture_files.py"],
    "av": ["tensors/pixels/video_files.py", "data/frames/video_frames.py"],
    "accelerate": [*AT_THE_TOP["accelerate"], "tracking/accelerate.py"],  # the one adapter over its trackers
    "wandb": ["tracking/wandb.py", "places/wandb.py"],
    "tensorboard": ["tracking/tensorboard.py"],
    "psutil": ["job/launcher.py", "dp_prior_foreign/launching.py"],  # ancestors, on every system
    "mlflow": ["tracking/accelerate.py"],  # pictures and files, which accelerate's tracker does not hand over
    "trackio": ["tracking/accelerate.py"],
    "jinja2": ["places/card.py", "dp_prior_studio/pages/page.py"],
    "huggingface_hub": ["files/hub_files.py", "places/hub.py", "places/card.py"],
    "httpx": ["files/hub_files.py"],  # huggingface_hub's before version 2, for its exceptions
    "httpx2": ["files/hub_files.py"],  # the same from version 2 on
    "fsspec": ["data/found_files.py", "places/fsspec.py", "dp_prior_streams/remote_files.py"],
    "embedding_reader": ["data/embeddings/"],
    "transformers": ["inference/text_tower.py", "networks/encoders/vit.py", "embedders/transformers.py"],
    "sklearn": ["data/pictures/digits.py"],
    "diffusers": ["networks/backbones/unet2d.py"],
    "safetensors": ["networks/encoders/published_weights.py", "networks/encoders/vit.py"],
    "ruckig": ["dp_prior_client/onboard/ruckig_motion.py"],
    "msgpack": ["dp_prior_client/wire.py", "dp_prior_robot/serving/harness.py"],
    "websockets": [
        "dp_prior_client/client.py",
        "dp_prior_robot/serving/harness.py",
        "dp_prior_robot/serving/inbox.py",
        "dp_prior_robot/serving/policy_server.py",
    ],
    "onnx": [
        f"dp_prior_robot/export/{name}.py"
        for name in ("conditioning", "graph_files", "opsets", "unet_graph", "unrolled")
    ],
    "onnxscript": ["dp_prior_robot/export/graph_files.py"],
    "onnxruntime": ["dp_prior_robot/export/"],
}
NEVER = {"eval", "exec", "__import__", "breakpoint", "torch.load", "torch.save", "os._exit", "os.system"}
ENDS_WITHOUT_RETURNING = (  # a process with a stuck thread ends no other way
    *("job/watch/heartbeat.py", "cli/command.py", "dp_prior_robot/serve_command.py"),
)
NEVER_IMPORTED = {"pickle", "dill", "cloudpickle", "marshal", "shelve", "importlib"}
METADATA = {  # of installed packages: their records, and a version; only the command line names a module
    ("importlib", "__init__.py"),  # of a fixed table of our own
    ("importlib", "cli/command.py"),
    ("importlib", "files/entry_points.py"),  # of places in our own code, and in the metadata of installed packages
    ("importlib.metadata", "files/entry_points.py"),
    ("importlib.machinery", "files/entry_points.py"),  # finds the metadata on each entry of the path
    ("importlib.metadata", "config/origins.py"),
    ("importlib.metadata", "envs/fingerprint.py"),
    ("importlib.metadata", "dp_prior_robot/export/parity.py"),
    ("importlib.metadata", "dp_prior_worlds/renderers/aloha.py"),
    ("importlib.metadata", "dp_prior_worlds/renderers/metaworld.py"),
    ("importlib.metadata", "dp_prior_worlds/renderers/pusht.py"),
    ("importlib.util", "dp_prior_worlds/apart/child.py"),  # of a file that a record in code names
}
ROOF_ONLY = {"print", "input", "exit", "quit", "sys.argv", "sys.exit", "os.environ", "os.getenv", "os.putenv"}
LAST_NAMES = {name.rpartition(".")[2] for name in NEVER | ROOF_ONLY}
AT_THE_ROOF = (
    *("cli/", "__main__.py", *COMMANDS),
    *("dp_prior_worlds/apart/child.py", "dp_prior_worlds/libero_program.py"),  # programs of another Python
    "dp_prior_worlds/apart/process.py",  # hands the environment to that Python
)
PLACE = re.compile(r"dp_prior\w*(\.\w+)+:\w+")
"""The place of a member in the table of its family, which imports it by its name."""
NAMELESS = {"utils", "util", "common", "base", "helper", "helpers", "manager", "misc"}


def nodes_of(file: str | Path) -> list[ast.AST]:
    """Of a file of the package, or of a path; the first one is the module."""
    return frame.nodes_of(path_of(file))


def path_of(file: str | Path) -> Path:
    name, _, rest = str(file).partition("/")
    return FOLDERS[name] / rest if name in FOLDERS else PACKAGE / file


def floor_of(part: str) -> int:
    return next(level for level, parts in enumerate(FLOORS) if part in parts)


def room_of(file: str) -> str:
    """The room of a file below the package, or of a module without `dp_prior.`, as a path."""
    parts = file.removesuffix(".py").split("/")
    inner = "/".join(parts[:2])
    return inner if any(inner in parts for parts in FLOORS) else parts[0]


def statements_in(node: ast.AST) -> Iterator[ast.AST]:
    """The statements inside a statement, without their expressions, where no import stands."""
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        for statement in getattr(node, name, ()):
            yield statement
            yield from statements_in(statement)


@functools.cache
def imports(file: str) -> list[tuple[str, int, bool]]:
    """(module, line, whether it runs only in a call or never) for every import; "." is a relative one."""
    nodes, late = nodes_of(file), set()
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        ):
            late |= {id(inner) for inner in statements_in(node)}
    found = []
    for node in nodes:
        if isinstance(node, ast.Constant) and PLACE.fullmatch(str(node.value)):
            found.append((node.value.partition(":")[0], node.lineno, True))
        elif isinstance(node, ast.Import):
            found += [(alias.name, node.lineno, id(node) in late) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"dp_prior.{alias.name}" for alias in node.names] if node.module == "dp_prior" else [node.module]
            names = ["."] if node.level else names
            found += [(name, node.lineno, id(node) in late) for name in names]
    return found


def file_of(module: str) -> str:
    """The file of a module, without its ending."""
    return module.removeprefix("dp_prior.").replace(".", "/")


def climbing(file: str) -> Iterator[str]:
    """The imports of a file that do not point down: into a room beside it or above it."""
    room = room_of(file)
    floor = floor_of(room)
    for module, line, _ in imports(file):
        if module == ".":
            yield f"{file}:{line} imports relatively; write dp_prior. in full"
        target = room_of(file_of(module))
        if (
            target == room
            or target not in {*ROOMS, "__version__"}
            or module.split(".")[0] not in {"dp_prior", *FOLDERS}
        ):
            continue
        if target == "__version__":
            yield f"{file}:{line} imports {module} of the root; own_version of dp_prior.config reads it"
            continue
        same = floor in FREE_AMONG_THEMSELVES and floor_of(target) == floor
        if not same and floor_of(target) >= floor:
            yield f"{file}:{line} imports {module}, which is not below {room}"


def strayed(file: str) -> Iterator[str]:
    """The imports in a file of libraries that have another place, or that nothing may import."""
    for module, line, late in imports(file):
        top = module.split(".")[0]
        if top in NEVER_IMPORTED and (module, file) not in METADATA:
            yield f"{file}:{line} imports {top}: nothing that is read may run code"
        if top in EVERYWHERE or top in ("", "dp_prior", *FOLDERS) or top in sys.stdlib_module_names:
            continue
        rooms = (IN_A_FUNCTION if late else AT_THE_TOP).get(top, [])
        where = ", ".join(rooms) or ("inside a function" if top in IN_A_FUNCTION else "nowhere yet")
        if not file.startswith(tuple(rooms)):
            yield f"{file}:{line} imports {top}; its place: {where}"


def test_imports_point_down_and_wings_are_strangers():
    importing = [file for file in FILES if imports(file)]
    homeless = {room_of(file) for file in importing} - ROOMS
    faults = [f"{room} has no floor; name it in FLOORS" for room in sorted(homeless)]
    assert_none(faults + [fault for file in importing if room_of(file) in ROOMS for fault in climbing(file)])


def test_the_modules_of_a_room_do_not_import_each_other_in_a_circle():
    """An import inside a function, or one for type hints alone, closes a circle too."""
    below = {}
    for file in FILES:
        if file.endswith("__init__.py"):  # the list of a family, whose members import other modules of the folder
            continue
        nodes = [node for node in nodes_of(file) if isinstance(node, ast.ImportFrom)]
        names = {f"{node.module}{part}" for node in nodes for part in ("", *(f".{one.name}" for one in node.names))}
        below[file] = {f"{file_of(name)}.py" for name in names} & {*FILES}
    while free := {file for file, found in below.items() if not found & below.keys()}:
        below = {file: found for file, found in below.items() if file not in free}
    assert not below, f"these import each other, or import modules that do: {below}"


@pytest.mark.promise("K1")
def test_outside_libraries_stay_in_their_files_and_heavy_ones_load_late():
    assert_none(fault for file in FILES for fault in strayed(file))


def test_every_folder_with_modules_is_a_package():
    """Others are left out of the wheel, though they import from a checkout."""
    folders = {path_of(file).parent for file in FILES}
    assert_none(f"{folder.relative_to(ROOT)} lacks __init__.py" for folder in sorted(folders)
                if not (folder / "__init__.py").is_file())  # fmt: skip


def test_contributing_names_the_parts_of_every_floor():
    text = (PACKAGE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    house = re.sub(r"\([^)]*\)", "", text.partition("    ground ")[2].partition("    roof")[0])
    told = [{*re.findall(r"[\w/]+", floor)} for floor in re.split(r"\n +\w+ floor", house)]
    assert told == FLOORS[:ROOF]


def test_every_place_of_a_library_is_one_where_it_is_imported():
    found = {(module.split(".")[0], file) for file in FILES for module, _, _ in imports(file)}
    for library, places in IN_A_FUNCTION.items():
        for place in places:
            assert any(file.startswith(place) for name, file in found if name == library), f"{library}: {place}"


def talking(file: str) -> Iterator[str]:
    """What a file says or reads beside its arguments, and where text is run or a name says nothing."""
    for node in (nodes := nodes_of(file)):
        name = node.id if isinstance(node, ast.Name) else ""
        if isinstance(node, ast.Attribute) and node.attr in LAST_NAMES:
            name = ast.unparse(node)
        if name in NEVER and not (name == "os._exit" and file in ENDS_WITHOUT_RETURNING):
            yield f"{file}:{node.lineno} uses {name}"
        if name in ROOF_ONLY and not file.startswith(AT_THE_ROOF):
            yield f"{file}:{node.lineno} uses {name}; only {', '.join(AT_THE_ROOF)} may"
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("np.load", "numpy.load"):
            flags = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if flags.get("allow_pickle") != "False":
                yield f"{file}:{node.lineno} must say allow_pickle=False"
    is_lazy = "__getattr__" in {node.name for node in nodes[0].body if isinstance(node, ast.FunctionDef)}
    if is_lazy and file not in ("__init__.py", "dp_prior_client/__init__.py"):
        yield f"{file} has a __getattr__; only a package with a public face imports late by it"
    if Path(file).stem in NAMELESS:
        yield f"{file}: {Path(file).stem} hides a concept that has a better name"


@pytest.mark.promise("K1")
def test_nothing_below_the_roof_talks_to_the_terminal_or_the_environment_and_nothing_runs_text():
    assert_none(fault for file in FILES for fault in talking(file))


def test_a_class_name_stands_for_one_class():
    places: dict[str, list[str]] = {}
    for file in FILES:
        for node in nodes_of(file):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{file}:{node.lineno}")
    assert not {name: found for name, found in places.items() if len(found) > 1}


def names_of(module: Path) -> set[str]:
    """What a module defines or imports at its top level."""
    names = set()
    for node in nodes_of(module):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


@pytest.mark.parametrize("folder", ("dp_prior", "dp_prior_client", "plugins", "benchmarks"))
def test_every_imported_name_of_the_house_exists(folder):
    """An import inside a function is not run by importing its module."""
    root, faults = PACKAGE.parent, []
    known = {"dp_prior": set(dp_prior.__all__)}
    for path in sorted((root / folder).rglob("*.py")):
        for node in nodes_of(path):
            top = (node.module or "").split(".")[0] if isinstance(node, ast.ImportFrom) else ""
            if top not in ("dp_prior", "benchmarks", *FOLDERS):
                continue
            target = (root / "plugins" if top in PLUGINS else root) / node.module.replace(".", "/")
            module = target / "__init__.py" if target.is_dir() else target.with_suffix(".py")
            if node.module not in known:
                known[node.module] = names_of(module) if module.is_file() else set()
            for alias in node.names:
                is_module = (target / alias.name).is_dir() or (target / f"{alias.name}.py").is_file()
                if alias.name not in known[node.module] and not is_module:
                    faults.append(f"{path.relative_to(root)}:{node.lineno}: {node.module}.{alias.name}")
    assert not faults


def test_importing_the_package_is_light():
    program = "import json, sys, dp_prior; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    output = subprocess.run([sys.executable, "-c", program], cwd=PACKAGE.parent, capture_output=True, text=True)
    assert output.returncode == 0, output.stderr
    loaded = json.loads(output.stdout)
    assert not set(IN_A_FUNCTION) & set(loaded)


@pytest.mark.slow
def test_a_whole_run_leaves_the_compiler_of_torch_alone(tmp_path):
    """Importing it takes most of a second at every start; torch's optimizer class does, and so does accelerate."""
    config = write(tmp_path, train__steps=2)
    program = f"""
import sys
from dp_prior.cli import train
train(["--config_file", {str(config)!r}], standalone_mode=False)
assert "torch" in sys.modules
print("loaded", sorted({{"torch._dynamo", "torch._inductor", "sympy"}} & set(sys.modules)))
"""
    output = subprocess.run([sys.executable, "-c", program], cwd=PACKAGE.parent, capture_output=True, text=True)
    assert output.stdout.splitlines()[-1:] == ["loaded []"], output.stderr
