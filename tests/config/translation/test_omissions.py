"""What is left out on purpose has a reason."""

from dp_prior.config.translation.libraries import LIBRARIES
from dp_prior.config.translation.omissions import OMISSIONS


def test_every_omission_says_whose_it_is_and_what_to_do():
    names = [*(library.name for library in LIBRARIES), "lucidrains"]
    faults = [one.feature for one in OMISSIONS if len(one.reason) < 40 or not any(name in one.whose for name in names)]
    assert not faults and len({one.feature for one in OMISSIONS}) == len(OMISSIONS)
