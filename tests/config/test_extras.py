"""A missing optional package is an error that names the extra; other errors pass as they are."""

import pytest

from dp_prior.config.extras import needing


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
