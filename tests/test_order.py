"""Stories come first, then the files of each large library."""

from itertools import pairwise
from pathlib import Path

from tests.order import LIBRARIES, TESTS, rank


def test_a_file_has_the_rank_of_its_first_library(tmp_path):
    sources = {
        "import zarr\nfrom scipy.stats import beta": LIBRARIES.index("scipy"),
        'zarr = pytest.importorskip("zarr")': LIBRARIES.index("zarr"),
        "import zarrs": len(LIBRARIES),
    }
    for number, (source, expected) in enumerate(sources.items()):
        path = Path(tmp_path, f"{number}.py")
        path.write_text(source)
        assert rank(path) == expected


def test_stories_come_first_and_files_of_a_library_follow_each_other(request):
    paths = [item.path for item in request.session.items]
    places = [(path.parent != TESTS, rank(path)) for path in paths]
    assert all(before <= after for before, after in pairwise(places))
