"""Packages beside this one are found by names in their metadata, and imported when one of the names is used."""

import ast
import importlib.metadata
import re
import sys
import zipfile
from pathlib import Path

import pytest
from pydantic import create_model

from dp_prior.config import Config, ConfigError, family
from dp_prior.files import entry_points
from dp_prior.files.entry_points import TOO_NEW, needing
from tests import tiny
from tests.cli.invoked import command
from tests.extension.installed import lay_out
from tests.messages import naming, told

ROOT = Path(__file__).parents[2]


def declared() -> dict[str, list[str]]:
    """The entry points of setup.py, by group."""
    tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    [node] = [node for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "ENTRY_POINTS"]
    return ast.literal_eval(node.value)


def test_what_is_installed_is_what_setup_py_declares():
    """Otherwise every command and world of a plug-in would be missing; `pip install -e .` brings them."""
    groups = {group: {entry.partition(" = ")[0] for entry in entries} for group, entries in declared().items()}
    for group, names in groups.items():
        installed = {entry.name for entry in importlib.metadata.entry_points(group=group)}
        assert names <= installed, f"{group}: install the package anew, it lacks {sorted(names - installed)}"


def test_every_entry_point_of_ours_can_be_imported():
    for group in declared():
        for entry in entry_points.entry_points(group.removeprefix("dp_prior.")):
            assert entry_points.loaded(entry) is not None


def read_from(folders, monkeypatch):
    """The entry points of packages in these folders, and what importlib.metadata reads there."""
    monkeypatch.setattr(sys, "path", [str(folder) for folder in folders])
    entry_points._installed.cache_clear()
    try:
        points = entry_points._installed()
        ours = sorted(
            (point.name, point.value, point.group) for group in points.groups for point in points.select(group=group)
        )
    finally:
        entry_points._installed.cache_clear()
    theirs = [point for group in points.groups for point in importlib.metadata.entry_points(group=group)]
    return ours, sorted((point.name, point.value, point.group) for point in theirs)


def test_metadata_are_read_as_importlib_reads_them(tmp_path, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    files = {
        first
        / "my_parts-1.0.dist-info": "[console_scripts]\nrun = my:main\n\n[dp_prior.envs]\n# old\nrope = my.rope:Rope\n",
        first / "Other.Parts-2.dist-info": "[dp_prior.commands]\n  fly=other.cli:fly [plots]\n\n[tools]\nx = y\n",
        first / "plain-1.0.dist-info": None,
        second / "my_parts-3.0.dist-info": "[dp_prior.envs]\nhidden = never:Seen\n",
        second / "old_style.egg-info": "[dp_prior.hints]\nold = old_style.hints\n",
    }
    for folder, text in files.items():
        folder.mkdir(parents=True)
        name = folder.name.partition("-")[0].removesuffix(".egg-info")
        about = "METADATA" if folder.suffix == ".dist-info" else "PKG-INFO"
        (folder / about).write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        if text is not None:
            (folder / "entry_points.txt").write_text(text)
    ours, theirs = read_from([first, tmp_path / "missing", second], monkeypatch)
    assert ours == theirs and [name for name, _, _ in ours] == ["fly", "old", "rope"]


def package(folder, text, name="parts"):
    """Write the metadata of a package with entry points into a folder."""
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (folder / "entry_points.txt").write_text(text)


def test_unusual_names_and_lines_are_read_as_importlib_reads_them(tmp_path, monkeypatch):
    first, second = tmp_path / "a folder", tmp_path / "second"
    package(first / "Upper_Case-1.0.DIST-INFO", "[dp_prior.envs]\nupper = upper:Env\n", "upper-case")
    package(first / "a__part-1.0.dist-info", "\n[dp_prior.envs]\r\n\tspaced  =  a.part : Env \n", "a--part")
    package(first / "~ld-1.0.dist-info", "[dp_prior.envs]\nleft_behind=old:Env\n[odd = line:Env\n", "~ld")
    package(second / "a_part-2.0.dist-info", "[dp_prior.envs]\nhidden = never:Seen\n", "a-part")
    package(second / "upper.case-2.0.dist-info", "[dp_prior.envs]\nhidden = never:Seen\n", "upper.case")
    (second / "file-1.0.egg-info").write_text("[dp_prior.envs]\nfile = never:Seen\n")
    monkeypatch.chdir(first)
    ours, theirs = read_from(["", second, ".", first, second], monkeypatch)
    assert ours == theirs and [name for name, _, _ in ours] == ["[odd", "left_behind", "spaced", "upper"]


def test_what_is_no_readable_folder_on_the_path_is_passed_over(tmp_path, monkeypatch):
    """Scripts append paths of pathlib, and folders of other users."""
    closed = tmp_path / "closed"
    package(tmp_path / "parts" / "parts-1.0.dist-info", "[dp_prior.envs]\nrope = parts:Rope\n")
    package(closed / "secret-1.0.dist-info", "[dp_prior.envs]\nsecret = never:Seen\n", "secret")
    list_folder = entry_points.os.listdir

    def refuse(folder):
        if str(folder) == str(closed):
            raise PermissionError(13, "Permission denied", folder)
        return list_folder(folder)

    monkeypatch.setattr(entry_points.os, "listdir", refuse)
    monkeypatch.setattr(sys, "path", [None, b"bytes", "with\0null", str(closed), tmp_path / "parts"])
    entry_points._installed.cache_clear()
    try:
        assert [entry.value for entry in entry_points.entry_points("envs")] == ["parts:Rope"]
    finally:
        entry_points._installed.cache_clear()


@pytest.mark.parametrize("is_alone", [True, False])
def test_packages_of_another_importer_are_asked_for(tmp_path, monkeypatch, is_alone):
    """Alone as in a frozen application, whose importer takes the place of Python's."""
    package(tmp_path / "frozen-1.0.dist-info", "[dp_prior.envs]\nfrozen = frozen:Env\n", "frozen")

    class Importer:
        @staticmethod
        def find_spec(name, path=None, target=None):
            return None

        @staticmethod
        def find_distributions(context=None):
            return [importlib.metadata.PathDistribution(tmp_path / "frozen-1.0.dist-info")]

    finders = [finder for finder in sys.meta_path if not (is_alone and hasattr(finder, "find_distributions"))]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "meta_path", [*finders, Importer])
        entry_points._installed.cache_clear()
        try:
            values = [entry.value for entry in entry_points.entry_points("envs", name="frozen")]
        finally:
            entry_points._installed.cache_clear()
    assert values == ["frozen:Env"]


def test_an_archive_on_the_path_leaves_the_reading_to_importlib(tmp_path, monkeypatch):
    archive = tmp_path / "parts.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("parts-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: parts\nVersion: 1.0\n")
        file.writestr("parts-1.0.dist-info/entry_points.txt", "[dp_prior.envs]\nzipped = parts:Zipped\n")
    monkeypatch.setattr(sys, "path", [str(archive)])
    entry_points._installed.cache_clear()
    try:
        assert [entry.value for entry in entry_points.entry_points("envs", name="zipped")] == ["parts:Zipped"]
    finally:
        entry_points._installed.cache_clear()


def test_groups_of_commands_hints_and_reports_are_no_families():
    assert "envs" in entry_points.families()
    assert not {*entry_points.families()} & {*entry_points.HOOKS}


def test_an_entry_point_that_cannot_be_imported_is_named_with_its_remedy(tmp_path, monkeypatch):
    lay_out(tmp_path, "broken_part", "raise SystemExit(3)", {"hints.broken": "broken_part"})
    monkeypatch.syspath_prepend(tmp_path)
    entry_points._installed.cache_clear()
    try:
        [entry] = entry_points.entry_points("hints", name="broken")
        with pytest.raises(ImportError, match=naming("'broken'", "broken_part", "SystemExit(3)", "uninstall")):
            entry_points.loaded(entry)
    finally:
        entry_points._installed.cache_clear()


def test_an_installation_from_before_the_plugins_is_named_with_its_remedy(tmp_path, monkeypatch):
    """In a clone that was updated and not installed anew."""
    monkeypatch.setattr(entry_points, "_installed", lambda: importlib.metadata.EntryPoints(()))
    unknown = command("export", "none", "new")
    assert unknown.exit_code == 2 and told(unknown.output, "'export'", "pip install -e .")
    Env = create_model("Env", __base__=Config, env=(family("worlds", {"toy": "dp_prior.envs.toy:ToyConfig"}), ...))
    with pytest.raises(ConfigError, match=naming("'pusht'", "'toy'", "pip install -e .")):
        Env.from_json('{"env": {"type": "pusht"}}')
    done = tiny.train(tiny.write(tmp_path, train__steps=2, tracker__report=True))
    assert done.exit_code == 0 and told(done.output, "warning", "no report", "pip install -e .")


SETUP = Path(__file__).parent.parent.parent / "setup.py"


def test_a_missing_package_is_named_with_its_reason_and_its_extra():
    with pytest.raises(ImportError) as caught, needing("clip", "it needs nothing_of_this_name"):
        import nothing_of_this_name  # noqa: F401
    said = str(caught.value)
    assert said.startswith("it needs") and said.endswith('pip install "dp_prior[clip]"')
    assert "No module named 'nothing_of_this_name'" in said and caught.value.__cause__ is not None


def test_what_is_installed_is_imported_and_errors_inside_it_pass():
    with needing("clip", "numbers"):
        import json
    assert json.loads("1") == 1
    with pytest.raises(ZeroDivisionError), needing("clip", "numbers"):
        raise ZeroDivisionError


def test_where_an_extra_installs_nothing_the_error_names_the_python_that_it_needs(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 14))
    with (
        pytest.raises(ImportError, match=naming("nothing_of_this_name", "3.14", "3.13", "dp_prior[aloha]")),
        needing("aloha", "the world needs another package"),
    ):
        import nothing_of_this_name  # noqa: F401
    monkeypatch.setattr(sys, "version_info", (3, 12))
    with pytest.raises(ImportError) as caught, needing("aloha", "the world needs another package"):
        import nothing_of_this_name  # noqa: F401
    assert "Python" not in str(caught.value)


def test_the_pythons_that_are_too_new_for_an_extra_are_those_of_its_requirements():
    extras = {}
    for statement in ast.parse(SETUP.read_text(encoding="utf-8")).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="EXTRAS" | "APART")], value=value):
                extras |= ast.literal_eval(value)
    limits = {
        (extra, tuple(map(int, limit)))
        for extra, requirements in extras.items()
        for limit in re.findall(r'python_version < "(\d+)\.(\d+)"', " ".join(requirements))
    }
    assert limits == set(TOO_NEW.items())
