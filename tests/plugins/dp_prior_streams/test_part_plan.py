import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dp_prior.data.formats.chosen import Chosen
from dp_prior.data.formats.lerobot.meta import TableFile
from dp_prior_streams.part_plan import PARTS, PartPlan
from tests.examples import examples


class Meta:
    def __init__(self, episodes_of_tables, lengths):
        self.lengths = dict(enumerate(lengths))
        self.tables, first = [], 0
        for number, count in enumerate(episodes_of_tables):
            self.tables.append(TableFile(number, list(range(first, first + count))))
            first += count


@examples(60)
@given(st.data(), st.lists(st.integers(1, 5), min_size=1, max_size=90), st.booleans())
def test_parts_hold_whole_episodes_in_order_and_no_more_than_a_table_or_a_sixtyfourth(data, tables, has_frames):
    count = sum(tables)
    lengths = data.draw(st.lists(st.integers(1, 30), min_size=count, max_size=count))
    sizes = data.draw(st.lists(st.integers(1, 1000), min_size=len(tables), max_size=len(tables)))
    numbers = np.array(sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1))))
    meta = Meta(tables, lengths)
    chosen = Chosen(np.cumsum(lengths), numbers, np.arange(count))
    plan = PartPlan.of(meta, chosen, sizes, has_frames)
    listed = [episode for group in plan.groups for table in group for episode in table.episodes]
    assert listed == numbers.tolist()
    assert plan.group_ends[-1] == plan.ends[-1] == chosen.ends[-1]
    assert set(plan.ends) <= set(chosen.ends) and set(plan.group_ends) <= set(plan.ends)
    assert (np.diff(plan.ends, prepend=0) > 0).all()
    for part, group in enumerate(plan.group_of.tolist()):
        (begin, end), (first, stop) = plan.part_span(part), plan.span(group)
        assert first <= begin < end <= stop
        assert (plan.part_of(np.arange(begin, end)) == part).all()
        episodes = plan.episodes(begin, end)
        assert chosen.ends[episodes[-1]] == end and chosen.ends[episodes[0]] - chosen.lengths[episodes[0]] == begin
    for group in plan.groups:
        size = sum(sizes[table.path] for table in group)
        assert len(group) == 1 or size <= sum(sizes) / PARTS
    for table in (table for group in plan.groups for table in group):
        whole = meta.tables[table.path]
        begins = dict(zip(whole.episodes, np.cumsum([0, *(lengths[e] for e in whole.episodes)]), strict=False))
        assert table.begins in (None, [begins[episode] for episode in table.episodes])


def test_frames_divide_a_table_into_parts_of_about_a_sixtyfourth():
    meta = Meta([640], [10] * 640)
    chosen = Chosen(np.arange(10, 6410, 10), np.arange(640), np.arange(640))
    assert len(PartPlan.of(meta, chosen, [1], has_frames=True).ends) == PARTS
    assert len(PartPlan.of(meta, chosen, [1], has_frames=False).ends) == 1
