"""What a command may use of a checkpoint: data whose labels stand for the classes that the model learnt."""

import pytest

from dp_prior.config import ConfigError
from dp_prior.run.stored import check_classes
from dp_prior.tensors.batch import Spec
from tests.messages import naming


@pytest.mark.parametrize(
    ("trained", "given", "words"),
    [
        (("ant", "cat", "dog"), ("cat", "dog"), ("'label'", 2, 3, "'ant'")),
        (("ant", "cat"), ("bee", "cat"), ("'ant', 'bee'",)),
        (("ant", "cat"), ("cat", "ant"), ("order",)),
        (("ant", "cat"), (), (0, 2)),
        (("0", "1", "2"), ("cat", "dog"), (2, 3)),
        (("0", "1", "2"), ("ant", "cat", "dog"), None),
        (("ant", "cat"), ("ant", "cat"), None),
        ((), ("ant", "cat"), None),
    ],
)
def test_labels_of_other_classes_are_refused(trained, given, words):
    trained, given = (
        Spec(x_shape=(4,), cond_shapes={"label": ()}, kinds={"label": "label"}, classes={"label": names})
        if names
        else Spec(x_shape=(4,), cond_shapes={})
        for names in (trained, given)
    )
    if words is None:
        check_classes(trained, given)
    else:
        with pytest.raises(ConfigError, match=naming(*words)):
            check_classes(trained, given)
